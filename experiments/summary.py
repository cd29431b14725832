"""What every study measured, in one table, and pictures: summary.svg for the README, studies.svg of all studies.

lms.svg shows for the guide how well LMs of little text predict, from lm-choice.json.

python -m experiments.summary docs/results/data/summary.json docs/results/images

Numbers are read from the results files of the studies; nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "data"
METHODS = ("BS", "SF", "DR", "LODR", "ILME", "ILME-learned")
STYLE = {  # of each method in the picture: name, colour, size, shape
    "SF": ("Shallow Fusion", "#999999", 60, "o"),
    "DR": ("Density Ratio", "#e69f00", 42, "D"),
    "LODR": ("LODR", "#e6c35c", 42, "s"),
    "ILME": ("ILME", "#56a0d3", 75, "o"),
    "ILME-learned": ("ILME-learned", "#0b4f8a", 75, "o"),
}
BARS = {  # of the README's picture: name, colour
    "BS": ("as it is", "#c4c4c4"),
    "SF": ("with an LM of the text (Shallow Fusion)", "#8fb8d8"),
    "ILME": ("with the LM, internal LM subtracted (ilme)", "#0b5fa5"),
}
LMS = {"ngram": "#c4c4c4", "lstm": "#8fb8d8", "decoder": "#4a86bd", "ngram and decoder": "#0b5fa5"}


@dataclass(frozen=True)
class Row:
    """One recogniser in one domain of which it had text alone.

    Attributes:
        recogniser: Which.
        domain: What is recognised.
        speech: Of the test set: recordings or synthetic.
        file: The study's results.
        place: Keys that lead to its systems in that file.
        names: Of the systems, where they are not the methods' own.
        model: Whose rows of a table they are.
        shown: Whether it is in the README.
    """

    recogniser: str
    domain: str
    speech: str
    file: str
    place: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()
    model: str = ""
    shown: bool = False

    def systems(self) -> dict[str, dict[str, Any]]:
        """What was found, by method."""
        found: Any = json.loads((RESULTS / self.file).read_text(encoding="utf-8"))
        for key in self.place:
            found = found[key]
        if self.model:
            found = {row["system"].removeprefix(f"{self.model} "): row for row in found}
        named = dict(self.names)
        return {m: found[named.get(m, m)] for m in METHODS if named.get(m, m) in found}

    def rates(self) -> dict[str, float]:
        """Test WER by method."""
        return {m: round(found["test WER" if self.model else "WER"], 2) for m, found in self.systems().items()}

    def errors(self) -> dict[str, int]:
        """Test word errors by method, counted."""
        kinds = ("substitutions", "deletions", "insertions")
        return {m: sum(found[kind] for kind in kinds) for m, found in self.systems().items()}


STUDIES = (
    Row("Whisper tiny.en", "voice commands", "synthetic", "whisper-commands.json", ("systems",), shown=True),
    Row(
        "Whisper tiny.en",
        "calls to a bank",
        "recordings",
        "whisper-bank-test.json",
        ("systems",),
        (("SF", "SF, fold"), ("ILME", "ILME mean-encoder, fold")),
        shown=True,
    ),
    Row(
        "Whisper tiny.en",
        "audiobooks",
        "recordings",
        "whisper-librispeech.json",
        ("systems",),
        (("ILME", "ILME zeroed"), ("ILME-learned", "ILME learned")),
        shown=True,
    ),
    Row(
        "RNN-T, Whisper's encoder",
        "audiobooks",
        "recordings",
        "study-real-words.json",
        ("cross",),
        model="rnnt",
        shown=True,
    ),
    Row("AED, Whisper's encoder", "audiobooks", "recordings", "study-real-aed.json", ("cross",), model="aed"),
    Row("RNN-T, Whisper's encoder", "calls to a bank", "recordings", "study-real-words.json", ("calls",), model="rnnt"),
    Row(
        "AED, Whisper's encoder", "calls to a bank", "recordings", "study-real-aed.json", ("calls", "rows"), model="aed"
    ),
    Row("RNN-T, 7 M", "novels", "synthetic", "study-small.json", ("cross",), model="rnnt"),
    Row("AED, 7 M", "novels", "synthetic", "study-small.json", ("cross",), model="aed"),
    Row("RNN-T, 76 M", "novels", "synthetic", "study-paper-more.json", ("cross",), model="rnnt"),
    Row("AED, 97 M", "novels, new voices", "synthetic", "study-paper-right.json", ("cross",), model="aed", shown=True),
)


def summary() -> list[dict[str, Any]]:
    """A row for each study: test WER by method, and by how much each ILME is below Shallow Fusion."""
    rows = []
    for row in STUDIES:
        rates, errors = row.rates(), row.errors()
        gains = {m: round(100 * (errors[m] / errors["SF"] - 1), 1) for m in ("ILME", "ILME-learned") if m in errors}
        about = {"recogniser": row.recogniser, "domain": row.domain, "speech": row.speech, "file": row.file}
        rows.append(about | {"test WER": rates, "against SF, %": gains})
    return rows


def draw_gains(rows: list[dict[str, Any]], out: Path) -> None:
    """Word errors as they are, with an LM, and with the internal LM subtracted, in the domains of the README."""
    plt = drawing()
    shown = [row for row, study in zip(rows, STUDIES, strict=True) if study.shown]
    figure, axes = plt.subplots(figsize=(8.6, 0.86 * len(shown) + 1.1))
    for y, row in enumerate(reversed(shown)):
        for k, (method, (name, colour)) in enumerate(BARS.items()):
            rate, at, last = row["test WER"][method], y + 0.26 * (1 - k), method == "ILME"
            axes.barh(at, rate, 0.24, color=colour, label=None if y else name)
            axes.text(
                rate + 0.6,
                at,
                f"{rate:.1f}",
                va="center",
                fontsize=9.5,
                color="#0b5fa5" if last else "#555555",
                fontweight="bold" if last else "normal",
            )
    names = [f"{row['domain']}{' (synthetic)' * (row['speech'] == 'synthetic')}\n{row['recogniser']}" for row in shown]
    axes.set_yticks(range(len(shown)), names[::-1], fontsize=10)
    axes.set_xlim(0, 76)
    axes.set_xticks([])
    axes.set_title("Wrong words in 100 spoken ones; fewer is better", x=-0.3, loc="left", fontweight="bold", pad=30)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(ncols=3, frameon=False, loc="lower left", bbox_to_anchor=(-0.32, 0.985), columnspacing=1.2)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None}, bbox_inches="tight")


def draw_lms(out: Path) -> None:
    """Perplexity of each LM on held-out lines, for as many lines as it was made of."""
    plt = drawing()
    held_out = json.loads((RESULTS / "lm-choice.json").read_text(encoding="utf-8"))["held-out lines"]
    figure, every = plt.subplots(1, len(held_out), figsize=(8.6, 2.6))
    for axes, (size, found) in zip(every, held_out.items(), strict=True):
        names = [name for name in LMS if name in found]
        for y, name in enumerate(reversed(names)):
            axes.barh(y, found[name], 0.7, color=LMS[name])
            axes.text(found[name], y, f" {found[name]:.0f}", va="center", fontsize=9.5, color="#444444")
        axes.set_yticks(range(len(names)), names[::-1], fontsize=10)
        axes.set_xlim(0, 1.2 * max(found[name] for name in names))
        axes.set_xticks([])
        axes.set_title(size, fontsize=11, fontweight="bold", loc="left")
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.tight_layout(w_pad=2)
    figure.savefig(out, metadata={"Date": None}, bbox_inches="tight")


def drawing() -> Any:
    """matplotlib's pyplot, set so that the same numbers give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none", "font.family": "sans-serif"})
    return plt


