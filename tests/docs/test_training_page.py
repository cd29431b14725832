"""The Python of docs/reference/training.md runs."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

GUIDE = ROOT / "docs" / "reference" / "training.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
def test_example_runs(code: str) -> None:
    names: dict[str, object] = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    assert names["f"].grad is not None  # type: ignore[attr-defined]
