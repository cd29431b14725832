"""Which errors of Whisper a domain's LM repairs, which it makes, and which remain; and the picture of WER against λ_T.

python -m experiments.whisper_errors kinds --speech librispeech-dev-clean --work out/whisper \
    --text novels/train.tokens --json docs/results/data/whisper-errors.json
python -m experiments.whisper_errors curves --results docs/results/data/whisper-librispeech.json \
    --out docs/results/images/whisper-librispeech.svg

`kinds` reads the texts of finished systems, which `benchmarks.whisper accuracy` left in --work, and the LM's training
text. Each place where a hypothesis and its reference differ, a maximal run of differing words, is of one kind, the
first that fits:

    spaces     the same letters, other spaces: "to morrow", "tomorrow"
    cut        five or more words of the reference, and at most a fifth as many of the hypothesis
    added      no word of the reference
    same sound espeak-ng says both alike: "Lettie", "Letty"
    unknown    a word of the reference is nowhere in the LM's text
    name       a word of the reference has a capital there in 80 % of the places that are not the first of a line
    rare       a word of the reference is there fewer than 100 times
    common     all others

`curves` draws what tuning found on the tuning speech: points are decodes, lines are the lists of all of them rescored.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.timing import command, commit
from benchmarks.whisper_sets import Texts

from ilme.data.tokenfile import TokenFile
from ilme.data.utterances import read_utterances
from ilme.errors import MissingExtraError
from ilme.evaluation.metrics import Edit, ErrorCounts, Measurement, align, measure

KINDS = ("spaces", "cut", "added", "same sound", "unknown", "name", "rare", "common")
WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
COLOURS = {"SF": "#d55e00", "zeroed": "#56b4e9", "silence": "#009e73", "mean-encoder": "#cc79a7"}
COLOURS |= {"mean-context": "#0072b2", "learned": "#b8860b", "removed": "#777777"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kinds", "curves"))
    parser.add_argument("--speech", type=Path, help="folder or manifest with splits")
    parser.add_argument("--split", default="test")
    parser.add_argument("--work", type=Path, help="finished systems of benchmarks.whisper")
    parser.add_argument("--text", type=Path, help="token file that the LM was trained on")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--results", type=Path, help="for curves: what benchmarks.whisper reported")
    parser.add_argument("--out", type=Path, help="for curves: the picture")
    args = parser.parse_args()
    if args.what == "curves":
        draw(json.loads(args.results.read_text(encoding="utf-8"))["systems"], args.out)
        return
    found = {"command": command(), "commit": commit(), **kinds_of_errors(args)}
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    print(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")


def kinds_of_errors(args: argparse.Namespace) -> dict[str, Any]:
    """Errors of every system by kind, and how the systems differ from BS, utterance by utterance."""
    finished = (json.loads(p.read_text(encoding="utf-8")) for p in sorted(args.work.glob("*.json")))
    hypotheses = {row["system"]: row["normalised"] for row in finished}
    utterances = read_utterances(args.speech, split=args.split)
    texts = Texts("whisper", 1)
    references = dict(zip((u.id for u in utterances), texts(u.text for u in utterances), strict=True))
    texts.close()
    results = {name: measure(references, said) for name, said in hypotheses.items()}
    text = LmText(args.text)
    rows = {name: system_row(m, results["BS"], text) for name, m in results.items()}
    cut = {name for row in rows.values() for name in row["cut utterances"]}
    least = [min(m.utterances[k].counts.errors for m in results.values()) for k in range(len(utterances))]
    words = results["BS"].total.words
    spoken = [w for r in references.values() for w in r.split()]
    return {
        "LM text": text.summary,
        "words of the references": words,
        "of them nowhere in the LM's text": sum(text.kind_of(w) == "unknown" for w in spoken),
        "systems": rows,
        "on the utterances that no system cut": {name: without(m, cut) for name, m in results.items()},
        "WER of the best system of each utterance": round(100 * sum(least) / words, 3),
    }


def system_row(measured: Measurement, plain: Measurement, text: LmText) -> dict[str, Any]:
    """Errors by kind, cut utterances, and utterances better or worse than BS's."""
    errors: Counter[str] = Counter()
    cut: dict[str, int] = {}
    short = 0
    for u in measured.utterances:
        for place in places(align(u.reference, u.hypothesis)):
            kind = kind_of_place(place, text)
            errors[kind] += len(place)
            if kind == "common" and all({e.reference, e.hypothesis} <= text.commonest for e in place):
                short += len(place)
            if kind == "cut":
                cut[u.id] = cut.get(u.id, 0) + sum(e.kind == "delete" for e in place)
    pairs = [(a.counts.errors, b.counts.errors) for a, b in zip(plain.utterances, measured.utterances, strict=True)]
    return {
        "errors": {kind: errors[kind] for kind in KINDS},
        "common ones among the 150 commonest words": short,
        "all": sum(errors.values()),
        "cut utterances": cut,
        "utterances": {
            "without an error": sum(b == 0 for _, b in pairs),
            "better than BS": sum(b < a for a, b in pairs),
            "worse than BS": sum(b > a for a, b in pairs),
        },
        "errors that BS has and it has not": sum(max(0, a - b) for a, b in pairs),
        "errors that it has and BS has not": sum(max(0, b - a) for a, b in pairs),
    }


