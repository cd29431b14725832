"""Listed names in the search: errors on listed words and on all others, useless lists, and the time of long ones.

python -m benchmarks.phrases errors --model tiny.en.pt --speech librispeech-dev-clean --novels novels --split tune \
    --boosts 0.5 1 1.5 2 --work out/phrases
python -m benchmarks.phrases cost --model tiny.en.pt --speech librispeech-dev-clean --novels novels --work out/phrases
python -m benchmarks.phrases report --work out/phrases --json docs/results/data/phrases.json

The list (benchmarks/lists/casts.txt) holds people and places of the books that are read, written down from knowledge of
the books; a name of several words is also listed word by word, but for words that the novels write in lower case too.
Distractors, and lists that are nothing but useless, are names drawn from other novels (a folder of texts), without
those that any transcript of the corpus holds. The set is utterances of the split in which a listed phrase is said, and
as many others, both drawn with a fixed seed: half of it has nothing to gain.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import publish
from ilme.data.normalise import spoken
from ilme.data.utterances import Utterance
from ilme.evaluation.listed import listed_errors
from ilme.evaluation.metrics import measure
from ilme.lm.phrase_list import Phrase, as_phrases, read_phrases
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_model
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_json
from ilme.search.hypothesis import NBest
from ilme.workflows.decoding import read_set

CASTS = Path(__file__).parent / "lists" / "casts.txt"
MOSTLY = 0.05  # a name is written in lower case at most so often
NAME = re.compile(r"(?<=[a-z,;] )[A-Za-z]{3,}\b")  # not at the beginning of a sentence
SEED, BATCH = 7, 8
WINDOW = 30.0  # seconds: what is longer would be cut


def novel_words(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """How often each word stands inside a sentence with a capital letter, and without."""
    capital: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for file in sorted(folder.glob("*.txt")):
        for word in NAME.findall(file.read_text(encoding="utf-8-sig").replace("\u2019", "'").replace("_", " ")):
            if word[1:].islower():
                (capital if word[0].isupper() else lower)[word] += 1
    return capital, lower


def cast(capital: Counter[str], lower: Counter[str]) -> tuple[Phrase, ...]:
    """The list, with the names that longer names are made of."""
    whole = read_phrases(CASTS)
    words = {word for phrase in whole for word in phrase.text.split() if word[0].isupper() and len(word) > 2}
    names = {w for w in words if lower[w.lower()] <= MOSTLY * max(1, capital[w])}
    return as_phrases([*whole, *sorted(names)])


def useless(capital: Counter[str], lower: Counter[str], utterances: Sequence[Utterance]) -> list[str]:
    """Names of the novels, in drawn order, that nobody says in the corpus; beyond those, pairs of them."""
    said = {word.removesuffix("'s") for u in utterances for word in u.text.lower().split()}
    names = [w for w in sorted(capital) if lower[w.lower()] <= MOSTLY * capital[w] and w.lower() not in said]
    draw = random.Random(SEED)
    draw.shuffle(names)
    pairs = [" ".join(draw.sample(names, 2)) for _ in range(20_000)]
    return list(dict.fromkeys([*names, *pairs]))


def drawn(names: Sequence[str], count: int) -> list[str]:
    """So many useless names, whatever else is drawn."""
    return random.Random(f"useless {count}").sample(names[: 2 * count], count)


def chosen(utterances: Sequence[Utterance], phrases: Sequence[Phrase], limit: int, without: int = 0) -> list[Utterance]:
    """Every utterance that holds a phrase, and as many others; at most `limit`, half of each kind.

    `without` leaves those out that this limit would choose, which an earlier measurement has decoded.
    """
    decoded = {u.id for u in chosen(utterances, phrases, without)} if without else set()
    listed = {tuple(spoken(p.text).split()) for p in phrases}
    longest = max(map(len, listed))

    def holds(u: Utterance) -> bool:
        words = [w.removesuffix("'s") for w in u.text.split()]
        return any(tuple(words[i : i + n]) in listed for i in range(len(words)) for n in range(1, longest + 1))

    draw = random.Random(SEED)
    fitting = [u for u in utterances if u.seconds <= WINDOW and u.id not in decoded]
    holding = [u for u in fitting if holds(u)]
    others = [u for u in fitting if not holds(u)]
    size = min(len(holding), limit // 2)
    return sorted([*draw.sample(holding, size), *draw.sample(others, size)], key=lambda u: (u.seconds, u.id))


class Bench:
    """Model, speech and lists, as the arguments name them; encoder outputs are kept between decodes."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        capital, lower = novel_words(args.novels)
        everything = read_set(args.speech, "")
        self.phrases = cast(capital, lower)
        self.useless = useless(capital, lower, everything)
        self.utterances = chosen(read_set(args.speech, args.split), self.phrases, args.limit, args.without)
        self.recogniser = Recogniser(load_model(args.model), cache=EncoderCache()).pack()
        self.normaliser = args.normaliser

    def decode(self, recogniser: Recogniser) -> tuple[dict[str, NBest], float]:
        """The list of each utterance, and the seconds that the searches took."""
        found: dict[str, NBest] = {}
        seconds = 0.0
        for i in range(0, len(self.utterances), BATCH):
            batch = self.utterances[i : i + BATCH]
            encoded = recogniser.encode([u.samples(recogniser.rate) for u in batch])
            began = time.process_time()
            lists = recogniser.search(encoded)
            seconds += time.process_time() - began
            found |= {u.id: nbest for u, nbest in zip(batch, lists, strict=True)}
        return found, seconds

    def row(self, listed: Sequence[Phrase | str], boost: float) -> dict[str, Any]:
        """Errors of one decode; the words that count as listed are those of the cast, whatever list was used."""
        recogniser = self.recogniser.with_phrases(listed, boost) if listed else self.recogniser
        lists, seconds = self.decode(recogniser)
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        measured = measure({u.id: u.text for u in self.utterances}, texts, normaliser_name=self.normaliser)
        ours, others = listed_errors(measured, self.phrases)
        parts = {"all": measured.total, "listed": ours, "others": others}
        return {
            "phrases": len(listed),
            "boost": boost,
            **{
                name: asdict(c) | {"words": c.words, "errors": c.errors, "WER": round(c.rate, 3)}
                for name, c in parts.items()
            },
            "search seconds": round(seconds, 2),
            "texts": texts,
            "lists": {i: [[h.text, list(h.tokens), h.scores.asr] for h in nbest] for i, nbest in lists.items()},
        }


