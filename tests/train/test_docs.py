"""The Python in docs/training.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL))
def test_example_runs(code: str) -> None:
    names: dict[str, object] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    assert names["f"].grad is not None  # type: ignore[attr-defined]
