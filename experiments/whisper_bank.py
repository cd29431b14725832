"""Whisper on bank calls whose text has another style: the model's style restored in the text, or a folded LM.

ilme data import harper-valley-bank cuts
python -m experiments.whisper_bank --model tiny.en.pt --speech cuts/cuts-dev.jsonl.gz --text train.txt --count 200 \
    --test cuts/cuts-test.jsonl.gz --test-count 400 --json docs/results/data/whisper-bank-test.json

Utterances are drawn at random, callers and agents alike. Those of --speech tune the weights of every method in the same
number of decodes under the same guards; those of --test, other calls, are decoded once with each. Without --test the
calls of one half of --speech tune, and those of the other half are decoded once. Utterances that were cut out of their
call at the wrong time (`well_timed`) tune nothing, and are counted apart. The text is the transcripts of other calls.
Errors are counted after Whisper's own normaliser. With --only several processes share the systems, each its own
report, and --merge puts these together.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timing import publish
from benchmarks.whisper import changed, measured_row, step_row
from benchmarks.whisper_sets import punctuation

from ilme.adapters.hf import TransformerAED
from ilme.data.audio import Samples
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.protocols import TokenScorer
from ilme.recogniser.cached_decoder import CachedDecoder
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import TRANSFORMER
from ilme.recogniser.recogniser import Encoded, Recogniser
from ilme.runtime.state import State
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.tuner import TuningOptions, tune
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.domain_lm import LMOptions, train_domain_lm

CALIBRATION = 40  # utterances that the internal LM is averaged over
LONGEST_QUIET = 0.8  # seconds


class UtteranceCache(EncoderCache):
    """Encoder outputs by utterance, so that any batch can be put together again; kept in a file between runs."""

    def __init__(self, file: Path | None) -> None:
        super().__init__()
        self.file = file
        if file is not None and file.is_file():
            self._known = {bytes.fromhex(k): v for k, v in torch.load(file, weights_only=True).items()}

    def __call__(self, audio: Sequence[Samples], encode: Callable[[], State], device: torch.device) -> State:
        keys = [blake2b(samples.tobytes(), digest_size=16).digest() for samples in audio]
        if any(key not in self._known for key in keys):
            memory, seconds = encode()
            for i, key in enumerate(keys):
                self._known[key] = {"hidden": memory["hidden"][i].cpu().clone(), "seconds": seconds[i].cpu().clone()}
        hidden, seconds = (torch.stack([self._known[key][n] for key in keys]).to(device) for n in ("hidden", "seconds"))
        return Encoded({"hidden": hidden, "mask": None}, seconds)

    def save(self) -> None:
        if self.file is not None and not self.file.is_file():
            torch.save({k.hex(): v for k, v in self._known.items()}, self.file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--speech", type=Path, required=True, help="cuts that `ilme data import` accepted")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--count", type=int, default=250, help="utterances drawn; half of their calls tune, or all")
    parser.add_argument("--test", type=Path, help="cuts of other calls, decoded once; all of --speech tunes then")
    parser.add_argument("--test-count", type=int, default=400, help="utterances drawn of --test")
    parser.add_argument("--limit", type=int, default=0, help="only so many of those drawn, in the order of the file")
    parser.add_argument("--styles", nargs="+", default=["restore", "fold"])
    parser.add_argument("--internal", nargs="+", default=["mean-encoder"])
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--decodes", type=int, default=4, help="decodes of the tuning half for each method")
    parser.add_argument("--alpha", type=float, default=1.0, help="exponent of the length normalisation; 0 tunes β")
    parser.add_argument("--certain-end", type=float, default=3.0)
    parser.add_argument("--ignore-punctuation", action="store_true", help="when repetitions are counted")
    parser.add_argument("--only", nargs="+", default=[], help="systems of this process, such as BS 'SF, fold'")
    parser.add_argument("--merge", type=Path, nargs="+", help="reports of such processes, with BS in the first")
    parser.add_argument("--weights", type=Path, help="report of an earlier run whose weights are taken: no tuning")
    parser.add_argument("--encoded", type=Path, help="file that keeps encoder outputs between runs")
    parser.add_argument("--work", type=Path, default=Path(), help="folder for the LMs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.merge:
        report = merged(args)
    else:
        model = load_model(args.model, args.device, silence=1)
        if model.device.type == "cpu":
            model.pack()
        report = Comparison(args, model).run()
    publish(report, args.json, seed=args.seed)


def drawn(args: argparse.Namespace, cuts: Path, count: int) -> list[Utterance]:
    """Utterances drawn at random, in the order of the file."""
    utterances = read_utterances(cuts)
    count = min(count, len(utterances))
    return [utterances[i] for i in sorted(random.Random(args.seed).sample(range(len(utterances)), count))]


def tune_and_compare(args: argparse.Namespace) -> tuple[list[Utterance], list[Utterance]]:
    """What tunes, and what is decoded once: two files, or the calls of one dealt to two halves.

    An id begins with its call.
    """
    chosen = drawn(args, args.speech, args.count)[: args.limit or None]
    if args.test:
        return chosen, drawn(args, args.test, args.test_count)
    dealt: tuple[list[Utterance], list[Utterance]] = ([], [])
    for u in chosen:
        dealt[blake2b(f"{args.seed} {u.id.split('-')[0]}".encode()).digest()[0] % 2].append(u)
    return dealt


def well_timed(utterance: Utterance) -> bool:
    """Whether nowhere in it is LONGEST_QUIET without sound: 100 ms frames 30 dB below its loudest.

    Utterances of this corpus last two seconds; one with a second of silence was cut out of its call at the wrong time,
    and some of its words are not in it.
    """
    samples = utterance.samples(16_000)
    frames = np.square(samples[: len(samples) // 1600 * 1600]).reshape(-1, 1600).mean(1)
    level = 10 * np.log10(frames + 1e-10)
    run = longest = 0
    for quiet in level < np.percentile(level, 95) - 30:
        run = run + 1 if quiet else 0
        longest = max(longest, run)
    return longest < LONGEST_QUIET * 10


class Errors:
    """Word errors of every system on the utterances that are decoded once, from its texts."""

    def __init__(self, utterances: Sequence[Utterance], timed: set[str]) -> None:
        self.utterances = utterances
        self.timed = [u for u in utterances if u.id in timed]
        self.well_timed: dict[str, Measurement] = {}
        self.everything: dict[str, Measurement] = {}

    def row(self, name: str, texts: dict[str, str]) -> dict[str, Any]:
        """Of the well-timed ones, and of all; compared with BS and SF where these are known already."""
        self.well_timed[name] = measured(texts, self.timed)
        self.everything[name] = measured(texts, self.utterances)
        return measured_row(self.well_timed, name) | {"with mistimed ones": measured_row(self.everything, name)}


def measured(texts: dict[str, str], utterances: Sequence[Utterance]) -> Measurement:
    return measure(
        {u.id: u.text for u in utterances},
        {u.id: texts[u.id] for u in utterances},
        speakers={u.id: u.speaker for u in utterances},
        normaliser_name="whisper",
    )


def merged(args: argparse.Namespace) -> dict[str, Any]:
    """One report of several, errors counted again so that every system is compared with BS and with its own SF."""
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in args.merge]
    _, utterances = tune_and_compare(args)
    timed = {u.id for u in utterances if well_timed(u)}
    found = {name: row for part in parts for name, row in part["systems"].items()}
    rows: dict[str, dict[str, Any]] = {}
    whole = Errors(utterances, timed)
    for style in args.styles:
        errors = Errors(utterances, timed)
        for name in ["BS", *(n for n in found if n.endswith(f", {style}"))]:
            # `measured_row` compares with what is called SF: that of the same style
            row = errors.row("SF" if name.startswith("SF") else name, found[name]["texts"])
            rows[name] = found[name] | row
            whole.row(name, found[name]["texts"])
    kept = {key: parts[0][key] for key in ("search", "utterances")}
    texts = {style: about for part in parts for style, about in part["text"].items()}
    return kept | {"text": texts, "systems": rows, "examples": changed(whole.well_timed, 20)}


class Comparison:
    """Every system tuned on one half and decoded once on the other."""

    def __init__(self, args: argparse.Namespace, model: TransformerAED) -> None:
        self.args, self.model = args, model
        self.sets = dict(zip(("tune", "compare"), tune_and_compare(args), strict=True))
        self.timed = {u.id for found in self.sets.values() for u in found if well_timed(u)}
        self.drawn = {f"{split}, drawn": len(found) for split, found in self.sets.items()}
        self.sets["tune"] = [u for u in self.sets["tune"] if u.id in self.timed]
        given = json.loads(args.weights.read_text(encoding="utf-8"))["systems"] if args.weights else {}
        self.given = {name: FusionWeights(**found["weights"]) for name, found in given.items()}
        self.cache = UtteranceCache(args.encoded)
        self.options = replace(
            TRANSFORMER,
            beam=args.beam,
            stop_after=args.beam,
            length_normalisation=args.alpha,
            certain_end=args.certain_end,
            repeat_ignores=punctuation(model.tokenizer) if args.ignore_punctuation else (),
        )
        self.errors = Errors(self.sets["compare"], self.timed)
        self.rows: dict[str, dict[str, Any]] = {}
        self.first: dict[str, NBest] = {}

    def run(self) -> dict[str, Any]:
        self.first = self.decoder("tune", None, None).decode(FusionWeights(), self.args.beam)
        some = self.sets["tune"][:CALIBRATION]
        said = [self.first[u.id][0].tokens for u in some]
        heard = Recogniser(self.model, cache=self.cache).calibrate((u.samples(16_000) for u in some), said)
        internals = {name: internal_lm(self.model, name, calibration=heard) for name in self.args.internal}
        self.system("BS", "BS", None, None)
        self.cache.save()
        texts = {}
        for style in self.args.styles:
            options = LMOptions(style=style, overlap=0, prune=(0,), seed=self.args.seed)
            path = self.args.work / f"bank-{style}.safetensors"
            lm: TokenScorer
            lm, texts[style] = train_domain_lm(
                self.model, self.args.text, [], path, options, lambda line: print(line, file=sys.stderr)
            )
            folds = Folds(self.model.tokens, self.model.device) if style == "fold" else None
            lm = lm if folds is None else FoldedScorer(lm, folds)
            self.system(f"SF, {style}", "SF", lm, None)
            for name, internal in internals.items():
                taken = internal if folds is None else fold_internal(internal, folds)
                self.system(f"ILME {name}, {style}", "ILME", lm, taken)
        return {
            "search": {k: str(v) for k, v in asdict(self.options).items()},
            "text": texts,
            "utterances": self.drawn
            | {f"{k}, well timed": sum(u.id in self.timed for u in v) for k, v in self.sets.items()},
            "systems": self.rows,
            "examples": changed(self.errors.well_timed, 20) if "BS" in self.rows else [],
        }

    def decoder(self, split: str, lm: TokenScorer | None, internal: TokenScorer | None) -> SearchDecoder:
        recogniser = Recogniser(self.model, lm=lm, subtracted=internal, options=self.options, cache=self.cache)
        return SearchDecoder(recogniser, self.sets[split], options=DecodingOptions(batch_seconds=120, cache="none"))

    def system(self, name: str, method: Any, lm: TokenScorer | None, internal: TokenScorer | None) -> None:
        if self.args.only and name not in self.args.only:
            return
        began = time.process_time()
        found = None if name in self.given else self.tuned(method, lm, internal)
        weights = self.given[name] if found is None else found.weights
        used = (lm if weights.lm else None, internal if weights.subtracted else None)
        lists = self.decoder("compare", *used).decode(weights, self.args.beam)
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        self.rows[name] = self.errors.row(name, texts) | {"weights": asdict(weights), "texts": texts}
        if found is not None:
            self.rows[name] |= {"tune WER": round(found.dev.rate, 3), "tune decodes": list(map(step_row, found.steps))}
        self.rows[name]["CPU seconds"] = round(time.process_time() - began, 1)
        shown = {key: value for key, value in self.rows[name].items() if key != "texts"}
        print(name, json.dumps(shown, ensure_ascii=False), file=sys.stderr, flush=True)

    def tuned(self, method: Any, lm: TokenScorer | None, internal: TokenScorer | None) -> TuningResult:
        # β acts where the score is not divided by the length; it is tuned for every method, BS included, or for none
        length = (0.0, 0.0) if self.args.alpha else (0.0, 2.0)
        decoder = CachedDecoder(self.decoder("tune", lm, internal))  # every method's tuning begins with BS
        scored = {} if lm is None else {"lm": SequenceScorer(lm, finish=True, rows=256)}
        decoder.know(FusionWeights(), self.args.beam, complete(self.first, **scored))
        return tune(
            decoder,
            {u.id: u.text for u in self.sets["tune"]},
            options=TuningOptions(
                method=method,
                space=WeightSpace(length=length),
                beam=self.args.beam,
                max_decodes=1 if method == "BS" and self.args.alpha else self.args.decodes,
                normaliser="whisper",
                length_exponent=self.args.alpha,
                replicates=0,
                seed=self.args.seed,
            ),
            on_step=lambda step: print(method, json.dumps(step_row(step)), file=sys.stderr, flush=True),
        )


if __name__ == "__main__":
    main()
