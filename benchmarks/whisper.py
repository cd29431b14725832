"""Whisper with an LM: word errors of each internal LM on real speech, and time against `transformers`' own search.

python -m benchmarks.whisper accuracy --model tiny.en.pt --lm novels.safetensors --speech librispeech-dev-clean \
    --work out/whisper --json docs/results/data/whisper-librispeech.json
python -m benchmarks.whisper report --speech librispeech-dev-clean --work out/whisper --json …
python -m benchmarks.whisper speed --model tiny.en.pt --lm novels.safetensors --speech librispeech-dev-clean --count 10
python -m benchmarks.whisper throughput --device cuda …

Weights are tuned on the split `tune`; the split `test`, other speakers, is decoded once with each. Every method gets
the same guards (length normalisation, repetition, longest output, certain end) and as many decodes of tune. Errors are
counted after Whisper's own normaliser. An LM over Whisper's tokens is what `ilme adapt` leaves as lm.safetensors, or
what `benchmarks.whisper_lm` trains.

Each system is written to --work as soon as it is finished and is not made again, so several processes may share the
systems, and one that was killed goes on; `report` puts together what is there.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import publish
from benchmarks.whisper_sets import (
    STARTED,
    ListDecoder,
    Texts,
    WholeSequences,
    calibration_of,
    in_memory,
    joined,
    note,
    punctuation,
    sample,
    windowed,
)
from benchmarks.whisper_time import speed, throughput
from ilme.adapters.hf import TransformerAED
from ilme.evaluation.metrics import Measurement, UtteranceErrors, measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.evaluation.tuning_result import TuningResult, TuningStep
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.lm.mixture import MixtureScorer
from ilme.protocols import TokenScorer
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import TRANSFORMER
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_atomically
from ilme.tuning.tuner import TuningOptions, tune
from ilme.tuning.weight_search import WeightSpace

WORK = "out/whisper-accuracy"  # where finished systems are kept by default
INTERNAL = ("removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned")
SPACE = WeightSpace(lm=(0.0, 0.8), subtracted=(0.0, 0.8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "report", "speed", "throughput"))
    parser.add_argument("--model", default="", help="needed for all but report")
    parser.add_argument("--lm", default="", help="LM over the model's tokens; without it only BS is measured")
    parser.add_argument("--ngram", default="", help="a second LM, mixed into --lm")
    parser.add_argument("--ngram-weight", type=float, default=0.2)
    parser.add_argument("--speech", type=Path, required=True, help="folder or manifest with splits")
    parser.add_argument("--splits", nargs=2, default=["tune", "test"])
    parser.add_argument("--limit", type=int, default=0, help="utterances of each split, drawn at random; 0 takes all")
    parser.add_argument("--test-limit", type=int, help="those of the second split, where it is another number")
    parser.add_argument("--count", type=int, default=10, help="utterances that are timed")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64], help="sizes for throughput")
    parser.add_argument("--internal", nargs="*", default=list(INTERNAL))
    parser.add_argument("--without", nargs="*", default=[], help="systems that another process makes, such as SF")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16, help="utterances that are searched at once")
    parser.add_argument("--decodes", type=int, default=4, help="decodes of tune for each method")
    parser.add_argument("--calibration", type=int, default=40, help="utterances that internal LMs are averaged over")
    parser.add_argument("--fixed", nargs="+", default=[], help="NAME:λ:μ, such as SF:0.1:0 silence:0.2:0.15: no tuning")
    parser.add_argument("--end-margin", type=float, default=TRANSFORMER.end_margin)
    parser.add_argument("--certain-end", type=float, default=TRANSFORMER.certain_end)
    parser.add_argument("--fold", action="store_true", help="the LM is of folded text: it hears no case and no commas")
    parser.add_argument("--no-lm-end", action="store_true", help="the end of a text is scored by the model alone")
    parser.add_argument("--ignore-punctuation", action="store_true", help="when repetitions are counted")
    parser.add_argument("--seconds", type=float, default=0.0, help="no system is begun later than this; 0: no limit")
    parser.add_argument("--work", type=Path, help="where finished systems are kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--workers", type=int, default=0, help="processes that normalise texts; 0: one for each core")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "report":
        publish(report(args), args.json, seed=args.seed)
        return
    texts = Texts("whisper", args.workers) if args.what == "accuracy" else None  # before the device is touched
    torch.set_num_threads(args.threads)
    model = load_model(args.model, args.device)
    lm = read_lm(args, model)
    if texts is not None:
        accuracy(args, model, lm, texts)
        texts.close()
        if args.without:  # the process that makes the others reports, or `report` does
            return
        found = report(args)
    else:
        found = (speed if args.what == "speed" else throughput)(args, model, lm)
    device = {"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    publish(found, args.json, seed=args.seed, **device)


def read_lm(args: argparse.Namespace, model: TransformerAED) -> TokenScorer | None:
    if not args.lm:
        return None
    lm = load_lm(args.lm, model.tokens, args.device)
    if isinstance(lm, torch.nn.Module):
        lm.eval().requires_grad_(False)
    if args.ngram:
        other = load_lm(args.ngram, model.tokens, args.device)
        lm = MixtureScorer([lm, other], [1 - args.ngram_weight, args.ngram_weight], kind="linear")
    return FoldedScorer(lm, Folds(model.tokens, model.device)) if args.fold else lm


def accuracy(args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None, texts: Texts) -> None:
    """Makes the systems that are neither finished nor another process's, one file each."""
    work = args.work or Path(WORK)
    bench = Accuracy(args, model, lm, texts)
    for name, given in chosen_systems(args, lm).items():
        file = work / f"{name.replace(' ', '-')}.json"
        if file.exists() or name in args.without:
            continue
        if args.seconds and time.monotonic() - STARTED > args.seconds:
            note(f"no time is left for {name}")
            break
        row = bench.system(name, given)
        work.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(row, ensure_ascii=False).encode())
        note(f"{name}: weights {row['weights']}, {row['seconds']}")


