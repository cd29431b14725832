"""Draws how the study at the paper's sizes learnt: held-out loss of both networks, perplexity of their internal LMs.

python -m experiments.study_paper_figure docs/results/data/study-paper-more.json docs/results/images/study-paper.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LISTENS = 2000  # an internal LM above that perplexity has not begun: CTC alone was trained until then
NAMES = {"rnnt": "RNN-T, 76 M", "aed": "AED, 97 M"}
COLOURS = {"rnnt": "#1f77b4", "aed": "#d62728"}


def losses(axes: Any, results: dict[str, Any]) -> None:
    """Rows are [step, hours, loss]."""
    first = results["aed, first try"]["held_out_loss"]
    axes.plot([r[1] for r in first], [r[2] for r in first], "o--", color="#999999", label="AED, first try")
    for kind, name in NAMES.items():
        curve = results["held_out_loss"][kind]
        axes.plot([r[1] for r in curve], [r[2] for r in curve], "o-", markersize=4, color=COLOURS[kind], label=name)
    axes.set(yscale="log", xlabel="hours of speech heard", ylabel="held-out loss per unit")
    axes.set_yticks([0.2, 0.5, 1, 2, 5], labels=["0.2", "0.5", "1", "2", "5"])
    axes.set_title("recognition", fontsize=10)


def perplexities(axes: Any, results: dict[str, Any]) -> None:
    for kind, name in NAMES.items():
        curve = results["perplexity"]["models"][kind]
        for domain, line in (("source", "-"), ("target", "--")):
            points = [(h, p) for h, p in zip(curve["hours"], curve[domain], strict=True) if p < LISTENS]
            label = f"{name}, {'speeches' if domain == 'source' else 'novels'}"
            axes.plot(*zip(*points, strict=True), line, marker="o", markersize=3, color=COLOURS[kind], label=label)
    axes.axhline(
        results["lm"]["source"]["source_ppl_token"], color="#555555", linestyle=":", label="source LM, speeches"
    )
    axes.set(yscale="log", xlabel="hours of speech heard", ylabel="perplexity per token")
    axes.set_yticks([50, 100, 200, 500, 1000, 2000], labels=["50", "100", "200", "500", "1,000", "2,000"])
    axes.set_title("internal LMs", fontsize=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none"})
    results = json.loads(args.results.read_text(encoding="utf-8"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    losses(left, results)
    perplexities(right, results)
    for axes in (left, right):
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="upper right", fontsize=9)
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    figure.tight_layout()
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
