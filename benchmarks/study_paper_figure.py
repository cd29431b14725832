"""Draws how the study at the paper's sizes learnt: held-out loss of the RNN-T, and perplexity of both internal LMs.

R=benchmarks/results
python benchmarks/study_paper_figure.py $R/study-paper.json $R/study-paper-longer.json docs/images/study-paper.svg

The second file has the AED, which was trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LISTENS = 2000  # an internal LM above that perplexity has not begun: its joint network was not yet started
COLOURS = {"rnnt": "#1f77b4", "aed": "#d62728"}


def losses(axes: Any, results: dict[str, Any]) -> None:
    """Rows are [step, hours, loss]."""
    first = results["first try"]["held_out_loss"]["rnnt"]
    axes.plot([r[0] for r in first], [r[2] for r in first], "o--", color="#999999", label="first try")
    now = results["held_out_loss"]["rnnt"][1:]  # at the first look CTC alone was trained
    axes.plot([r[0] for r in now], [r[2] for r in now], "o-", color=COLOURS["rnnt"], label="this run")
    axes.set(xlabel="steps", ylabel="held-out loss per unit", ylim=(0, 4.8), xlim=(0, 3600))
    axes.set_title("76 M RNN-T", fontsize=10)


def perplexities(axes: Any, results: dict[str, Any], longer: dict[str, Any]) -> None:
    for kind, name, source in (("rnnt", "RNN-T", results), ("aed", "AED", longer)):
        curve = source["perplexity"]["models"][kind]
        points = [(h, p) for h, p in zip(curve["hours"], curve["source"], strict=True) if p < LISTENS]
        label = f"internal LM, {name}"
        axes.plot(*zip(*points, strict=True), "o-", markersize=3, color=COLOURS[kind], label=label)
    axes.axhline(results["lm"]["source"]["source_ppl_token"], color="#555555", linestyle=":", label="source LM")
    axes.set(yscale="log", xlabel="hours of speech heard", ylabel="perplexity per token, source text")
    axes.set_yticks([50, 100, 200, 500, 1000], labels=["50", "100", "200", "500", "1,000"])
    axes.minorticks_off()
    axes.set_title("internal LMs", fontsize=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("longer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none"})
    results, longer = (json.loads(f.read_text(encoding="utf-8")) for f in (args.results, args.longer))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    losses(left, results)
    perplexities(right, results, longer)
    for axes, height in ((left, 0.4), (right, 0.13)):  # where no curve runs
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, height), fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
