"""The summary in the README says what the studies' results files say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_summary_is_that_of_the_results() -> None:
    spec = importlib.util.spec_from_file_location("benchmarks_summary", ROOT / "benchmarks" / "summary.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    kept = json.loads((ROOT / "benchmarks" / "results" / "summary.json").read_text(encoding="utf-8"))
    assert module.summary() == kept, "run benchmarks/summary.py again"
    for row in kept:
        assert row["test WER"]["BS"] > 0 and "ILME" in row["test WER"]
