"""Word errors against lines of text, and against minutes of training: voice commands.

    python -m experiments.commands_curves measure --model tiny.en.pt --work out/curves \
        --json docs/results/data/commands-curves.json
    python -m experiments.commands_curves draw --json docs/results/data/commands-curves.json \
        --figures docs/results/images

Text, voices and what is done for each point are those of `experiments.commands_lm`, with sentences and a test set of
another seed. `lines` has the n-gram alone and what `ilme adapt --lm auto` makes in two minutes; `minutes` gives `auto`
more and more of them for the same text. Every point is tuned on the same dev speech and decodes test once.
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
MINUTES = (0.5, 2.0)  # no minutes is the n-gram alone
AT_MINUTES, AT_LINES = 2.0, 5000
SEED, DEV, TEST, BEAM, DECODES = 1, 100, 300, 4, 5
COLOURS = {"ngram": "#777777", "auto": "#0b4f8a"}
NAMES = {"ngram": "n-gram alone", "auto": f"--lm auto --minutes {AT_MINUTES:g}"}


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    text = draw_text(args.work, [max(LINES), DEV, TEST], SEED)
    speak(args.work)
    bench = Bench(args)
    rows: dict[str, list[dict[str, Any]]] = {"lines": [], "minutes": []}
    for lines in LINES:
        for lm, minutes in (("ngram", 0.0), ("auto", AT_MINUTES)):
            rows["lines"].append(point(bench, lines, lm, minutes))
    for minutes in (0.0, *MINUTES):
        rows["minutes"].append(point(bench, AT_LINES, "auto" if minutes else "ngram", minutes))
    options = {"internal LM": INTERNAL, "dev utterances": DEV, "dev decodes": DECODES, "beam": BEAM}
    publish({"text": text, **options, "BS": bench.plain_row(), **rows}, args.json, seed=SEED)


def point(bench: Bench, lines: int, lm: str, minutes: float) -> dict[str, Any]:
    """One LM: what it predicts, what its training took, and what ILME with it leaves of the errors."""
    bench.args.minutes = minutes
    cell = bench.cell(lines, lm)
    about, weights = cell["about"], cell["ILME"]["weights"]
    return {
        "lines": lines,
        "minutes": minutes,
        "LM": lm,
        "shares": about.get("weights", {}),
        "perplexity": about.get("perplexity", {}),
        "training, CPU s": cell["time"]["CPU s"],
        "training, s": cell["time"]["wall s"],
        "λ_T": weights["lm"],
        "μ": weights["subtracted"],
        **{name: value for name, value in cell["ILME"].items() if name not in ("weights", "dev")},
    }


def draw(found: dict[str, Any], folder: Path) -> None:
    """commands-lines.svg and commands-minutes.svg."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none", "font.family": "sans-serif"})
    without = found["BS"]["WER"]
    for what, label in (("lines", "lines of text"), ("minutes", "minutes of training (0: the n-gram alone)")):
        figure, axes = plt.subplots(figsize=(5.2, 3.2))
        for lm in ("ngram", "auto") if what == "lines" else ("auto",):
            rows = [row for row in found[what] if what == "minutes" or row["LM"] == lm]
            places = [row[what] for row in rows]
            low, high = ([row["95 %"][k] for row in rows] for k in (0, 1))
            axes.fill_between(places, low, high, color=COLOURS[lm], alpha=0.12, linewidth=0)
            axes.plot(places, [row["WER"] for row in rows], "o-", color=COLOURS[lm], label=NAMES[lm])
        axes.axhline(without, color="#999999", linestyle=":", linewidth=1)
        axes.text(places[0], without, "no LM", color="#777777", fontsize=9, va="bottom")
        axes.set_xscale("log" if what == "lines" else "symlog", **({} if what == "lines" else {"linthresh": 0.5}))
        axes.set_xticks(places, [f"{x:,}" if x >= 1000 else f"{x:g}" for x in places], fontsize=8)
        axes.minorticks_off()
        axes.set(xlabel=label, ylabel="test WER, %", ylim=(0, None))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if what == "lines":
            axes.legend(frameon=False)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"commands-{what}.svg", metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "draw"))
    parser.add_argument("--model")
    parser.add_argument("--work", type=Path, help="folder for text, speech and what is done")
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
