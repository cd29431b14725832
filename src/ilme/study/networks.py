"""The stages `rnnt` and `aed`: both models on the source speech, their internal LMs watched as they learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ilme.adapters.whisper_weights import load_whisper_encoder
from ilme.data.augment import SpecAugment
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.encoder import EncoderConfig
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.study.config import NetworkPlan, StudyConfig
from ilme.study.copies import copies
from ilme.study.corpora import find_file, synthetic_study
from ilme.study.language import study_tokenizer
from ilme.study.runner import Stage, Study, file_digest
from ilme.study.speech import resident_part, resident_shards
from ilme.study.texts import read_lines
from ilme.study.training import (
    Course,
    fresh_network,
    keep_earlier_journal,
    network_config,
    options_of,
    plan_inputs,
    run_course,
)
from ilme.train.monitor import internal_lm_perplexity
from ilme.train.objectives import AedObjective, Objective, RnntObjective
from ilme.train.optimiser import start_from
from ilme.train.options import AedOptions, RnntOptions, WarmStart
from ilme.train.resident import ResidentNoise, ResidentSource

__all__ = ["network_stages", "speech_inputs", "train_network", "training_noise"]

_WATCHED = 400  # held-out sentences on which the internal LM is measured during training
BABBLE, WHITE = 0.5, 0.25  # shares of the training utterances; the rest stays clean


def network_stages(config: StudyConfig) -> list[Stage]:
    """Both networks; one whose encoder starts from the other's comes after it."""
    if config.rnnt.encoder_from == "rnnt" or config.aed.encoder_from == "aed":
        raise BadInputError("encoder_from names the other network: rnnt may start from aed, or aed from rnnt")
    if config.rnnt.encoder_from and config.aed.encoder_from:
        raise BadInputError("rnnt and aed cannot each start from the other's encoder: leave one encoder_from empty")
    stages = []
    for kind in ("aed", "rnnt") if config.rnnt.encoder_from else ("rnnt", "aed"):
        plan: NetworkPlan = getattr(config, kind)
        before = (plan.encoder_from,) if plan.encoder_from else ()
        stages.append(
            Stage(
                kind,
                lambda study, kind=kind, plan=plan: train_network(study, config, kind, kind, plan),  # type: ignore[misc]
                ("text", "speech", "tokenizer", "lm-source", *before),
                {"plan": plan_inputs(plan), **speech_inputs(config)},
                resumes=True,
            )
        )
    return stages


def speech_inputs(config: StudyConfig) -> dict[str, Any]:
    """What every network depends on beside its plan and the stages before it."""
    speech: dict[str, Any] = {"snr": config.speech.train_snr, "talkers": config.speech.talkers}
    if config.recordings.active:
        speech["recordings"] = _inputs_of_recordings(config)
    return {"seed": config.seed, "noise": [BABBLE, WHITE], **speech}


def training_noise(config: StudyConfig) -> ResidentNoise:
    if config.recordings.active:
        return options_of(ResidentNoise, config.recordings.noise, "recordings.noise")
    return ResidentNoise(BABBLE, config.speech.talkers, WHITE, config.speech.train_snr)


def train_network(
    study: Study,
    config: StudyConfig,
    stage: str,
    kind: str,
    plan: NetworkPlan,
    prepare: Callable[[Any], None] = lambda network: None,
) -> dict[str, Any]:
    """Trains the network of a stage on the source speech; `prepare` is called with it before its first step."""
    role = "transducer" if kind == "rnnt" else "attention"
    tokenizer = study_tokenizer(study).for_role(role)  # type: ignore[arg-type]
    frontend = _frontend(network_config(kind, plan).encoder)
    noise, device = training_noise(config), study.device
    audio = resident_part(study, "train", device)
    hours = audio.hours
    if config.recordings.active:
        heard = config.recordings
        audio = copies(audio, heard.speeds, heard.telephone, heard.joined, config.seed)
        if spoken_too := synthetic_study(heard):
            audio = audio.followed_by(resident_shards(spoken_too / "speech" / "train", device))
    masks = None if plan.masks is None else options_of(SpecAugment, plan.masks, "masks")
    held_out = ResidentSource(
        resident_part(study, "held-out", device),
        tokenizer,
        frontend,
        plan.batch,
        None if config.recordings.active else noise,
        shuffle=False,
    )
    kept = list(held_out)  # with noise, where it is synthetic, the same at every look
    file = study.folder(stage) / "model.safetensors"
    course = Course(
        plan=plan,
        objective=lambda: _objective(study, config, kind, plan, tokenizer.tokens, prepare),
        source=lambda: ResidentSource(
            audio,
            tokenizer,
            frontend,
            plan.batch,
            noise,
            masks,
            easy_first=plan.easy_first,
            few_shapes=device.startswith("cuda"),
            seed=config.seed,
        ),
        held_out=lambda: kept,
        export=lambda model: _export(file, model, tokenizer, frontend, plan),
        perplexity=_unwatched if plan.loss.get("ctc_only") else _watch(study, tokenizer),
        seed=config.seed,
    )
    keep_earlier_journal(study.folder(stage), kind, plan)
    facts = run_course(study, stage, course)
    return facts | {"hours": round(hours, 2)}