def errors(args: argparse.Namespace) -> None:
    bench = Bench(args)
    plans: dict[str, tuple[list[Any], float]] = {"none": ([], 0.0)}
    for boost in args.boosts:
        plans[f"cast, {boost:g}"] = (list(bench.phrases), boost)
        for more in args.distractors:
            plans[f"cast + {more}, {boost:g}"] = ([*bench.phrases, *bench.useless[:more]], boost)
        for count in args.useless:
            plans[f"useless {count}, {boost:g}"] = (drawn(bench.useless, count), boost)
    out = args.work / f"{args.split}.json"
    found = json.loads(out.read_text()) if out.exists() else {"rows": {}}
    found["utterances"] = len(bench.utterances)
    found["seconds"] = round(sum(u.seconds for u in bench.utterances), 1)
    for name, (listed, boost) in plans.items():
        if name not in found["rows"]:
            found["rows"][name] = bench.row(listed, boost)
            write_json(out, found)
        row = found["rows"][name]
        print(
            f"{name:24} listed {row['listed']['errors']:4} others {row['others']['errors']:5} "
            f"all {row['all']['WER']:.2f}",
            flush=True,
        )


def cost(args: argparse.Namespace) -> None:
    """CPU seconds of the whole way from audio to text, without a list and with long ones, in turn."""
    bench = Bench(args)
    bench.recogniser.cache = None
    bench.utterances = bench.utterances[:: max(1, len(bench.utterances) // args.timed)][: args.timed]
    recognisers = {
        str(size): bench.recogniser.with_phrases(bench.useless[:size], args.boosts[0]) if size else bench.recogniser
        for size in (0, 1000, 20_000)
    }
    seconds: dict[str, list[list[float]]] = {name: [] for name in recognisers}
    for turn in range(args.turns + 1):
        for name, recogniser in recognisers.items():
            began = time.process_time()
            _, searching = bench.decode(recogniser)
            if turn:  # the first warms up
                seconds[name].append([time.process_time() - began, searching])
    best = {name: [min(column) for column in zip(*rows, strict=True)] for name, rows in seconds.items()}
    found = {
        name: {"all, s": round(all_, 2), "search, s": round(search, 2), "all, ratio": round(all_ / best["0"][0], 3)}
        for name, (all_, search) in best.items()
    }
    write_json(args.work / "cost.json", {"utterances": len(bench.utterances), "turns": args.turns, "phrases": found})
    print(json.dumps(found, indent=1))


def report(args: argparse.Namespace) -> None:
    """What was measured, without texts and lists, in one file."""
    data: dict[str, Any] = {}
    for file in sorted(args.work.glob("*.json")):
        part = json.loads(file.read_text())
        for row in part.get("rows", {}).values():
            row.pop("texts", None)
            row.pop("lists", None)
        data[file.stem] = part
    publish(data, args.json, seed=SEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["errors", "cost", "report"])
    parser.add_argument("--model")
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--novels", type=Path)
    parser.add_argument("--split", default="tune")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--without", type=int, default=0, help="leave out what this limit would choose")
    parser.add_argument("--normaliser", default="whisper")
    parser.add_argument("--boosts", type=float, nargs="*", default=[])
    parser.add_argument("--distractors", type=int, nargs="*", default=[])
    parser.add_argument("--useless", type=int, nargs="*", default=[])
    parser.add_argument("--timed", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("out/phrases"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    globals()[args.job](args)


if __name__ == "__main__":
    main()