def draw_studies(rows: list[dict[str, Any]], out: Path) -> None:
    """Errors left of those without an LM, whose WER stands at the right: a line a study, a mark a method."""
    plt = drawing()
    figure, axes = plt.subplots(figsize=(9.6, 0.52 * len(rows) + 1.3))
    for y, row in enumerate(reversed(rows)):
        rates = row["test WER"]
        left = {m: 100 * rates[m] / rates["BS"] for m in STYLE if m in rates}
        axes.plot(
            [min(left.values()), max(100, *left.values())],
            [y, y],
            color="#dddddd",
            linewidth=2,
            zorder=1,
            solid_capstyle="round",
        )
        for m, at in left.items():
            name, colour, size, shape = STYLE[m]
            first = m in rates and not any(m in r["test WER"] for r in rows[: len(rows) - 1 - y])
            axes.scatter(
                at,
                y,
                s=size,
                c=colour,
                marker=shape,
                zorder=3,
                label=name if first else None,
                linewidths=0.8,
                edgecolors="white",
            )
        axes.text(109.5, y, f"{rates['BS']:.2f}", va="center", fontsize=9, color="#444444")
    axes.set_yticks(range(len(rows)), [f"{r['domain']} · {r['recogniser']}" for r in reversed(rows)], fontsize=9.5)
    axes.set_xlim(28, 114)
    axes.set_xticks(range(30, 101, 10), [f"{x} %" for x in range(30, 101, 10)])
    axes.set_xlabel("word errors left, of those without a language model")
    axes.axvline(100, color="#bbbbbb", linewidth=1, zorder=0)
    axes.text(109.5, len(rows) - 0.5, "WER", fontsize=9, color="#444444")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    order = {name: i for i, (name, *_) in enumerate(STYLE.values())}
    handles, labels = axes.get_legend_handles_labels()
    ranked = sorted(zip(labels, handles, strict=True), key=lambda pair: order[pair[0]])
    axes.legend(
        [h for _, h in ranked],
        [label for label, _ in ranked],
        ncols=len(ranked),
        frameon=False,
        fontsize=9.5,
        loc="lower left",
        bbox_to_anchor=(-0.35, 1.0),
        handletextpad=0.2,
    )
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("pictures", type=Path)
    args = parser.parse_args()
    rows = summary()
    args.table.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draw_gains(rows, args.pictures / "summary.svg")
    draw_studies(rows, args.pictures / "studies.svg")
    draw_lms(args.pictures / "lms.svg")


if __name__ == "__main__":
    main()
