"""The page docs/results/mutants.md, from the results of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

HEAD = """# What the tests notice

**Asked.** If one operator, number, condition, argument or name of the core is wrong, does a test of that module fail?

**Found.** {run} faults were tried, drawn with seed {seed} from all that `tests/mutation` can make in fusion, search,
internal LMs, LMs, tuning, evaluation, `adapt`, checkpoints and the Whisper adapter. {noticed} were noticed. Of the
{left} others, {equivalent} change nothing that can be seen, for the reasons below, and {open} are open: **{share} % of
the faults that change something are noticed**.

Left out are messages of errors, docstrings, types, what runs on a GPU alone, and `lm/kenlm_binary.py`, whose tests need
the package kenlm.

**Again.** `make mutants` goes on where the last run stopped; `tests/mutation/run.py` says how faults are drawn and
which tests stand nearest to a module. Only those are run, in a copy of the tree, in one process.

**File.** `docs/results/data/mutants.json`
"""


def page(kept: dict[str, Any]) -> str:
    """The page's text."""
    mutants, reasons = kept["mutants"], kept["equivalent"]
    survivors = [m for m in mutants if not m["noticed"]]
    equivalent = [m for m in survivors if m["id"] in reasons]
    open_ = [m for m in survivors if m["id"] not in reasons]
    counted = len(mutants) - len(equivalent)
    noticed = len(mutants) - len(survivors)
    text = HEAD.format(
        run=len(mutants),
        seed=kept["seed"],
        noticed=noticed,
        left=len(survivors),
        equivalent=len(equivalent),
        open=len(open_),
        share=100 * noticed // max(1, counted),
    )
    if kept.get("untried"):
        text += f"\n{kept['untried']} more were drawn and have not been tried yet; the tests near them are slow.\n"
    if "at first" in kept:
        seen = kept["at first"]
        text += (
            f"\nOf the first {seen['tried']} ever tried, {seen['noticed']} were noticed before tests were written for"
            "\nthe rest: on faults that nobody has looked at yet, expect that share rather than the one above.\n"
        )
    if "known" in kept:
        found, known = sum(m["noticed"] for m in kept["known"]), len(kept["known"])
        text += (
            f"\nOf the {known} faults that tests once let pass, or distant ones alone noticed, {found} are noticed"
            "\nnow (`tests/mutation/known.py`, `python -m tests.mutation.run --known`).\n"
        )
        text += "".join(f"- not noticed: {m['what']}, `{m['file']}`\n" for m in kept["known"] if not m["noticed"])
    tried = Counter(m["file"] for m in mutants)
    missed = Counter(m["file"] for m in open_)
    same = Counter(m["file"] for m in equivalent)
    text += "\n## By module\n\n| module | faults | noticed | equivalent | open |\n| --- | ---: | ---: | ---: | ---: |\n"
    for file in sorted(tried):
        found = tried[file] - missed[file] - same[file]
        text += f"| `{file}` | {tried[file]} | {found} | {same[file]} | {missed[file]} |\n"
    if equivalent:
        text += "\n## Equivalent\n\n"
        text += "".join(f"- {_named(m)}: {reasons[m['id']]}\n" for m in equivalent)
    if open_:
        text += "\n## Open\n\n"
        text += "".join(f"- {_named(m)}\n" for m in open_)
    return text


def _named(mutant: dict[str, Any]) -> str:
    function = mutant["id"].removeprefix(mutant["file"]).split(":")[0].strip()
    return f"`{mutant['file']}` {function}, `{mutant['change']}`"
