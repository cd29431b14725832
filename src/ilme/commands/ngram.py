"""`ilme ngram train`."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Literal

from ilme.errors import BadInputError


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
    .safetensors gets the form that loads at once instead of ARPA.

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
    from ilme.lm.ngram_train import NGramOptions, train_ngram
    from ilme.runtime.files import write_text

    path = Path(out) if out else Path(tokens).with_suffix(".arpa")
    tool = shutil.which("build_binary") if binary else None
    if binary and (tool is None or path.suffix == ".safetensors"):
        raise BadInputError(
            "--binary needs KenLM's build_binary on the PATH and an ARPA file to start from; without it, load the ARPA "
            "file itself: it is as fast"
        )
    began = time.perf_counter()
    source = TokenFile(tokens)
    trained = train_ngram(source.ids, source.inventory, NGramOptions(order, tuple(prune or (0,))))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        from ilme.lm.ngram import NGramScorer, build_automaton

        arpa = trained.arpa
        NGramScorer(build_automaton(arpa), source.inventory, arpa.missing, arpa.unknown).save(path)
    else:
        write_arpa(path, trained.arpa, source.inventory, units)
        beside = path.with_name(f"{path.name}.tokens.json")
        write_text(beside, json.dumps(source.inventory.to_json(), ensure_ascii=False))
    for k, (seen, kept, d) in enumerate(zip(trained.seen, trained.kept, trained.discounts, strict=True), 1):
        note = "  (discounts undefined by the counts: 0.5, 1, 1.5)" if k in trained.fallbacks else ""
        print(f"order {k}: {kept} n-grams kept, {seen} seen, D = {d[0]:.4f} {d[1]:.4f} {d[2]:.4f}{note}")
    seconds = time.perf_counter() - began
    print(f"{len(source)} tokens of {source.sentences} sentences -> {path} in {seconds:.1f} s")
    if tool is not None:
        made = path.with_name(f"{path.name}.bin")
        done = subprocess.run([tool, str(path), str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadInputError(f"build_binary failed: {done.stderr.strip()[-500:]}")
        write_text(made.with_name(f"{made.name}.tokens.json"), beside.read_text(encoding="utf-8"))
        print(f"KenLM binary -> {made}")
