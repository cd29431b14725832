"""The stages `tune-MODEL-SETTING` and `test-MODEL-SETTING`.

    cross: the target domain's dev and test, with the target LM       (Tables 1 and 2 of the paper)
    intra: the source domain's dev and test, with the LM of both      (Tables 3 and 4)
    calls: a second target domain's dev and test, with its own LM     (studies on recordings)

Methods differ in what is subtracted, and in nothing else: the same dev set, decodes, beam and length treatment for
each of them, the baseline included.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

from ilme.data.utterances import Utterance, in_memory, read_utterances, references_of
from ilme.evaluation.metrics import ErrorCounts, measure
from ilme.evaluation.results import Results, System
from ilme.evaluation.tuning_result import Method, TuningResult, TuningStep
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import Parts, load_recogniser, parts_for
from ilme.recogniser.options import Options
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_json
from ilme.search.attention import AttentionOptions
from ilme.search.ctc import CTCOptions
from ilme.search.transducer import TransducerOptions
from ilme.study.config import DecodingPlan, StudyConfig
from ilme.study.internal import LEARNED, learned_file
from ilme.study.language import CE
from ilme.study.runner import Stage, Study, used_fields
from ilme.study.side_by_side import side_by_side
from ilme.study.synthesis import RATE
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.evaluate import Plan, evaluate_decoder
from ilme.workflows.tune import tune_decoder

__all__ = ["beam_hint", "decoding_stages", "search_options", "setting_domain", "system_parts"]

Setting = Literal["cross", "intra", "calls", "cross-ce", "intra-ce"]

LATER = ("aed_look_back", "aed_enough")  # fields that older studies had not
BEAMS_AGREE = 0.05  # share by which dev may have more errors at the tables' beam than at the tuning's


def decoding_stages(config: StudyConfig) -> list[Stage]:
    plan = config.decoding
    inputs = {"plan": used_fields(plan, LATER), "seed": config.seed}
    stages = []
    for setting in plan.settings:
        for model in config.networks:
            methods = config.system(model).methods
            learned = (f"ilm-{model}",) if LEARNED in methods else ()
            reads = inputs if model in plan.models else {**inputs, "methods": list(methods)}
            needs = (_sets(config), "tokenizer", model, _source_lm(setting), f"lm-{_lm(setting)}", "ngrams", *learned)
            name = f"{model}-{setting}"
            stages.append(
                Stage(
                    f"tune-{name}",
                    lambda study, m=model, s=setting: _tune(study, config, m, s),  # type: ignore[misc]
                    needs,
                    reads,
                    resumes=True,
                )
            )
            stages.append(
                Stage(
                    f"test-{name}",
                    lambda study, m=model, s=setting: _test(study, config, m, s),  # type: ignore[misc]
                    (*needs, f"tune-{name}"),
                    reads,
                    resumes=True,
                )
            )
    return stages


def setting_domain(setting: str) -> str:
    """A further target domain has the name of its setting."""
    return {"cross": "target", "intra": "source"}.get(setting.removesuffix(CE), setting)


def _lm(setting: str) -> str:
    name = {"cross": "target", "intra": "mixed"}.get(setting.removesuffix(CE), setting)
    return name + CE if setting.endswith(CE) else name


def _source_lm(setting: str) -> str:
    return f"lm-source{CE}" if setting.endswith(CE) else "lm-source"


def system_parts(study: Study, model: str, setting: str, method: str) -> Parts:
    """Which files take part: the method decides what is subtracted."""
    with_its_lm = study.folder(model) / f"{setting}.safetensors"  # where the LM inside is replaced for the setting
    return parts_for(
        method,
        str(with_its_lm if with_its_lm.is_file() else study.folder(model) / "model.safetensors"),
        str(study.folder(f"lm-{_lm(setting)}") / "model.safetensors"),
        source_lm=str(study.folder(_source_lm(setting)) / "model.safetensors"),
        bigram=str(study.folder("ngrams") / "source.safetensors"),
        learned=str(learned_file(study, model)),
        device=study.device,
    )


def _recogniser(config: StudyConfig, network: str, parts: Parts) -> Recogniser:
    system = config.system(network)
    options = {"head": system.head} if system.head else {}
    return load_recogniser(parts, search_options(config.decoding, system.head or system.model), options)


def search_options(plan: DecodingPlan, model: str) -> Options:
    """The same for every method."""
    kept = min(plan.nbest, plan.beam)
    if model == "ctc":
        return CTCOptions(beam=plan.beam, nbest=kept, labels_per_second=plan.labels_per_second)
    if model == "rnnt":
        return TransducerOptions(
            beam=plan.beam, nbest=kept, max_symbols=plan.max_symbols, labels_per_second=plan.labels_per_second
        )
    return AttentionOptions(
        beam=plan.beam,
        nbest=kept,
        max_length=plan.max_length,
        length_normalisation=plan.aed_normalisation,
        max_repeats=plan.max_repeats,
        look_back=plan.aed_look_back,
        stop_after=min(plan.aed_enough, kept),
        labels_per_second=plan.labels_per_second,
    )


def _options(plan: DecodingPlan, device: str) -> DecodingOptions:
    seconds = 1e9 if device.startswith("cuda") else 30.0 * plan.batch
    return DecodingOptions(seconds, plan.batch, "device")


def _sets(config: StudyConfig) -> str:
    """The stage that makes dev and test sets."""
    return "speech" if config.recordings.active else "sets"


def _loaded(study: Study, config: StudyConfig, domain: str, part: str) -> tuple[list[Utterance], list[Utterance]]:
    """A set as it stands in its manifest, and the same with the audio in memory."""
    listed = read_utterances(study.folder(_sets(config)) / f"{domain}-{part}")
    return listed, in_memory(listed, RATE)


def _decoder(
    study: Study, config: StudyConfig, recogniser: Recogniser, utterances: list[Utterance], parts: Parts, folder: Path
) -> SearchDecoder:
    about = {k: Path(v).parent.name if "/" in v else v for k, v in asdict(parts).items() if k != "device"}
    return SearchDecoder(
        recogniser, utterances, folder=folder, about=about, options=_options(config.decoding, study.device)
    )


class _Heard:
    """What the encoder made of a set: every method decodes the same."""

    def __init__(self) -> None:
        self._first: SearchDecoder | None = None

    def shared(self, decoder: SearchDecoder) -> SearchDecoder:
        """The decoder, with the encoder outputs of the first one that came."""
        if self._first is None:
            self._first = decoder
        return decoder.reuse(self._first)


def _tune(study: Study, config: StudyConfig, model: str, setting: Setting) -> dict[str, Any]:
    """METHOD.json for each method: weights found on dev, and everything that says how far to trust them."""
    methods = config.system(model).methods
    files = {method: _tuning_file(study, model, setting, method) for method in methods}
    left = [method for method in methods if not files[method].is_file()]
    side_by_side(study, config, _tune_methods, [(model, setting, (method,)) for method in left])
    _tune_methods(study, config, model, setting, [method for method in left if not files[method].is_file()])
    found = {method: TuningResult.load(file) for method, file in files.items()}
    return {method: f"{result.dev.rate:.2f} ({_weights(result.weights)})" for method, result in found.items()}


def _tuning_file(study: Study, model: str, setting: Setting, method: str) -> Path:
    return study.folder(f"tune-{model}-{setting}") / f"{method}.json"


def _tune_methods(study: Study, config: StudyConfig, model: str, setting: Setting, methods: Sequence[str]) -> None:
    plan, folder = config.decoding, study.folder(f"tune-{model}-{setting}")
    if not methods:
        return
    _, dev = _loaded(study, config, setting_domain(setting), "dev")
    kind = config.system(model).model
    length = plan.rnnt_length if kind == "rnnt" else plan.aed_length
    heard = _Heard()
    for method in methods:
        study.check_time(f"tuning {method} of {model}, {setting}-domain")
        parts = system_parts(study, model, setting, method)
        recogniser = _recogniser(config, model, parts)
        options = TuningOptions(
            method=cast(Method, method),
            space=WeightSpace(lm=plan.lm, subtracted=plan.subtracted, length=length),
            background=plan.background,
            beam=plan.tuning_beam or plan.beam,
            max_decodes=plan.decodes,
            replicates=plan.replicates,
            seed=config.seed,
        )
        decoder = heard.shared(_decoder(study, config, recogniser, dev, parts, folder / "decodes" / method))
        found = tune_decoder(
            decoder,
            recogniser,
            dev,
            options,
            lambda step, method=method: _say_step(study, model, method, step),  # type: ignore[misc]
        )
        found.save(_tuning_file(study, model, setting, method))
        for hint in found.hints:
            study.say(f"  {model} {method}: {hint}")


def _say_step(study: Study, model: str, method: str, step: TuningStep) -> None:
    study.say(f"  {model} {method} {_weights(step.weights)}: dev WER {step.counts.rate:.2f}")


def _weights(weights: FusionWeights) -> str:
    share = f", ε {weights.background:g}" if weights.background else ""
    return f"λ {weights.lm:.3f}, μ {weights.subtracted:.3f}, β {weights.length:.2f}{share}"


def _test(study: Study, config: StudyConfig, model: str, setting: Setting) -> dict[str, Any]:
    """results.json: dev and test of every method at the tables' beam, with the weights that dev chose."""
    methods, folder = config.system(model).methods, study.folder(f"test-{model}-{setting}")
    left = [method for method in methods if not _clock(folder, method).is_file()]
    side_by_side(study, config, _test_methods, [(model, setting, (method,)) for method in left])
    listed, systems = _test_methods(study, config, model, setting, methods)  # decodes that are stored take no time
    results = Results(f"{config.name}, {setting}-domain", "none", references_of(_named(listed)), tuple(systems))
    results.save(folder / "results.json")
    return {m: f"{results.measurements[f'{model} {m}'].rate:.2f}" for m in methods}