def _export(file: Path, model: Any, tokenizer: Any, frontend: FrontendConfig, plan: NetworkPlan) -> None:
    """The model as it recognises: without the CTC layer, which only training uses, unless that is what was trained."""
    save_model(file, model, tokenizer, frontend)
    if model.ctc is None or plan.loss.get("ctc_only"):
        return
    tensors, header = read_tensors(file)
    about = json.loads(header["ilme"])
    about["config"]["ctc"] = False
    kept = {name: value for name, value in tensors.items() if not name.startswith("ctc.")}
    write_tensors(file, kept, {**header, "ilme": json.dumps(about)})


def _inputs_of_recordings(config: StudyConfig) -> dict[str, Any]:
    """What a study on recordings does to its training speech, and the weights it starts from."""
    plan = config.recordings
    weights = file_digest(find_file(plan, plan.whisper)) if plan.whisper else ""
    changed = {"speeds": plan.speeds, "telephone": plan.telephone, "joined": plan.joined, "noise": plan.noise}
    return changed | {"whisper": weights}


def _frontend(encoder: EncoderConfig) -> FrontendConfig:
    """80 log-mels each 10 ms, stacked to what the encoder reads; Whisper layers read Whisper's own."""
    if encoder.whisper.layers:
        return FrontendConfig(kind="whisper", stack=1, stride=1, normalisation="none")
    stack = encoder.features // FrontendConfig.mel_bins
    return FrontendConfig(stack=stack, stride=stack)


def _objective(
    study: Study, config: StudyConfig, kind: str, plan: NetworkPlan, tokens: Any, prepare: Callable[[Any], None]
) -> Objective:
    network = fresh_network(kind, plan, tokens, config.seed)
    if network.encoder.whisper is not None and config.recordings.whisper:
        load_whisper_encoder(network.encoder.whisper, find_file(config.recordings, config.recordings.whisper))
    if plan.encoder_from:
        start_from(network, WarmStart(str(study.folder(plan.encoder_from) / "model.safetensors"), ("encoder.*",)))
    prepare(network)
    if kind == "rnnt":
        return RnntObjective(network, options_of(RnntOptions, plan.loss, "loss"))
    return AedObjective(network, options_of(AedOptions, plan.loss, "loss"))


def _unwatched(model: Any) -> dict[str, float]:
    """Of a CTC layer: its frames know no labels before them, so that there is nothing that learns text."""
    return {}


def _watch(study: Study, tokenizer: Any) -> Any:
    """Perplexity of the internal LM on held-out text of both domains, beside the source LM's."""
    ids = {}
    for domain in ("source", "target"):
        sentences = read_lines(study.folder("text") / f"{domain}-held-out.txt")[:_WATCHED]
        ids[domain] = tokenizer.encode_many(sentences)
    source_lm = load_checkpoint(study.folder("lm-source") / "model.safetensors", expect="lm", device=study.device).model
    reference = internal_lm_perplexity(source_lm, ids["source"])

    def measure(model: Any) -> dict[str, float]:
        return {
            "ilm_ppl": internal_lm_perplexity(model, ids["source"]),
            "ilm_ppl_target": internal_lm_perplexity(model, ids["target"]),
            "source_lm_ppl": reference,
        }

    return measure
