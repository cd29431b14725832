"""Runs everything that needs a GPU and writes its record: docs/results/data/cuda.json, docs/results/cuda.md.

    python -m tests.cuda.run           with the repository's root as the folder and src among PYTHONPATH

Only the files that have a test marked `cuda` are read, so packages that other tests need may be absent. Without a GPU
nothing is run, and the record is made to say so.
"""

from __future__ import annotations

import datetime
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ilme.study.provenance import commit, versions
from tests.cuda.record import RECORD, ROOT, hash_of, load, save, sources, stated


class Counts:
    """A pytest plugin that counts each test once, and keeps why it failed or was left out."""

    def __init__(self) -> None:
        self.outcomes: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._count(report)

    def _count(self, report: Any) -> None:
        if self.outcomes.get(report.nodeid, ("",))[0] != "failed":  # a teardown that fails is a failure too
            lines = str(report.longreprtext).strip().splitlines()
            self.outcomes[report.nodeid] = report.outcome, lines[-1] if lines else ""

    def of(self, outcome: str) -> dict[str, str]:
        return {name: why for name, (found, why) in self.outcomes.items() if found == outcome}


def marked(folder: Path = ROOT / "tests") -> list[Path]:
    """The files that have a test marked `cuda`."""
    return [p for p in sorted(folder.rglob("test_*.py")) if "mark.cuda" in p.read_text("utf-8")]


def counted(files: list[Path]) -> Counts:
    """Runs the marked tests of these files; one that cannot be read is a failure, and the others are run."""
    counts = Counts()
    pytest.main(["-m", "cuda", "--continue-on-collection-errors", *map(str, files)], plugins=[counts])
    return counts


def run(files: list[Path]) -> dict[str, Any]:
    """The marked tests of these files, and all that the record keeps of them."""
    began = time.perf_counter()
    counts = counted(files)
    failures, left_out = counts.of("failed"), counts.of("skipped")
    triton = importlib.util.find_spec("triton")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "sources": hash_of(sources()),
        "files": [p.relative_to(ROOT).as_posix() for p in sources()],
        "machine": {**versions("cuda"), "triton": _version("triton") if triton else "none"},
        "passed": len(counts.of("passed")),
        "failed": len(failures),
        "skipped": len(left_out),
        "failures": failures,
        "left out": left_out,
        "seconds": round(time.perf_counter() - began),
    }


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def main() -> None:
    before = load() if RECORD.exists() else {"run": None, "known": []}
    if not torch.cuda.is_available():
        record = stated(before["run"], before["known"])
        save(record)
        sys.exit(f"no CUDA device here: nothing was run, and the record says of these sources: {record['state']}")
    record = stated(run(marked()), before["known"])
    save(record)
    print(f"{record['state']}: {RECORD.relative_to(ROOT)}")
    sys.exit(record["state"] != "passed")


if __name__ == "__main__":
    main()
