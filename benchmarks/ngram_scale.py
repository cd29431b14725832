"""n-gram models of large texts: what training, loading and a row cost, by the number of tokens; KenLM beside it.

    python -m benchmarks.ngram_scale --tokens novels.tok --sizes 20e6 100e6 200e6 --folder DIR \
        --json docs/results/data/ngram-scale.json

Real text is taken first. What a size needs beyond it is made of fragments of it, 14 tokens long in the mean, joined
anew: about a fifth of its n-grams of order 4 are then new ones, as in real text of that size. Each piece of work is
done in a process of its own. Its memory is that which is no view of a file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import own_cpu_seconds, publish
from ilme.data.tokenfile import TokenFile
from ilme.lm.ngram import NGramScorer, build_automaton
from ilme.lm.ngram_sorted import train_sorted
from ilme.lm.ngram_train import NGramOptions, train_ngram

MEAN = 14  # tokens of a fragment
ROWS, STEPS = 25, 200  # sequences that are scored at a time, and how many labels of each
KENLM = """
import json, sys, time, kenlm
model = kenlm.Model(sys.argv[1])
contexts, words = json.load(open(sys.argv[2]))
out = kenlm.State()
began, scored = time.process_time(), 0
for context in contexts:
    state = kenlm.State()
    model.NullContextWrite(state)
    for word in context:
        after = kenlm.State()
        model.BaseScore(state, word, after)
        state = after
    for word in words:
        model.BaseScore(state, word, out)
    scored += 1
print((time.process_time() - began) / scored)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", required=True, help="a token file of real text")
    parser.add_argument("--sizes", nargs="*", type=float, default=[20e6, 100e6])
    parser.add_argument("--in-memory", nargs="*", type=float, default=[], help="sizes also trained in memory")
    parser.add_argument("--order", type=int, default=4)
    parser.add_argument("--folder", type=Path, required=True, help="where models and what is sorted go")
    parser.add_argument("--kenlm-python", default="", help="an interpreter that has KenLM")
    parser.add_argument("--kenlm-size", type=float, default=2e6, help="tokens of the model that KenLM reads, as ARPA")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for size in args.sizes:
        file = args.folder / f"{int(size / 1e6)}.safetensors"
        row = {"tokens": int(size)} | apart(_train, args.tokens, size, args.order, file, args.seed)
        row |= {"file, GB": round(file.stat().st_size / 1e9, 2)} | apart(_load, args.tokens, file)
        if size in args.in_memory:
            found = apart(_train_in_memory, args.tokens, size, args.order, args.seed)
            row |= {f"{name}, in memory": value for name, value in found.items()}
        rows.append(row)
        print(json.dumps(row), flush=True)
    kenlm = beside_kenlm(args) if args.kenlm_python else {}
    publish({"order": args.order, "rows": rows, "kenlm": kenlm}, args.json, seed=args.seed)


def grown(ids: np.ndarray[Any, Any], size: int, seed: int) -> Iterator[np.ndarray[Any, Any]]:
    """So many tokens, piece by piece: the text, and then fragments of it."""
    random = np.random.default_rng(seed)
    yield ids[:size]
    made = min(size, len(ids))
    while made < size:
        lengths = random.geometric(1 / MEAN, 200_000)
        shift = random.integers(0, len(ids) - 1000, len(lengths)) - np.append(0, np.cumsum(lengths)[:-1])
        places = np.repeat(shift, lengths) + np.arange(lengths.sum())
        yield ids[np.minimum(places[: size - made], len(ids) - 1)]
        made += min(len(places), size - made)


