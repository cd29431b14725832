"""`ilme ngram train`."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ilme.commands.targets import spare_inputs
from ilme.errors import BadInputError

if TYPE_CHECKING:
    from ilme.lm.ngram_sorted import SortedNGram
    from ilme.lm.ngram_train import TrainedNGram


def train(
    tokens: str,
    out: str | None = None,
    order: int = 4,
    prune: list[int] | None = None,
    units: Literal["ids", "pieces"] = "ids",
    binary: bool = False,
) -> None:
    """Train a modified Kneser–Ney model on a token file and write it as ARPA.

    The inventory goes beside it, into OUT.tokens.json. A name that ends in .gz is compressed; one that ends in
    .safetensors gets the form that loads at once instead of ARPA. For that one n-grams are sorted on the disk, in the
    model's folder, so that text of any size can be read.

    Example:
        ilme ngram train out/text.tok --order 4 --out out/domain.arpa.gz

    Args:
        tokens: Token file, made by `ilme text tokenize`.
        out: The model to write; without it the token file's name with .arpa at its end.
        order: N; a token is predicted from the N − 1 before it.
        prune: For each order the count up to which n-grams are left out, unigrams first; the last stands for all
            higher orders: `--prune 0 0 1` leaves out n-grams of order 3 and more that were seen once.
        units: Whether ARPA writes a token as its id or as its piece.
        binary: Also write a KenLM binary beside the ARPA file, with KenLM's own `build_binary`.
    """
    from ilme.data.tokenfile import TokenFile
    from ilme.lm.arpa import write_arpa
    from ilme.lm.ngram_sorted import can_sort, train_sorted
    from ilme.lm.ngram_train import NGramOptions, train_ngram
    from ilme.runtime.files import write_text

    path = Path(out) if out else Path(tokens).with_suffix(".arpa")
    spare_inputs(path, [tokens])
    tool = shutil.which("build_binary") if binary else None
    if binary and (tool is None or path.suffix == ".safetensors"):
        raise BadInputError(
            "--binary needs KenLM's build_binary on the PATH and an ARPA file to start from; without it, load the ARPA "
            "file itself: it is as fast"
        )
    began = time.perf_counter()
    source = TokenFile(tokens)
    options = NGramOptions(order, tuple(prune or (0,)))
    made: SortedNGram | TrainedNGram
    if path.suffix == ".safetensors" and can_sort(source.inventory, order):
        made = train_sorted(source.ids, source.inventory, path, options)
    elif path.suffix == ".safetensors":
        from ilme.lm.ngram import NGramScorer, build_automaton

        made = train_ngram(source.ids, source.inventory, options)
        arpa = made.arpa
        NGramScorer(build_automaton(arpa), source.inventory, arpa.missing, arpa.unknown).save(path)
    else:
        made = train_ngram(source.ids, source.inventory, options)
        write_arpa(path, made.arpa, source.inventory, units)
        beside = path.with_name(f"{path.name}.tokens.json")
        write_text(beside, json.dumps(source.inventory.to_json(), ensure_ascii=False))
    for k, (seen, kept, d) in enumerate(zip(made.seen, made.kept, made.discounts, strict=True), 1):
        note = "  (discounts undefined by the counts: 0.5, 1, 1.5)" if k in made.fallbacks else ""
        print(f"order {k}: {kept} n-grams kept, {seen} seen, D = {d[0]:.4f} {d[1]:.4f} {d[2]:.4f}{note}")
    seconds = time.perf_counter() - began
    print(f"{len(source)} tokens of {source.sentences} sentences -> {path} in {seconds:.1f} s")
    if tool is not None:
        binary_file = path.with_name(f"{path.name}.bin")
        done = subprocess.run([tool, str(path), str(binary_file)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadInputError(f"build_binary failed: {done.stderr.strip()[-500:]}")
        write_text(binary_file.with_name(f"{binary_file.name}.tokens.json"), beside.read_text(encoding="utf-8"))
        print(f"KenLM binary -> {binary_file}")