class Accuracy:
    """What all systems share: both sets encoded, and the first split's lists without LM and references.

    Args:
        args: The program's options.
        model: The recogniser.
        lm: The external LM; None measures BS alone.
        texts: The normaliser.
    """

    def __init__(self, args: argparse.Namespace, model: TransformerAED, lm: TokenScorer | None, texts: Texts) -> None:
        self.args, self.model, self.lm, self.texts = args, model, lm, texts
        decoders = encoded_sets(args, model)
        self.dev, self.test = (decoders[split] for split in args.splits)
        note("audio encoded")
        if args.device.startswith("cuda"):
            torch.set_float32_matmul_precision("high")
        self.plain = ListDecoder(self.dev, texts).search(FusionWeights(), args.beam)
        note(f"{args.splits[0]} decoded without LM")
        self.scorers = {} if lm is None else {"lm": WholeSequences(lm, finish=not args.no_lm_end)}
        self.calibration = calibration_of(self.dev, self.plain, args.calibration)
        said = texts(u.text for u in self.dev.utterances)
        self.references = dict(zip((u.id for u in self.dev.utterances), said, strict=True))

    def system(self, name: str, weights: FusionWeights | None) -> dict[str, Any]:
        """Tunes a system on the first split, unless its weights are given, and decodes the second once."""
        began = time.monotonic()
        internal: TokenScorer | None = None
        if name.startswith("ILME"):
            internal = internal_lm(self.model, name.split()[1], calibration=self.calibration)
            if self.args.fold:
                internal = fold_internal(internal, Folds(self.model.tokens, self.model.device))
        tuned: TuningResult | None = None
        if weights is None:
            own = {} if internal is None else {"subtracted": WholeSequences(internal, finish=not self.args.no_lm_end)}
            dev = with_scorers(self.dev, self.lm, internal)
            listed = ListDecoder(dev, self.texts, self.plain, **self.scorers, **own)
            tuned = tuned_weights(self.args, listed, self.references, name)
            weights = tuned.weights
        tuning = round(time.monotonic() - began, 1)
        best = ListDecoder(with_scorers(self.test, self.lm, internal), self.texts).search(weights, self.args.beam)
        written = joined({i: nbest[0].text for i, nbest in best.items()})
        return {
            "system": name,
            "weights": asdict(weights),
            "tuning": None if tuned is None else tuning_row(tuned),
            "seconds": {"tuning": tuning, "all": round(time.monotonic() - began, 1)},
            "search": {k: str(v) for k, v in asdict(self.test.recogniser.options).items()},
            "texts": written,
            "normalised": dict(zip(written, self.texts(written.values()), strict=True)),
        }


