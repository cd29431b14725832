"""What a search costs as it grows: with frames, beam, output units, size of the n-gram model, listed phrases.

    python -m benchmarks.growth --folder DIR --json docs/results/data/growth.json --figures docs/results/images
    python -m benchmarks.growth --draw docs/results/data/growth.json --figures docs/results/images

An RNN-T of the paper's size (`benchmarks.workload`), float32, one thread, one utterance at a time, ILME with a 4-gram.
What is longer than an utterance of the workload is several, one after the other.
One thing grows at a time; the others are 167 frames, beam 10, 4000 units, an n-gram model of a million tokens, and no
phrases. The searches take turns, and each one's cost is the least of --repeats.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import workload
from benchmarks.timing import own_cpu_seconds, publish
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.lm.ngram import NGramScorer, lm_tokens
from ilme.lm.ngram_sorted import train_sorted
from ilme.lm.ngram_train import NGramOptions
from ilme.lm.phrases import PhraseScorer, WordEdges
from ilme.models.packed import pack
from ilme.models.rnnt import PRESETS, RNNT
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import numbered_tokens

BASE: dict[str, int] = {"frames": 167, "beam": 10, "units": 4000, "tokens of n-gram text": 1_000_000, "phrases": 0}
GROWS: dict[str, tuple[int, ...]] = {
    "frames": (42, 84, 167, 334, 668),
    "beam": (2, 5, 10, 20, 40),
    "units": (512, 1000, 2000, 4000, 8000),
    "tokens of n-gram text": (62_500, 250_000, 1_000_000, 4_000_000, 16_000_000),
    "phrases": (0, 10, 100, 1000, 10_000),
}
WEIGHTS = FusionWeights(lm=0.3, subtracted=0.12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where n-gram models are kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--draw", type=Path, help="only draw the figures of this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.draw:
        publish({"base": BASE, "rows": measured(args)}, args.json, seed=args.seed)
    source = args.draw or args.json
    if args.figures and source:
        draw(json.loads(source.read_text(encoding="utf-8")), args.figures)


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for what, values in GROWS.items():
        searches = {value: search(args, BASE | {what: value}) for value in values}
        best = dict.fromkeys(values, float("inf"))
        for _ in range(args.repeats):
            for value, run in searches.items():
                began = own_cpu_seconds()
                run()
                best[value] = min(best[value], own_cpu_seconds() - began)
        for value, seconds in best.items():
            rows.append({"grows": what, "value": value, "CPU s": round(seconds, 4)})
            print(json.dumps(rows[-1]), flush=True)
    return rows


@functools.cache
@torch.no_grad()
def network(units: int, seed: int) -> tuple[RNNT, torch.Tensor]:
    """A packed RNN-T with so many output units, and the acoustic terms of one long utterance for it."""
    workload.V = units
    generator = torch.Generator().manual_seed(seed)
    codes = workload.label_codes(generator)
    model = RNNT(PRESETS["paper"], numbered_tokens(units, "transducer")).eval()
    workload.without_encoder(model)
    workload.wire_transducer(model, codes, generator)
    return pack(model), workload.utterances(codes, seed)[0].flatten(0, 1)


def search(args: argparse.Namespace, sizes: dict[str, int]) -> Callable[[], Any]:
    """One utterance with these sizes."""
    model, acoustics = network(sizes["units"], args.seed)
    frames = acoustics[: sizes["frames"]][None]
    tokens = lm_tokens(model.tokens)
    phrases = phrase_scorer(tokens, sizes["phrases"]) if sizes["phrases"] else None
    fusion = Fusion(
        ngram(args.folder, tokens, sizes["tokens of n-gram text"]),
        TransducerInternalLM(model),
        FusionWeights(WEIGHTS.lm, WEIGHTS.subtracted, phrases=1.0 if phrases else 0.0),
        phrases=phrases,
    )
    found = TransducerSearch(model, fusion, TransducerOptions(beam=sizes["beam"]))
    return lambda: found(frames, torch.tensor([frames.shape[1]]))


def ngram(folder: Path, tokens: Any, size: int) -> NGramScorer:
    """A 4-gram of so many tokens, drawn so that few are frequent and each one depends on the one before it."""
    file = folder / f"growth-{len(tokens)}-{size}.safetensors"
    if not file.is_file():
        random = np.random.default_rng(size)
        steps = np.minimum(random.zipf(1.3, size), len(tokens) - 1)
        ids = np.maximum(np.cumsum(steps * (random.random(size) < 0.7)) * 7 % len(tokens), 0)
        ids[random.random(size) < 1 / 20] = tokens.eos
        train_sorted(ids.astype(np.uint16), tokens, file, NGramOptions(4))
    return NGramScorer.load(file)


def phrase_scorer(tokens: Any, count: int) -> PhraseScorer:
    """So many phrases of two to five labels, each of which is a word."""
    random = np.random.default_rng(count)
    listed = {tuple(random.integers(1, len(tokens), random.integers(2, 6)).tolist()): 3.0 for _ in range(count)}
    yes, no = (True,) * len(tokens), (False,) * len(tokens)
    return PhraseScorer(tokens, listed, WordEdges(begins=yes, closes=yes, opens=no))


def draw(found: dict[str, Any], folder: Path) -> None:
    """One figure for each thing that grows; both axes are logarithmic but for phrases, of which there may be none."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none", "font.family": "sans-serif"})
    for what, points in series(found):
        figure, axes = plt.subplots(figsize=(4.2, 2.8))
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", color="#20639b")
        axes.set_xscale("symlog" if points[0][0] == 0 else "log")
        if what != "phrases":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks([x for x, _ in points], [f"{x:,}" for x, _ in points], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(what)
        axes.set_ylabel("CPU s")
        axes.grid(alpha=0.3)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"growth-{what.split()[0] if what != 'tokens of n-gram text' else 'n-gram'}.svg"
        figure.savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)


def series(found: dict[str, Any]) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for what in dict.fromkeys(row["grows"] for row in found["rows"]):
        yield what, [(row["value"], row["CPU s"]) for row in found["rows"] if row["grows"] == what]


if __name__ == "__main__":
    main()
