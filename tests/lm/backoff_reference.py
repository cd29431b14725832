"""A slow n-gram model in dictionaries: reads ARPA text line by line and backs off by recursion.

It shares nothing with the package: it knows words as strings, works in log10 and looks up one word at a time.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from pathlib import Path


class DictionaryModel:
    def __init__(self, path: Path) -> None:
        self.prob: dict[tuple[str, ...], float] = {}
        self.backoff: dict[tuple[str, ...], float] = {}
        self.order = 0
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("\\") and line.endswith("-grams:"):
                self.order = int(line[1:].split("-")[0])
            elif "\t" in line:
                fields = line.split("\t")
                gram = tuple(fields[1].split(" "))
                self.prob[gram] = float(fields[0])
                if len(fields) == 3:
                    self.backoff[gram] = float(fields[2])

    def log10(self, word: str, context: tuple[str, ...]) -> float:
        context = context[max(0, len(context) - self.order + 1) :]
        if (*context, word) in self.prob:
            return self.prob[(*context, word)]
        if not context:
            return self.prob[("<unk>",)]
        return self.backoff.get(context, 0.0) + self.log10(word, context[1:])

    def ln(self, word: str, context: tuple[str, ...]) -> float:
        return self.log10(word, context) * math.log(10)


def write_random_arpa(
    path: Path, words: list[str], order: int, seed: int, keep: float = 0.7, spare: bool = False
) -> None:
    """A properly normalised back-off model from random sentences: absolute discounting, random pruning.

    With `spare`, one word of the list is left out and its mass given to `<unk>`.
    """
    rng = random.Random(seed)
    used = words[:-1] if spare else words
    weights = [1 / (i + 1) for i in range(len(used))]
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for _ in range(60):
        line = ["<s>", *rng.choices(used, weights, k=rng.randrange(1, 9)), "</s>"]
        for at in range(1, len(line)):
            for k in range(order):
                if at - k >= 0:
                    counts[tuple(line[at - k : at])][line[at]] += 1
    outcomes = [*used, "</s>"] + (["<unk>"] if spare else [])
    total = sum(counts[()].values()) + len(outcomes)
    prob = {(w,): math.log10((counts[()][w] + 1) / total) for w in outcomes}
    backoff: dict[tuple[str, ...], float] = {}

    def p(word: str, context: tuple[str, ...]) -> float:
        if (*context, word) in prob:
            return 10 ** prob[(*context, word)]
        return 10 ** backoff.get(context, 0.0) * p(word, context[1:])

    for k in range(1, order):
        for context in sorted(c for c in counts if len(c) == k):
            if k > 1 and context not in prob:  # its own n-gram was pruned, so it cannot be a context
                continue
            seen = {w: c for w, c in sorted(counts[context].items()) if rng.random() < keep}
            n = sum(counts[context].values())
            lower = {w: p(w, context[1:]) for w in seen}
            for w, c in seen.items():
                prob[(*context, w)] = math.log10((c - 0.4) / n)
            left = 1 - sum(10 ** prob[(*context, w)] for w in seen)
            backoff[context] = math.log10(left / (1 - sum(lower.values())))
    prob[("<s>",)] = -99.0
    with path.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        for k in range(1, order + 1):
            file.write(f"ngram {k}={sum(len(g) == k for g in prob)}\n")
        for k in range(1, order + 1):
            file.write(f"\n\\{k}-grams:\n")
            for gram in sorted(g for g in prob if len(g) == k):
                tail = f"\t{backoff.get(gram, 0.0)!r}" if k < order else ""
                file.write(f"{prob[gram]!r}\t{' '.join(gram)}{tail}\n")
        file.write("\n\\end\\\n")