def chosen_systems(args: argparse.Namespace, lm: TokenScorer | None) -> dict[str, FusionWeights | None]:
    """The systems in the order in which they are made, with their weights where these are given."""
    systems: dict[str, FusionWeights | None] = {"BS": FusionWeights()}
    for item in args.fixed:
        kind, added, removed = item.split(":")
        name = kind if kind == "SF" else f"ILME {kind}"
        systems[name] = FusionWeights(lm=float(added), subtracted=float(removed))
    if lm is not None and not args.fixed:
        systems |= {"SF": None} | {f"ILME {name}": None for name in args.internal}
    return systems


def limit(args: argparse.Namespace, split: str) -> int:
    """How many utterances of a split are used."""
    return int(args.limit if args.test_limit is None or split == args.splits[0] else args.test_limit)


def encoded_sets(args: argparse.Namespace, model: TransformerAED) -> dict[str, SearchDecoder]:
    """A decoder without scorers for each split, its audio encoded.

    What is longer than the model takes at once is left out of tune, and cut into windows in test.
    """
    if model.device.type == "cpu" and hasattr(model, "pack"):  # ONNX graphs run as they are
        model.pack()
    options = replace(
        TRANSFORMER,
        beam=args.beam,
        stop_after=args.beam,
        end_margin=args.end_margin,
        certain_end=args.certain_end,
        lm_eos=not args.no_lm_end,
        repeat_ignores=punctuation(model.tokenizer) if args.ignore_punctuation else (),
    )
    recogniser = Recogniser(model, options=options)
    batches = DecodingOptions(batch_seconds=args.batch * 31.0, batch_size=args.batch, cache="device")
    decoders = {}
    for split in args.splits:
        read = in_memory(sample(args, split, limit(args, split)), 16)
        used = (
            [u for u in read if u.seconds <= model.window] if split == args.splits[0] else windowed(read, model.window)
        )
        decoders[split] = SearchDecoder(recogniser, used, options=batches)
        for _ in decoders[split].encoded():
            pass
    return decoders


def with_scorers(decoder: SearchDecoder, lm: TokenScorer | None, internal: TokenScorer | None) -> SearchDecoder:
    """The same encoded set with another recogniser."""
    old = decoder.recogniser
    recogniser = Recogniser(old.model, lm=lm, subtracted=internal, options=old.options)
    return SearchDecoder(recogniser, decoder.utterances, options=decoder.options).reuse(decoder)


def tuned_weights(
    args: argparse.Namespace, decoder: ListDecoder, references: dict[str, str], name: str
) -> TuningResult:
    method: Any = name.split()[0]
    options = TuningOptions(
        method=method,
        space=SPACE,
        beam=args.beam,
        max_decodes=args.decodes,
        normaliser="none",  # both sides are normalised already
        length_exponent=TRANSFORMER.length_normalisation,
        replicates=0,
        grid=33,
        seed=args.seed,
    )
    return tune(decoder, references, options=options, on_step=lambda s: note(f"{name} {step_row(s)}"))


