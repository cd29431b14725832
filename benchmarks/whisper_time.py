"""Time of Whisper's searches: CPU seconds of one utterance at a time, and utterances a second by batch size.

`benchmarks.whisper speed` and `throughput` call this.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import fastest
from benchmarks.whisper_sets import in_memory, note, sample
from ilme.adapters.hf import TransformerAED
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.protocols import TokenScorer
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser


def speed(args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None) -> dict[str, Any]:
    """CPU seconds per second of audio: `generate` and our search without LM, with SF, with ILME; encoder included."""
    audio = [u.samples(16_000) for u in sample(args, args.splits[0], args.count)]
    seconds = sum(map(len, audio)) / 16_000

    rows: dict[str, Any] = {}
    took, reference = fastest(lambda: [generate(model, [samples], args.beam)[0] for samples in audio], 2)
    rows["transformers generate"] = {"CPU s per s of audio": round(took / seconds, 4)}
    if model.device.type == "cpu":
        model.pack()
    for name, (weights, internal) in timed_systems(args, model, lm).items():
        search = our_search(args, model, lm, weights, internal)
        took, texts = fastest(lambda search=search: [search([samples])[0] for samples in audio], 2)  # type: ignore[misc]
        rows[name] = {"CPU s per s of audio": round(took / seconds, 4)}
        if name == "BS":
            rows[name]["same text as generate"] = sum(a == b for a, b in zip(texts, reference, strict=True))
    base = rows["BS"]["CPU s per s of audio"]
    for found in rows.values():
        found["times our BS"] = round(found["CPU s per s of audio"] / base, 3)
    return {"utterances": len(audio), "seconds of audio": round(seconds, 1), "beam": args.beam, "systems": rows}


def throughput(args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None) -> dict[str, Any]:
    """Utterances a second of wall time, features and encoder included, at each batch size; audio is in memory."""
    if args.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    rows: dict[str, Any] = {}
    systems = timed_systems(args, model, lm)
    for size in args.batches:
        drawn = in_memory(sample(args, args.splits[0], min(args.count, 8 if size == 1 else 2 * size)), 16)
        drawn = sorted((u for u in drawn if u.seconds <= model.window), key=lambda u: -u.seconds)
        groups = [[u.audio for u in drawn[i : i + size]] for i in range(0, len(drawn), size)]
        seconds = {name: wall(our_search(args, model, lm, *parts), groups) for name, parts in systems.items()}
        seconds["transformers generate"] = wall(lambda group: generate(model, group, args.beam), groups)
        rows[f"batch {size}"] = {
            name: {
                "utterances a second": round(len(drawn) / took, 2),
                "seconds of audio a second": round(sum(u.seconds for u in drawn) / took, 1),
                "times our BS": round(took / seconds["BS"], 3),
            }
            for name, took in seconds.items()
        } | {"utterances": len(drawn)}
        note(f"batch {size}: {json.dumps(rows[f'batch {size}'])}")
    return {"beam": args.beam, "throughput": rows}


def our_search(
    args: argparse.Namespace,
    model: TransformerAED,
    lm: TokenScorer | None,
    weights: FusionWeights,
    internal: TokenScorer | None,
) -> Callable[[list[Any]], list[str]]:
    """From the waveforms of a batch to their texts."""
    recogniser = Recogniser(model, lm=lm, subtracted=internal, options=default_options(model, args.beam))
    return lambda audio: [nbest[0].text for nbest in recogniser.search(recogniser.encode(audio), weights, args.beam)]


def wall(work: Callable[[list[Any]], list[str]], groups: list[list[Any]]) -> float:
    """Wall seconds of the work on every group, after the first group has warmed everything up."""
    work(groups[0])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    for group in groups:
        work(group)  # texts are read back, so nothing is still running at its end
    return time.perf_counter() - began


def timed_systems(
    args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None
) -> dict[str, tuple[FusionWeights, TokenScorer | None]]:
    systems: dict[str, tuple[FusionWeights, TokenScorer | None]] = {"BS": (FusionWeights(), None)}
    if lm is not None:
        systems["SF"] = (FusionWeights(lm=0.1), None)
        weights = FusionWeights(lm=0.2, subtracted=0.15)
        kinds = [name for name in args.internal if internal_lm.needs(model, name) == "nothing"]
        systems |= {f"ILME {name}": (weights, internal_lm(model, name)) for name in kinds}
    return systems


@torch.inference_mode()
def generate(model: TransformerAED, audio: list[Any], beam: int) -> list[str]:
    """What `transformers` writes for one batch, with the same suppressed tokens."""
    from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, SuppressTokensLogitsProcessor

    never = torch.isinf(model.allowed).nonzero().flatten().tolist()
    config = GenerationConfig(
        num_beams=beam,
        max_new_tokens=224,
        eos_token_id=model.tokens.eos,
        pad_token_id=model.tokens.eos,
        decoder_start_token_id=model.tokens.sos,
    )
    features, _ = model.features(audio)
    out = GenerationMixin.generate(
        model.model,  # type: ignore[attr-defined]
        features.to(model.device),
        decoder_input_ids=torch.tensor([model.prefix] * len(audio), device=model.device),
        logits_processor=LogitsProcessorList([SuppressTokensLogitsProcessor(never, str(model.device))]),
        generation_config=config,
    )
    return [model.tokenizer.decode(row.tolist()) for row in out]
