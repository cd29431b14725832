"""Weights without dev speech: those of other domains, those that spoken lines of the text choose, those of real dev.

python -m experiments.dev_speak sets librispeech-dev-clean --split tune --longest 12 --out work/audiobooks
python -m experiments.dev_speak sets harper-valley-bank --text-split train --words 4 --out work/calls
python -m experiments.dev_speak sets common-voice-en --text-split train --longest 12 --out work/read-sentences
python -m experiments.dev_speak prompts asterisk-core-sounds-en-wav --out prompts   # Debian packages, unpacked
python -m experiments.dev_speak sets prompts --text-split train --words 4 --out work/prompts
cd work/calls && ilme adapt --model tiny.en.pt --text train.txt --options.exclude dev.jsonl test.jsonl \
    --options.beam 5 --options.internal silence --out safe     # and so for each; audiobooks: novels in novels/
python -m experiments.dev_speak decode work --model tiny.en.pt
python -m experiments.dev_speak report work --json docs/results/data/dev-speak.json

`sets` draws dev and test from utterances of different speakers, or of different calls. `decode` decodes dev, test and
lines of the text that voices speak, without LM and with the safe weights. `report` finds weights on the n-best lists
of each dev, as `ilme adapt` does it but without a decode with what was found, and counts errors on the lists of test.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from benchmarks.timing import publish

from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import compare
from ilme.fusion import FusionWeights
from ilme.protocols import TokenScorer
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.domain import load_domain
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_model
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_json
from ilme.search.consensus import consensus
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.error_surface import CandidateLists, as_vector, build_lists
from ilme.tuning.temperature import LADDER, USUAL
from ilme.tuning.tuner import merge_lists
from ilme.tuning.weight_search import Prior, WeightObjective, WeightSpace, search_weights
from ilme.workflows.domain_lm import LMOptions, read_domain_text, train_ngram_lm
from ilme.workflows.spoken_dev import hold_out_spoken, speak_lines

DEV, TEST, BEAM = 60, 100, 5
PROMPTS = 120  # of those that are long enough; the others are the text
WAYS = ("none", "safe")
SETS = ("dev", "spoken", "test")
LINES = 60  # that are spoken, in either voice
ALPHA = 1.0  # of the search's length normalisation
POINTS = [
    (round(lm, 3), round(share * lm, 4)) for lm in np.arange(0.0, 0.61, 0.025) for share in (0.0, 0.25, 0.5, 0.75, 1.0)
]
SHOWN = ((0.1, 0.05), (0.1, 0.1), (0.15, 0.075), (0.15, 0.15), (0.2, 0.1), (0.2, 0.2), (0.25, 0.125), (0.25, 0.25))
SAFE = FusionWeights(lm=0.25, subtracted=0.125)
Point = tuple[float, float]  # λ_T, μ


def sets(args: argparse.Namespace) -> None:
    """train.txt, dev.jsonl and test.jsonl."""
    corpus: Path = args.folder
    with (corpus / "manifest.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    args.out.mkdir(parents=True, exist_ok=True)
    if args.text_split:
        text = [row["text"] for row in rows if row["split"] == args.text_split]
        (args.out / "train.txt").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    usable = [
        r
        for r in rows
        if r["split"] == args.split and r["duration"] < args.longest and len(r["text"].split()) >= args.words
    ]
    draw = random.Random(0)
    groups = sorted({group(r) for r in usable})
    draw.shuffle(groups)
    mine = set(groups[: round(len(groups) * DEV / (DEV + TEST))])
    for name, count, chosen in (
        ("dev", DEV, [r for r in usable if group(r) in mine]),
        ("test", TEST, [r for r in usable if group(r) not in mine]),
    ):
        taken = [chosen[i] for i in sorted(draw.sample(range(len(chosen)), min(count, len(chosen))))]
        full = (json.dumps({**r, "audio_filepath": str((corpus / r["audio_filepath"]).resolve())}) for r in taken)
        (args.out / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in full), encoding="utf-8")


def group(row: dict[str, Any]) -> str:
    """What must not be in dev and test both."""
    return str(row.get("call") or row["speaker"])


def prompts(args: argparse.Namespace) -> None:
    """A manifest of the prompts of a telephone exchange; each is a group of its own, since one voice speaks all."""
    folder: Path = args.folder
    (listing,) = folder.rglob("core-sounds-en.txt.gz")
    (voice,) = folder.rglob("en_US_f_*")
    said = {}
    for line in gzip.decompress(listing.read_bytes()).decode().splitlines():
        name, _, text = line.partition(":")
        if text.strip() and not line.startswith(";") and not set(text) & set("[]()"):
            said[name.strip()] = " ".join(text.replace("...", " ").split())
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, text in said.items():
        file = voice / f"{name}.wav"
        if file.is_file():
            short = len(text.split()) < args.words
            rows.append(
                {
                    "audio_filepath": str(file.resolve()),
                    "duration": round(soundfile.info(file).duration, 3),
                    "speaker": "",
                    "call": name,
                    "split": "train" if short else "",
                    "text": text,
                }
            )
    long = [row for row in rows if not row["split"]]
    random.Random(1).shuffle(long)
    for place, row in enumerate(long):
        row["split"] = "dev" if place < PROMPTS else "train"
    (args.out / "manifest.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def decode(args: argparse.Namespace) -> None:
    """lists.json: the n-best lists of each set, every hypothesis scored by the LM and the internal LM."""
    torch.set_num_threads(1)
    host = load_model(args.model)
    host.pack()
    for work in sorted(p.parent for p in args.folder.glob("*/safe") if not args.domain or p.parent.name in args.domain):
        safe, path = load_domain(work / "safe", load=lambda *_, **__: host), work / "lists.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for name in args.sets:
            known = found.get(name, {})
            ways = [way for way in WAYS if way not in known]
            if not ways:
                continue
            if name == "spoken":
                utterances, lm = spoken_lines(host, work)
            else:
                utterances, lm = read_utterances(work / f"{name}.jsonl"), safe.lm
            known["references"] = {u.id: u.text for u in utterances}
            cache = EncoderCache()
            for way in ways:
                options = replace(safe.options, consensus=0.0, joined=False)
                recogniser = Recogniser(host, lm=lm, subtracted=safe.subtracted, options=options, cache=cache)
                batches = DecodingOptions(240.0, 16, cache="none")
                weights = FusionWeights() if way == "none" else SAFE
                lists = SearchDecoder(recogniser, utterances, options=batches).decode(weights, BEAM)
                scorers = {"lm": lm, "subtracted": safe.subtracted}
                whole = complete(
                    lists, **{n: SequenceScorer(s, finish=recogniser.ends[n], rows=256) for n, s in scorers.items()}
                )
                known[way] = {
                    "texts": {i: nbest[0].text for i, nbest in lists.items()},
                    "lists": {i: [h.to_json() for h in nbest] for i, nbest in whole.items()},
                }
                found[name] = known
                write_json(path, found)
                print(work.name, name, way, flush=True)


def spoken_lines(host: Any, work: Path) -> tuple[list[Utterance], TokenScorer]:
    """Lines of the text in either voice, and an n-gram that has not read them."""
    text = [str(work / "train.txt")] if (work / "train.txt").is_file() else [str(work / "novels" / "*.txt")]
    unread = [u.text for name in ("dev", "test") for u in read_utterances(work / f"{name}.jsonl")]
    options = LMOptions()
    held, rest = hold_out_spoken(read_domain_text(host, text, unread, options, print), LINES, options.overlap, 0)
    spoken = [
        replace(u, id=f"{voice}-{u.id}")
        for voice, share in (("espeak", 0.0), ("natural", 1.0))
        for u in speak_lines(held, work / "spoken", share, 0)
    ]
    return spoken, train_ngram_lm(host, rest.ids, options)[0]


def report(args: argparse.Namespace) -> dict[str, Any]:
    """What each way to weights gives in the search, and what others leave on the lists."""
    domains = [Domain.read(p.parent) for p in sorted(args.folder.glob("*/lists.json"))]
    shares = {d.name: d.shares() for d in domains}
    left_out = []
    for name in shares:
        lm, subtracted = safest(shares, [other for other in shares if other != name])
        left_out.append({"domain": name, "λ_T": lm, "μ": subtracted, "share": shares[name][lm, subtracted]})
    every = safest(shares, list(shares))
    shown = [("", point) for point in SHOWN] + [("safest", every)]
    return {
        "hardness": [d.hardness() for d in domains],
        "in the search": [row for d in domains for row in d.searched()],
        "on the lists": [row for d in domains for row in d.chosen()],
        "shares": [
            {"what": what, "λ_T": lm, "μ": subtracted} | {name: shares[name][lm, subtracted] for name in shares}
            for what, (lm, subtracted) in shown
        ],
        "each left out": left_out,
        "consensus": [row for d in domains for row in d.consensus()],
    }


def safest(shares: dict[str, dict[Point, float]], domains: list[str]) -> Point:
    """The weights whose worst domain is best; of equal ones the smallest mean."""
    return min(
        shares[domains[0]],
        key=lambda p: (max(shares[d][p] for d in domains), sum(shares[d][p] for d in domains)),
    )


@dataclass(frozen=True)
class Decoded:
    """A set: its transcripts, and what each system heard."""

    references: dict[str, str]
    texts: dict[str, dict[str, str]]
    lists: dict[str, dict[str, NBest]]

    @classmethod
    def of(cls, found: dict[str, Any]) -> Decoded:
        ways = [way for way in found if way != "references"]
        lists = {w: {i: [Hypothesis.from_json(h) for h in n] for i, n in found[w]["lists"].items()} for w in ways}
        return cls(found["references"], {w: found[w]["texts"] for w in ways}, lists)

    def part(self, beginning: str, ending: str = "") -> Decoded:
        """The utterances whose names begin and end so."""
        kept = {i: text for i, text in self.references.items() if i.startswith(beginning) and i.endswith(ending)}
        texts = {way: {i: found[i] for i in kept} for way, found in self.texts.items()}
        return Decoded(kept, texts, {way: {i: found[i] for i in kept} for way, found in self.lists.items()})

    def measured(self, texts: dict[str, str]) -> Measurement:
        return measure(self.references, texts, normaliser_name="whisper")

    def agreed(self, temperature: float) -> dict[str, str]:
        """The consensus of the lists with LMs and without."""
        lists = (self.lists["safe"], self.lists["none"])
        return {i: consensus([found[i] for found in lists], temperature, ALPHA)[0].text for i in self.references}

    def built(self, *ways: str) -> CandidateLists:
        """The lists of these decodes together."""
        merged: dict[str, NBest] = {}
        for way in ways:
            merge_lists(merged, self.lists[way])
        return build_lists(merged, self.references, normaliser_name="whisper", length_exponent=ALPHA)


@dataclass(frozen=True)
class Domain:
    """What was decoded of a domain."""

    name: str
    sets: dict[str, Decoded]

    @classmethod
    def read(cls, work: Path) -> Domain:
        found = json.loads((work / "lists.json").read_text(encoding="utf-8"))
        sets = {name: Decoded.of(known) for name, known in found.items()}
        for voice in ("espeak", "natural") if "spoken" in sets else ():
            sets[voice] = sets["spoken"].part(voice)
        return cls(work.name, sets)

    def hardness(self) -> dict[str, Any]:
        """WER of each set without LM."""
        rates = {name: round(found.measured(found.texts["none"]).rate, 2) for name, found in self.sets.items()}
        return {"domain": self.name} | rates

    def searched(self) -> list[dict[str, Any]]:
        """Dev and test without LM, with the safe weights, and with the consensus of both lists."""
        rows = []
        for name in ("dev", "test"):
            found = self.sets[name]
            texts = found.texts | {"joined": found.agreed(USUAL)}
            measured = {way: found.measured(told) for way, told in texts.items()}
            for way, own in measured.items():
                row = {"domain": self.name, "set": name, "system": way, "utterances": len(found.references)}
                row |= {"WER": round(own.rate, 2)} | counts(own) | {"errors": own.total.errors}
                if way != "none":
                    pair = compare(way, own, "none", measured["none"], replicates=5000)
                    row |= {"against none, %": round(-pair.relative, 1), "p": pair.p_bootstrap}
                rows.append(row)
        return rows

    def chosen(self) -> list[dict[str, Any]]:
        """Weights that each dev set chooses on its lists, as adaptation does, and what they leave on those of test."""
        test = self.sets["test"].built("none", "safe")
        without = self.sets["test"].measured(self.sets["test"].texts["none"]).total.errors
        rows = [("none", np.zeros(3)), ("safe", as_vector(SAFE))]
        for name in (n for n in ("dev", "espeak", "natural", "spoken") if n in self.sets):
            objective = WeightObjective(smoothing=0.01, prior=Prior(SAFE.lm, SAFE.subtracted, 0.0, 2.0))
            lists = self.sets[name].built("none", "safe")
            rows.append(
                (name, search_weights(lists, WeightSpace(), objective=objective, starts=[as_vector(SAFE)]).vector)
            )
        return [
            {
                "domain": self.name,
                "dev": name,
                "λ_T": round(float(vector[0]), 3),
                "μ": round(float(vector[1]), 3),
                "errors": round(float(test.error_at(vector)), 1),
                "share": round(float(test.error_at(vector)) / without, 3),
            }
            for name, vector in rows
        ]

    def shares(self) -> dict[Point, float]:
        """Errors on the lists of all decodes of test together, as a share of those without LM."""
        test = self.sets["test"]
        built = test.built(*test.lists)
        without = test.measured(test.texts["none"]).total.errors
        return {
            (lm, subtracted): round(built.error_at(as_vector(FusionWeights(lm=lm, subtracted=subtracted))) / without, 4)
            for lm, subtracted in POINTS
        }

    def consensus(self) -> list[dict[str, Any]]:
        """Errors of the consensus of both lists of test at each temperature."""
        test = self.sets["test"]
        errors = {f"{t:g}": test.measured(test.agreed(t)).total.errors for t in LADDER}
        return [{"domain": self.name} | {way: test.measured(test.texts[way]).total.errors for way in WAYS} | errors]


def counts(measured: Measurement) -> dict[str, int]:
    return {k: v for k, v in asdict(measured.total).items() if k != "hits"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sets", "prompts", "decode", "report"))
    parser.add_argument("folder", type=Path, help="the corpus, the unpacked packages, or the folder of all domains")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--text-split", default="", help="whose transcripts are the text")
    parser.add_argument("--longest", type=float, default=30.0, help="seconds of an utterance")
    parser.add_argument("--words", type=int, default=1, help="fewest words of an utterance")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--domain", nargs="*", default=[], help="those to decode; all if none is named")
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "report":
        publish(report(args), args.json, seed=0)
    else:
        {"sets": sets, "prompts": prompts, "decode": decode}[args.what](args)


if __name__ == "__main__":
    main()
