"""Word errors against lines of text, and against minutes of training: voice commands.

    python -m experiments.commands_curves measure --model tiny.en.pt --work out/curves \
        --json docs/results/data/commands-curves.json
    python -m experiments.commands_curves draw --json docs/results/data/commands-curves.json \
        --figures docs/results/images

Text, voices and what is done for each point are those of `experiments.commands_lm`, with sentences and a test set of
another seed. Each amount of text has the n-gram alone, which takes no minutes, and what `ilme adapt --lm auto` makes in
some. Every point is tuned on the same dev speech and decodes test once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish

from experiments.commands_domain import draw_text, speak
from experiments.commands_lm import INTERNAL, Bench

LINES = (50, 500, 5000)
MINUTES = (0.0, 2.0)  # no minutes is the n-gram alone
SEED, DEV, TEST, BEAM, DECODES = 1, 100, 300, 4, 5
COLOURS = ("#777777", "#56a0d3", "#0b4f8a")


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    text = draw_text(args.work, [max(LINES), DEV, TEST], SEED)
    speak(args.work)
    bench = Bench(args)
    rows = [point(bench, lines, minutes) for lines in args.lines for minutes in MINUTES]
    options = {"internal LM": INTERNAL, "dev utterances": DEV, "dev decodes": DECODES, "beam": BEAM}
    publish({"text": text, **options, "BS": bench.plain_row(), "points": rows}, args.json, seed=SEED)


def point(bench: Bench, lines: int, minutes: float) -> dict[str, Any]:
    """One LM: what it predicts, what its training took, and what ILME with it leaves of the errors."""
    bench.args.minutes = minutes
    cell = bench.cell(lines, "auto" if minutes else "ngram")
    about, weights = cell["about"], cell["ILME"]["weights"]
    return {
        "lines": lines,
        "minutes": minutes,
        "shares": about.get("weights", {}),
        "perplexity": about.get("perplexity", {}),
        "training, CPU s": cell["time"]["CPU s"],
        "training, s": cell["time"]["wall s"],
        "λ_T": weights["lm"],
        "μ": weights["subtracted"],
        **{name: value for name, value in cell["ILME"].items() if name not in ("weights", "dev")},
    }


def draw(found: dict[str, Any], folder: Path) -> None:
    """commands-lines.svg, a line for each number of minutes, and commands-minutes.svg, one for each amount of text."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none", "font.family": "sans-serif"})
    points, without = found["points"], found["BS"]["WER"]
    for along, other, label in (
        ("lines", "minutes", "lines of text"),
        ("minutes", "lines", "minutes of training (0: the n-gram alone)"),
    ):
        figure, axes = plt.subplots(figsize=(5.2, 3.2))
        places = sorted({row[along] for row in points})
        for value, colour in zip(sorted({row[other] for row in points}), COLOURS, strict=False):
            rows = sorted((row for row in points if row[other] == value), key=lambda row: row[along])
            at = [row[along] for row in rows]
            axes.fill_between(
                at, *zip(*(row["95 %"] for row in rows), strict=True), color=colour, alpha=0.12, linewidth=0
            )
            axes.plot(at, [row["WER"] for row in rows], "o-", color=colour, label=f"{value:,g} {other}")
        axes.axhline(without, color="#999999", linestyle=":", linewidth=1)
        axes.text(places[0], without + 1, "no LM", color="#777777", fontsize=9)
        if along == "lines":
            axes.set_xscale("log")
        axes.set_xticks(places, [f"{x:,g}" for x in places], fontsize=8)
        axes.minorticks_off()
        axes.set(xlabel=label, ylabel="test WER, %", ylim=(0, without + 8))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"commands-{along}.svg", metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "draw"))
    parser.add_argument("--model")
    parser.add_argument("--work", type=Path, help="folder for text, speech and what is done")
    parser.add_argument("--lines", type=int, nargs="*", default=LINES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figures", type=Path)
    args = parser.parse_args()
    if args.what == "draw":
        draw(json.loads(args.json.read_text(encoding="utf-8")), args.figures)
        return
    shared = {"seed": SEED, "dev": DEV, "decodes": DECODES, "beam": BEAM, "methods": ["ILME"], "finished": False}
    measure(argparse.Namespace(**vars(args) | shared))


if __name__ == "__main__":
    main()