def _test_methods(
    study: Study, config: StudyConfig, model: str, setting: Setting, methods: Sequence[str]
) -> tuple[list[Utterance], list[System]]:
    """The test set as it stands in its manifest, and what each method made of it."""
    plan, folder, domain = config.decoding, study.folder(f"test-{model}-{setting}"), setting_domain(setting)
    _, dev = _loaded(study, config, domain, "dev")
    listed, test = _loaded(study, config, domain, "test")
    systems: list[System] = []
    heard = {"dev": _Heard(), "test": _Heard()}
    for method in methods:
        study.check_time(f"decoding {method} of {model}, {setting}-domain")
        tuning = TuningResult.load(_tuning_file(study, model, setting, method))
        parts = system_parts(study, model, setting, method)
        recogniser = _recogniser(config, model, parts)
        decoder = heard["dev"].shared(_decoder(study, config, recogniser, dev, parts, folder / "dev" / method))
        lists = decoder.decode(tuning.weights, plan.beam)
        dev_errors = measure({u.id: u.text for u in dev}, {i: n[0].text for i, n in lists.items()}).total
        task = replace(Plan(model, method, details=plan.details).tuned(tuning), beam=plan.beam)
        decoder = heard["test"].shared(_decoder(study, config, recogniser, test, parts, folder / "test" / method))
        system = evaluate_decoder(task, recogniser, decoder, test)
        seconds = _first_time(_clock(folder, method), system.seconds)
        systems.append(replace(system, dev_wer=round(dev_errors.rate, 4), seconds=seconds))
        study.say(f"  {model} {method} {_weights(tuning.weights)}: dev {dev_errors.rate:.2f}")
        if hint := beam_hint(tuning.dev, tuning.beam, dev_errors, plan.beam):
            study.say(f"  {model} {method}: {hint}")
    return listed, systems


def beam_hint(tuned: ErrorCounts, tuning_beam: int, dev: ErrorCounts, beam: int) -> str | None:
    """What to do where weights that are good at the tuning's beam are not at the tables'; None: they are."""
    if dev.errors <= (1 + BEAMS_AGREE) * tuned.errors:
        return None
    return (
        f"dev has {dev.rate:.2f} % errors at beam {beam}, and {tuned.rate:.2f} % at beam {tuning_beam}, where the "
        f"weights were found: tune every method anew with decoding.tuning_beam={beam}"
    )


def _clock(folder: Path, method: str) -> Path:
    return folder / f"{method}-seconds.json"


def _first_time(file: Path, seconds: float) -> float:
    """What the decode took when it was really done: a decode taken from the store takes no time."""
    if not file.is_file():
        write_json(file, {"seconds": seconds}, indent=None)
    return float(json.loads(file.read_text())["seconds"])


def _named(utterances: list[Utterance]) -> list[Utterance]:
    """With the audio's path inside its set, so that results do not depend on where the study lies."""
    return [replace(u, audio=f"{Path(u.audio).parent.name}/{Path(u.audio).name}") for u in utterances]
