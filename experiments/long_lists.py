"""What a long list of useless phrases should cost: other bonuses, tried on the n-best lists of dev.

python -m benchmarks.phrases errors … --split tune --boosts 1.5 --distractors 10000 --useless 10000 --work out/phrases
python -m experiments.long_lists --model tiny.en.pt --speech librispeech-dev-clean --novels novels \\
    --work out/phrases --json docs/results/data/long-lists.json

The hypotheses are those of all decodes of dev together, with lists and without; each bonus ranks them anew. n is the
number of a phrase's labels, N that of the listed phrases:

    size      n − a · log(max(N, M) / M)
    trie      Σ over labels max(0, 1 − a · log(1 + (ways there / ways through the label − 1) / M))
    cap       min(n, a)
    share     n / (1 + a · log(1 + N / M))
    words     n − a · words · log(1 + N / M)
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.phrases import cast, drawn, novel_words, useless
from benchmarks.timing import publish

from ilme.evaluation.listed import listed_errors
from ilme.evaluation.metrics import measure
from ilme.lm.phrase_list import Phrase, _Writer, as_phrases, word_edges
from ilme.lm.phrases import PhraseScorer
from ilme.recogniser.loading import load_model
from ilme.search.rescoring import sequence_scores
from ilme.workflows.decoding import read_set

KAPPA = 1.5
Labels = tuple[int, ...]
Bonus = Callable[[dict[Labels, Phrase]], dict[Labels, float]]


def each(of: Callable[[int, int, int], float]) -> Bonus:
    """A bonus that follows from the labels of a phrase, its words, and how many are listed."""

    def bonus(listed: dict[Labels, Phrase]) -> dict[Labels, float]:
        size = len(set(listed.values()))
        return {labels: of(len(labels), len(p.text.split()), size) for labels, p in listed.items()}

    return bonus


def size(a: float, many: int) -> Bonus:
    return each(lambda n, words, listed: n - a * math.log(max(listed, many) / many))


def cap(a: float) -> Bonus:
    return each(lambda n, words, listed: min(n, a))


def share(a: float, many: int) -> Bonus:
    return each(lambda n, words, listed: n / (1 + a * math.log(1 + listed / many)))


def per_word(a: float, many: int) -> Bonus:
    return each(lambda n, words, listed: n - a * words * math.log(1 + listed / many))


def trie(a: float, many: float) -> Bonus:
    def bonus(listed: dict[Labels, Phrase]) -> dict[Labels, float]:
        ways = Counter(labels[:depth] for labels in listed for depth in range(len(labels) + 1))

        def part(labels: Labels, depth: int) -> float:
            others = ways[labels[:depth]] / ways[labels[: depth + 1]] - 1
            return max(0.0, 1 - a * math.log(1 + others / many))

        return {labels: sum(part(labels, depth) for depth in range(len(labels))) for labels in listed}

    return bonus


AS_IT_WAS = each(lambda n, words, listed: float(n))
WAYS = {
    "as it was": AS_IT_WAS,
    **{f"size, a {a:g}, M {m}": size(a, m) for a, m in ((0.2, 500), (0.4, 500), (0.5, 500), (0.4, 1000), (0.8, 1000))},
    **{f"trie, a {a:g}, M {m}": trie(a, m) for a, m in ((0.1, 10), (0.2, 10), (0.4, 10), (0.4, 100))},
    **{f"cap, a {a}": cap(a) for a in (2, 3)},
    **{f"share, a {a:g}, M 1000": share(a, 1000) for a in (0.2, 0.4)},
    "words, a 0.5, M 1000": per_word(0.5, 1000),
}


class Ranked:
    """The hypotheses of dev, and their errors under a list and a bonus."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        capital, lower = novel_words(args.novels)
        everything = read_set(args.speech, "")
        self.cast, self.useless = cast(capital, lower), useless(capital, lower, everything)
        host = load_model(args.model)
        self.tokens, self.edges, self.write = host.tokens, word_edges(host.tokens), _Writer(host.tokenizer, host.tokens)
        self.references = {u.id: u.text for u in everything}
        self.known: dict[str, dict[Labels, tuple[str, float]]] = {}
        for row in json.loads((args.work / "tune.json").read_text(encoding="utf-8"))["rows"].values():
            for i, nbest in row["lists"].items():
                for text, labels, asr in nbest:
                    old = self.known.setdefault(i, {}).get(tuple(labels))
                    if old is None or asr > old[1]:
                        self.known[i][tuple(labels)] = (text, asr)

    def spelled(self, phrases: Sequence[Phrase]) -> dict[Labels, Phrase]:
        return {tuple(labels): phrase for phrase in phrases for labels in self.write(phrase.text)}

    def errors(self, listed: dict[Labels, Phrase], bonus: Bonus) -> tuple[int, int]:
        """Errors on the words of the cast, and on all others."""
        kept = {labels: value for labels, value in bonus(listed).items() if value > 0} if listed else {}
        places = [(i, labels) for i, hypotheses in self.known.items() for labels in hypotheses]
        held = torch.zeros(len(places))
        if kept:
            scorer = PhraseScorer(self.tokens, kept, self.edges)
            held = sequence_scores(scorer, [list(labels) for _, labels in places], finish=True)
        best: dict[str, tuple[float, str]] = {}
        for (i, labels), value in zip(places, held.tolist(), strict=True):
            text, asr = self.known[i][labels]
            best[i] = max(best.get(i, (-math.inf, "")), ((asr + KAPPA * value) / (len(labels) + 1), text))
        references = {i: self.references[i] for i in best}
        measured = measure(references, {i: text for i, (_, text) in best.items()}, normaliser_name="whisper")
        ours, others = listed_errors(measured, self.cast)
        return ours.errors, others.errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--novels", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ranked = Ranked(args)
    lists = {
        "useless 10000": ranked.spelled(as_phrases(drawn(ranked.useless, 10_000))),
        "cast + 10000": ranked.spelled(as_phrases([*ranked.cast, *ranked.useless[:10_000]])),
        "cast": ranked.spelled(ranked.cast),
    }
    none = ranked.errors({}, AS_IT_WAS)
    rows: list[dict[str, Any]] = [{"bonus": "none", "list": "none", "listed": none[0], "others": none[1]}]
    for name, bonus in WAYS.items():
        for what, listed in lists.items():
            ours, others = ranked.errors(listed, bonus)
            rows.append({"bonus": name, "list": what, "listed": ours, "others": others})
            print(rows[-1], flush=True)
    publish({"rows": rows}, args.json, seed=0)


if __name__ == "__main__":
    main()