def without(measured: Measurement, left_out: set[str]) -> dict[str, Any]:
    kept = [u.counts for u in measured.utterances if u.id not in left_out]
    total = sum(kept, ErrorCounts())
    return {"utterances": len(kept), "WER": round(total.rate, 3), **asdict(total)}


def places(edits: list[Edit]) -> Iterator[list[Edit]]:
    """Maximal runs of words that differ."""
    for equal, run in groupby(edits, key=lambda e: e.kind == "equal"):
        if not equal:
            yield list(run)


def kind_of_place(place: list[Edit], text: LmText) -> str:
    reference = [e.reference for e in place if e.reference]
    hypothesis = [e.hypothesis for e in place if e.hypothesis]
    if "".join(reference) == "".join(hypothesis):
        return "spaces"
    if len(reference) >= 5 and 5 * len(hypothesis) <= len(reference):
        return "cut"
    if not reference:
        return "added"
    if hypothesis and sound(" ".join(reference)) == sound(" ".join(hypothesis)):
        return "same sound"
    kinds = {text.kind_of(word) for word in reference}
    return next(kind for kind in KINDS if kind in kinds)


class LmText:
    """Words of the LM's training text, spelled as Whisper's normaliser spells them."""

    def __init__(self, path: Path) -> None:
        file = TokenFile(path)
        pieces = np.array([p.replace("Ġ", " ") for p in file.inventory.pieces], dtype=object)
        pieces[file.inventory.eos] = "\n"
        self.spelling = american()
        self.count: Counter[str] = Counter()
        self.capital: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        lines = commas = said = 0
        for line in "".join(pieces[file.ids].tolist()).splitlines():
            lines, commas, said = lines + 1, commas + line.endswith(","), said + line.endswith(" said,")
            for place, found in enumerate(WORD.findall(line)):
                word = self.plain(found)
                self.count[word] += 1
                self.inside[word] += place > 0
                self.capital[word] += place > 0 and found[0].isupper()
        self.commonest = {"", *(word for word, _ in self.count.most_common(150))}
        self.summary = {"lines": lines, "words": self.count.total(), "lines that end in a comma": commas}
        self.summary |= {"of them in said": said}

    def plain(self, word: str) -> str:
        word = word.lower().removesuffix("'s")
        return self.spelling.get(word, word)

    def kind_of(self, word: str) -> str:
        """unknown, name, rare or common; numbers are common."""
        if not word.isalpha():
            return "common"
        if not self.count[word]:
            return "unknown"
        if word != "i" and self.inside[word] and self.capital[word] >= 0.8 * self.inside[word]:
            return "name"
        return "rare" if self.count[word] < 100 else "common"


def american() -> Mapping[str, str]:
    try:
        from whisper_normalizer.english import EnglishSpellingNormalizer
    except ImportError as error:
        raise MissingExtraError("whisper-normalizer", "whisper-metrics") from error
    spelling: Mapping[str, str] = EnglishSpellingNormalizer().mapping
    return spelling


@cache
def _phonemes() -> Any:
    """espeak-ng's function from text to phonemes, with an English voice."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise MissingExtraError("espeakng-loader", "synth") from error
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    library.espeak_Initialize(2, 0, str(espeakng_loader.get_data_path()).encode(), 0x8000)
    library.espeak_SetVoiceByName(b"en-us")
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    return library.espeak_TextToPhonemes


@cache
def sound(text: str) -> str:
    """Phonemes without spaces and stress."""
    said, rest = [], ctypes.c_char_p(text.encode())
    while rest.value:
        said.append(_phonemes()(ctypes.byref(rest), 1, 0x02).decode())
    return re.sub(r"[\sˈˌ_:-]", "", "".join(said))


def draw(systems: Mapping[str, Any], out: Path) -> None:
    """WER on the tuning speech against λ_T."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "ilme", "svg.fonttype": "none", "font.family": "sans-serif"}
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    plain = systems["SF"]["tuning"]["decodes"][0]["WER"]
    axes.axhline(plain, color="#777777", linewidth=1, linestyle=":", label=f"no LM ({plain:.2f})")
    for name, row in systems.items():
        if not row["tuning"]:
            continue
        colour, lists = COLOURS[name.removeprefix("ILME ")], row["tuning"]["lists"]
        axes.plot(lists["λ_T"], lists["WER"], color=colour, linewidth=1.4, label=name)
        for step in row["tuning"]["decodes"][1:]:
            axes.plot(step["weights"]["lm"], step["WER"], "o", color=colour, markersize=4.5)
        chosen = row["weights"]["lm"]
        axes.plot(chosen, row["tuning"]["WER"], "o", markersize=9, markerfacecolor="none", markeredgecolor=colour)
    axes.set(xlim=(0, 0.6), ylim=(3.8, 6.6), xlabel="λ_T, weight of the domain's LM", ylabel="WER on tuning speech, %")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
