"""Whisper with an LM: word errors of each internal LM on real speech, and time against `transformers`' own search.

python benchmarks/whisper.py accuracy --model tiny.en.pt --lm novels.safetensors --speech librispeech-dev-clean \
    --limit 300 --json benchmarks/results/whisper-librispeech.json
python benchmarks/whisper.py speed --model tiny.en.pt --lm novels.safetensors --speech librispeech-dev-clean --count 10

Weights are tuned on the split `tune`; the split `test`, other speakers, is decoded once with each. Every method gets
the same guards (length normalisation, repetition, longest output, end margin). Errors are counted after Whisper's own
normaliser. An LM over Whisper's tokens is what `ilme adapt` leaves as lm.safetensors.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from timing import fastest, machine

from ilme.adapters.hf import TransformerAED
from ilme.adapters.loading import load_attention_model
from ilme.adapters.recognition import SEARCH, AdaptedRecogniser, EncoderCache, search_options
from ilme.decoding.decoder import DecodingOptions, SearchDecoder
from ilme.decoding.loading import load_scorer
from ilme.decoding.utterances import Utterance, read_utterances
from ilme.domain.adapt import calibrate
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.fusion import FusionWeights
from ilme.ilm.transformer import ESTIMATORS, estimate
from ilme.protocols import TokenScorer
from ilme.tuning.result import TuningResult, TuningStep
from ilme.tuning.tuner import TuningOptions, tune

CALIBRATION = 40  # utterances that internal LMs are averaged over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "speed"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--lm", default="", help="LM over the model's tokens; without it only BS is measured")
    parser.add_argument("--speech", type=Path, required=True, help="folder or manifest with splits")
    parser.add_argument("--splits", nargs=2, default=["tune", "test"])
    parser.add_argument("--limit", type=int, default=0, help="utterances of each split, drawn at random; 0 takes all")
    parser.add_argument("--count", type=int, default=10, help="utterances that are timed")
    parser.add_argument("--internal", nargs="+", default=list(ESTIMATORS))
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--decodes", type=int, default=4, help="decodes of tune for each method")
    parser.add_argument("--fixed", nargs="+", default=[], help="NAME:λ:μ, such as SF:0.1:0 silence:0.2:0.15: no tuning")
    parser.add_argument("--end-margin", type=float, default=SEARCH.end_margin)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_attention_model(args.model, args.device)
    lm = load_scorer(args.lm, model.tokens, args.device) if args.lm else None
    found = (accuracy if args.what == "accuracy" else speed)(args, model, lm)
    report = {"command": " ".join(sys.argv), "commit": commit(), "seed": args.seed, "machine": machine(), **found}
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def sample(args: argparse.Namespace, split: str, count: int) -> list[Utterance]:
    utterances = read_utterances(args.speech, split=split)
    if not count or len(utterances) <= count:
        return utterances
    return [utterances[i] for i in sorted(random.Random(args.seed).sample(range(len(utterances)), count))]


def accuracy(args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None) -> dict[str, Any]:
    """WER of BS, SF and ILME with each internal LM on test, weights from tune."""
    if model.device.type == "cpu":
        model.pack()
    options = replace(search_options(args.beam), end_margin=args.end_margin)
    sets = {split: sample(args, split, args.limit) for split in args.splits}
    if args.fixed:
        sets[args.splits[0]] = sets[args.splits[0]][:CALIBRATION]  # nothing is tuned: it only calibrates
    caches = {split: EncoderCache() for split in sets}

    def decoder(split: str, internal: TokenScorer | None) -> SearchDecoder:
        recogniser = AdaptedRecogniser(model, lm=lm, subtracted=internal, options=options, cache=caches[split])
        batches = DecodingOptions(batch_seconds=960 if args.device == "cuda" else 120, batch_size=64, cache="none")
        return SearchDecoder(recogniser, sets[split], options=batches)

    def measured(split: str, internal: TokenScorer | None, weights: FusionWeights) -> Measurement:
        lists = decoder(split, internal).decode(weights, args.beam)
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        return measure(
            {u.id: u.text for u in sets[split]},
            texts,
            speakers={u.id: u.speaker for u in sets[split]},
            normaliser_name="whisper",
        )

    dev, test = args.splits
    first = decoder(dev, None).decode(FusionWeights(), args.beam)
    calibration = calibrate(model, sets[dev][:CALIBRATION], first, caches[dev])
    systems: dict[str, TokenScorer | None] = {"BS": None}
    given: dict[str, FusionWeights] = {"BS": FusionWeights()} if args.fixed else {}
    for item in args.fixed:
        kind, added, removed = item.split(":")
        name = kind if kind == "SF" else f"ILME {kind}"
        given[name] = FusionWeights(lm=float(added), subtracted=float(removed))
        systems[name] = None if kind == "SF" else estimate(kind, model, calibration)
    if lm is not None and not args.fixed:
        systems |= {"SF": None} | {f"ILME {n}": estimate(n, model, calibration) for n in args.internal}
    rows: dict[str, dict[str, Any]] = {}
    results: dict[str, Measurement] = {}
    for name, internal in systems.items():
        began = time.perf_counter()
        tuned = None if name in given else tuned_weights(args, decoder(dev, internal), sets[dev], name)
        weights = given[name] if tuned is None else tuned.weights
        results[name] = measured(test, internal, weights)
        rows[name] = row(results, name) | {"weights": asdict(weights)}
        if tuned is not None:
            rows[name] |= {"tune WER": round(tuned.dev.rate, 3), "tune decodes": [step_row(s) for s in tuned.steps]}
        rows[name]["seconds"] = round(time.perf_counter() - began, 1)
        print(name, json.dumps(rows[name], ensure_ascii=False), file=sys.stderr, flush=True)
    examples = changed(results, sets[test])
    return {"search": {k: str(v) for k, v in asdict(options).items()}, "systems": rows, "examples": examples}


def tuned_weights(
    args: argparse.Namespace, decoder: SearchDecoder, utterances: list[Utterance], name: str
) -> TuningResult:
    method: Any = name.split()[0]
    options = TuningOptions(
        method=method,
        beam=args.beam,
        max_decodes=args.decodes if method != "BS" else 1,
        normaliser="whisper",
        length_exponent=SEARCH.length_normalisation,
        replicates=0,
        seed=args.seed,
    )
    return tune(decoder, {u.id: u.text for u in utterances}, options=options)


def step_row(step: TuningStep) -> dict[str, Any]:
    return {"weights": asdict(step.weights), "WER": round(step.counts.rate, 3), **asdict(step.counts)}


def row(results: dict[str, Measurement], name: str) -> dict[str, Any]:
    """WER with its interval, kinds of errors, and the paired comparisons with BS and SF."""
    measured = results[name]
    interval = bootstrap_interval(measured)
    out: dict[str, Any] = {
        "WER": round(measured.rate, 3),
        "95 %": [round(interval.low, 2), round(interval.high, 2)],
        "utterances": len(measured.utterances),
        **asdict(measured.total),
    }
    for other in ("BS", "SF"):
        if other in results and other != name:
            pair = compare(name, measured, other, results[other])
            out[f"against {other}"] = {
                "relative %": round(-pair.relative, 2),
                "p bootstrap": round(pair.p_bootstrap, 5),
                "p MAPSSWE": None if pair.p_mapsswe is None else round(pair.p_mapsswe, 5),
            }
    return out


def changed(results: dict[str, Measurement], utterances: list[Utterance], count: int = 10) -> list[dict[str, Any]]:
    """Sentences that the best fused system and BS recognise differently, in the order of the set."""
    fused = [name for name in results if name.startswith("ILME")] or [n for n in results if n != "BS"]
    if not fused:
        return []
    best = min(fused, key=lambda name: results[name].rate)
    pairs = zip(results["BS"].utterances, results[best].utterances, strict=True)
    different = [(a, b) for a, b in pairs if a.hypothesis != b.hypothesis]
    return [
        {"id": a.id, "reference": a.reference, "BS": a.hypothesis, best: b.hypothesis} for a, b in different[:count]
    ]


def speed(args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None) -> dict[str, Any]:
    """CPU seconds per second of audio: `generate` and our search without LM, with SF, with ILME; encoder included."""
    from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, SuppressTokensLogitsProcessor

    utterances = sample(args, args.splits[0], args.count)
    audio = [u.samples(16_000) for u in utterances]
    seconds = sum(map(len, audio)) / 16_000
    never = torch.isinf(model.allowed).nonzero().flatten().tolist()
    config = GenerationConfig(
        num_beams=args.beam,
        max_new_tokens=224,
        eos_token_id=model.tokens.eos,
        pad_token_id=model.tokens.eos,
        decoder_start_token_id=model.tokens.sos,
    )

    @torch.inference_mode()
    def generate() -> list[str]:
        texts = []
        for samples in audio:
            features, _ = model.features([samples])
            out = GenerationMixin.generate(
                model.model,  # type: ignore[attr-defined]
                features.to(model.device),
                decoder_input_ids=torch.tensor([model.prefix], device=model.device),
                logits_processor=LogitsProcessorList([SuppressTokensLogitsProcessor(never, str(model.device))]),
                generation_config=config,
            )
            texts.append(model.tokenizer.decode(out[0].tolist()))
        return texts

    def ours(weights: FusionWeights, internal: TokenScorer | None) -> Any:
        recogniser = AdaptedRecogniser(model, lm=lm, subtracted=internal, options=search_options(args.beam))
        return lambda: [
            recogniser.search(recogniser.encode([samples]), weights, args.beam)[0][0].text for samples in audio
        ]

    rows: dict[str, Any] = {}
    took, reference = fastest(generate, 2)
    rows["transformers generate"] = {"CPU s per s of audio": round(took / seconds, 4)}
    if model.device.type == "cpu":
        model.pack()
    systems: dict[str, tuple[FusionWeights, TokenScorer | None]] = {"BS": (FusionWeights(), None)}
    if lm is not None:
        systems["SF"] = (FusionWeights(lm=0.1), None)
        for name in args.internal:
            estimator = name if name in ("removed", "zeroed", "silence") else ""
            if estimator:
                systems[f"ILME {name}"] = (FusionWeights(lm=0.2, subtracted=0.15), estimate(estimator, model))
    for name, (weights, internal) in systems.items():
        took, texts = fastest(ours(weights, internal), 2)
        rows[name] = {"CPU s per s of audio": round(took / seconds, 4)}
        if name == "BS":
            rows[name]["same text as generate"] = sum(a == b for a, b in zip(texts, reference, strict=True))
    base = rows["BS"]["CPU s per s of audio"]
    for found in rows.values():
        found["times our BS"] = round(found["CPU s per s of audio"] / base, 3)
    return {"utterances": len(audio), "seconds of audio": round(seconds, 1), "beam": args.beam, "systems": rows}


if __name__ == "__main__":
    main()
