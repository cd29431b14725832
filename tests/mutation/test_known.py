"""The faults that are kept can still be made, each in code that is there once."""

from __future__ import annotations

import ast
import json

import pytest

from tests.mutation.known import KNOWN, Fault
from tests.mutation.page import page
from tests.mutation.run import PAGE, RESULTS, ROOT, nearest


@pytest.mark.parametrize("fault", KNOWN, ids=lambda fault: fault.what)
def test_a_fault_that_is_kept_can_be_made(fault: Fault) -> None:
    change = fault.change(ROOT / "src" / "ilme")
    assert change.source != (ROOT / "src" / "ilme" / fault.file).read_text("utf-8")
    ast.parse(change.source)
    assert nearest(fault.file), "tests that stand near it"


def test_the_page_is_that_of_the_results() -> None:
    kept = json.loads(RESULTS.read_text("utf-8"))
    assert PAGE.read_text("utf-8") == page(kept)
    assert {m["what"] for m in kept["known"]} == {fault.what for fault in KNOWN}
    assert all(m["noticed"] for m in kept["known"])
    mutants = kept["mutants"]
    others = [m for m in mutants if not m["noticed"] and m["id"] not in kept["equivalent"]]
    counted = [m for m in mutants if m["noticed"]] + others
    assert len(others) <= 0.05 * len(counted), "at least 95 % are noticed"