def tuning_row(tuned: TuningResult) -> dict[str, Any]:
    """What was measured on tune, and WER of all lists found there against λ_T, each with the best μ."""
    surface = tuned.heat_map
    best = [min(range(len(surface.wer)), key=lambda row: surface.wer[row][k]) for k in range(len(surface.lm))]
    return {
        "utterances": tuned.utterances,
        "WER": round(tuned.dev.rate, 3),
        "decodes": [step_row(s) for s in tuned.steps],
        "lists": {
            "λ_T": [round(x, 4) for x in surface.lm],
            "μ": [round(surface.subtracted[row], 4) for row in best],
            "WER": [round(surface.wer[row][k], 3) for k, row in enumerate(best)],
        },
        "seconds": round(tuned.seconds, 1),
    }


def report(args: argparse.Namespace) -> dict[str, Any]:
    """WER on test of every system that is finished; the internal LM is chosen by its errors on tune."""
    folder = args.work or Path(WORK)
    order = ["BS", "SF", *(f"ILME {name}" for name in INTERNAL)]
    found = {row["system"]: row for row in (json.loads(p.read_text(encoding="utf-8")) for p in folder.glob("*.json"))}
    found = {name: found[name] for name in order if name in found}
    if "BS" not in found:
        raise SystemExit(f"{folder} has no finished BS, only {sorted(found)}")
    utterances = sample(args, args.splits[1], limit(args, args.splits[1]))
    texts = Texts("whisper", args.workers)
    references = dict(zip((u.id for u in utterances), texts(u.text for u in utterances), strict=True))
    texts.close()
    speakers = {u.id: u.speaker for u in utterances}
    results = {
        name: measure(references, row["normalised"], speakers=speakers, normaliser_name="none")
        for name, row in found.items()
    }
    kept = ("weights", "tuning", "seconds")
    rows = {name: measured_row(results, name) | {key: found[name][key] for key in kept} for name in found}
    ranked = [name for name in found if name.startswith("ILME") and found[name]["tuning"]]
    chosen = min(ranked, key=lambda name: found[name]["tuning"]["WER"]) if ranked else None
    return {
        "normaliser": "whisper",
        "search": next(iter(found.values()))["search"],
        "chosen on tune": chosen,
        "systems": rows,
        "examples": examples(results, found, chosen),
    }


def step_row(step: TuningStep) -> dict[str, Any]:
    return {"weights": asdict(step.weights), "WER": round(step.counts.rate, 3), **asdict(step.counts)}


def measured_row(results: dict[str, Measurement], name: str) -> dict[str, Any]:
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


def changed(results: dict[str, Measurement], count: int = 10) -> list[dict[str, Any]]:
    """Sentences that the best fused system and BS recognise differently, in the order of the set."""
    fused = [name for name in results if name.startswith("ILME")] or [n for n in results if n != "BS"]
    if not fused:
        return []
    best = min(fused, key=lambda name: results[name].rate)
    return [
        {"id": a.id, "reference": a.reference, "BS": a.hypothesis, best: b.hypothesis}
        for a, b in differing(results, best)[:count]
    ]


def differing(results: dict[str, Measurement], name: str) -> list[tuple[UtteranceErrors, UtteranceErrors]]:
    """What BS and another system make of the utterances whose words they do not agree on."""
    pairs = zip(results["BS"].utterances, results[name].utterances, strict=True)
    return [(a, b) for a, b in pairs if a.hypothesis != b.hypothesis]


def examples(
    results: dict[str, Measurement], found: dict[str, dict[str, Any]], chosen: str | None, count: int = 10
) -> list[dict[str, Any]]:
    """Sentences as written that the chosen system and BS recognise differently, drawn at random; SF's beside them."""
    best = chosen or next((name for name in results if name not in ("BS", "SF")), None)
    if best is None:
        return []
    different = differing(results, best)
    drawn = random.Random(0).sample(different, min(count, len(different)))
    shown = [name for name in ("BS", "SF", best) if name in found]
    errors = {name: {u.id: u.counts.errors for u in results[name].utterances} for name in shown}
    return [
        {
            "id": a.id,
            "reference": a.reference,
            **{name: found[name]["texts"][a.id] for name in shown},
            "errors": [errors[name][a.id] for name in shown],
        }
        for a, _ in drawn
    ]


if __name__ == "__main__":
    main()
