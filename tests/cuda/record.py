"""The record of the last run of everything that needs a GPU, and whether it still speaks for the sources.

The rule: the sources that matter are the files of src/ilme whose text has the word `cuda` or `triton`, in any case. A
run is bound to the hash of those files. Whoever changes one of them changes the hash, and the record must then say so
or be made anew:

    state         means
    passed        these very sources were run: every test passed, none was left out
    failed        these very sources were run, and a test failed
    incomplete    these very sources were run, and tests were left out
    not run       the last run was of other sources, or there was none
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "results" / "data" / "cuda.json"
PAGE = ROOT / "docs" / "results" / "cuda.md"
WORDS = ("cuda", "triton")


def sources(root: Path = ROOT) -> list[Path]:
    """The files that matter."""
    found = sorted((root / "src" / "ilme").rglob("*.py"))
    return [p for p in found if any(word in p.read_text("utf-8").lower() for word in WORDS)]


def hash_of(files: list[Path], root: Path = ROOT) -> str:
    """One hash of their names and contents."""
    total = hashlib.sha256()
    for path in files:
        content = path.read_text("utf-8").encode()  # line ends as Python reads them, on every system
        total.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()


def state_of(run: Mapping[str, Any] | None, now: str) -> str:
    """What a run says about the sources whose hash is `now`."""
    if run is None or run["sources"] != now:
        return "not run"
    if run["failed"]:
        return "failed"
    return "passed" if run["passed"] and not run["skipped"] else "incomplete"


def stated(run: Mapping[str, Any] | None, known: list[str], root: Path = ROOT) -> dict[str, Any]:
    """The record as it is true now; `known` is what earlier, partial runs showed, until a run passes."""
    state = state_of(run, hash_of(sources(root), root))
    return {"state": state, "run": run, "known": [] if state == "passed" else known}


def load(path: Path = RECORD) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return record


def save(record: Mapping[str, Any], path: Path = RECORD, page_path: Path = PAGE) -> None:
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page_path.write_text(page(record), "utf-8")


SAID = {
    "passed": "**Found.** Yes: every test passed on a GPU with the sources as they are.",
    "failed": "**Found.** No: with the sources as they are, {failed} tests fail on a GPU.",
    "incomplete": "**Found.** Not all of it is known: with the sources as they are, {skipped} tests were left out.",
    "not run": "**Found.** Not known: the sources have not been run on a GPU since they were changed.",
}
HEAD = """# What runs on a GPU

**Asked.** Do the Triton kernels, the recorded graphs and the searches give on a GPU what they give on a CPU?

{said}

**Again.** `make cuda`, on a machine with a GPU: it runs every test that is marked `cuda`, and writes this page and its
file. A test compares the file with the sources: a run speaks for the files of `src/ilme` that name CUDA or Triton, as
they were, and no others. Without a GPU, every kernel is run by Triton's interpreter against the plain path, and
compiled for one (`tests/losses/test_kernels.py`).

**File.** `docs/results/data/cuda.json`
"""


def page(record: Mapping[str, Any]) -> str:
    """The text of docs/results/cuda.md."""
    run = record["run"]
    text = HEAD.format(said=SAID[record["state"]].format(**(run or {})))
    text += "\n## The last run\n\n"
    if run is None:
        text += "No run has been recorded yet.\n"
    else:
        rows = {
            "state of the sources as they are": record["state"],
            "date": run["date"],
            "commit": run["commit"],
            "hash of the sources that were run": run["sources"][:16],
            "device": run["machine"]["device"],
            "Python, torch, Triton": ", ".join(run["machine"][k] for k in ("python", "torch", "triton")),
            "passed": run["passed"],
            "failed": run["failed"],
            "left out": run["skipped"],
            "seconds": run["seconds"],
        }
        text += "| | |\n| --- | --- |\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())
        for title, listed in (("Failed", run["failures"]), ("Left out", run["left out"])):
            if listed:
                text += f"\n{title}:\n\n" + "".join(f"- `{name}`: {why}\n" for name, why in listed.items())
    if record["known"]:
        text += "\n## Known from partial runs before\n\n" + "".join(f"- {line}\n" for line in record["known"])
    return text