def apart(work: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """What some work gives in a process of its own, its CPU seconds and the most memory that it had."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_watched, (work, args))


def _watched(work: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> dict[str, Any]:
    torch.set_num_threads(1)
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            lines = Path("/proc/self/status").read_text().splitlines()
            peak[0] = max(peak[0], next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("RssAnon")))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return work(*args) | {f"{work.__name__[1:]}: GB": round(peak[0], 2)}
    finally:
        done.set()
        thread.join()


def _train(tokens: str, size: float, order: int, file: Path, seed: int) -> dict[str, Any]:
    source = TokenFile(tokens)
    with tempfile.NamedTemporaryFile(dir=file.parent) as text:  # mapped, as a token file is
        for piece in grown(np.asarray(source.ids), int(size), seed):
            text.write(piece.tobytes())
        text.flush()
        ids = np.memmap(text.name, source.ids.dtype, "r")
        began, wall = own_cpu_seconds(), time.perf_counter()
        made = train_sorted(ids, source.inventory, file, NGramOptions(order))
    seconds = own_cpu_seconds() - began
    return {
        "n-grams": sum(made.kept),
        "n-grams of the highest order": made.kept[-1],
        "train: CPU s": round(seconds, 1),
        "train: s": round(time.perf_counter() - wall, 1),
    }


def _train_in_memory(tokens: str, size: float, order: int, seed: int) -> dict[str, Any]:
    source = TokenFile(tokens)
    ids = np.concatenate(list(grown(np.asarray(source.ids), int(size), seed)))
    began = own_cpu_seconds()
    build_automaton(train_ngram(ids, source.inventory, NGramOptions(order)).arpa)
    return {"train: CPU s": round(own_cpu_seconds() - began, 1)}


def _load(tokens: str, file: Path) -> dict[str, Any]:
    """Opening the model, and rows of sequences that go along the text."""
    ids = np.asarray(TokenFile(tokens).ids[-ROWS * STEPS * 2 :]).astype(np.int64)
    began, wall = own_cpu_seconds(), time.perf_counter()
    scorer = NGramScorer.load(file)
    loading, waited = own_cpu_seconds() - began, time.perf_counter() - wall
    labels = torch.from_numpy(ids[: ROWS * STEPS].reshape(ROWS, STEPS))
    best = float("inf")
    for _ in range(3):
        began = own_cpu_seconds()
        _, state = scorer.start(ROWS)
        for step in range(STEPS):
            _, state = scorer.score(labels[:, step], state)
        best = min(best, own_cpu_seconds() - began)
    rows = round(ROWS * STEPS / best)
    return {"load: CPU s": round(loading, 2), "load: s": round(waited, 2), "rows per CPU s": rows}


def beside_kenlm(args: argparse.Namespace) -> dict[str, Any]:
    """CPU seconds of one row over the whole inventory, by this and by KenLM's Python module, for one model."""
    from ilme.lm.arpa import write_arpa

    source = TokenFile(args.tokens)
    ids = np.asarray(source.ids[: int(args.kenlm_size)])
    trained, tokens = train_ngram(ids, source.inventory, NGramOptions(args.order)), source.inventory
    scorer = NGramScorer(build_automaton(trained.arpa), tokens, trained.arpa.missing, trained.arpa.unknown)
    starts = np.random.default_rng(args.seed).integers(0, len(source.ids) - args.order, 8 * ROWS)
    contexts = np.stack([np.asarray(source.ids[a : a + args.order - 1]) for a in starts]).astype(np.int64)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        arpa, asked = Path(folder) / "model.arpa", Path(folder) / "asked.json"
        write_arpa(arpa, trained.arpa, tokens, "ids")
        asked.write_text(json.dumps([[[str(i) for i in c] for c in contexts], [str(i) for i in range(len(tokens))]]))
        command = [args.kenlm_python, "-c", KENLM, str(arpa), str(asked)]
        theirs = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    best = float("inf")
    for _ in range(3):
        began = own_cpu_seconds()
        for batch in torch.from_numpy(contexts).split(ROWS):
            _, state = scorer.start(len(batch))
            for label in batch.unbind(1):
                _, state = scorer.score(label, state)
        best = min(best, (own_cpu_seconds() - began) / contexts.size)
    found = {"tokens": len(ids), "V": len(tokens), "KenLM, CPU ms per row": round(theirs * 1e3, 4)}
    return found | {"ilme, CPU ms per row": round(best * 1e3, 4), "times": round(theirs / best, 1)}


if __name__ == "__main__":
    main()
