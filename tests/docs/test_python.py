"""The Python of every page is Python, and what it takes from the package is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import ilme
from tests.docs.pages import PAGES, name

WRITTEN = [page for page in PAGES if page.name != "api.md"]  # which shows signatures


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_python_blocks(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ilme"):
                module = importlib.import_module(str(node.module))
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{name(page)}: {node.module} has no {', '.join(missing)}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ilme":
                assert node.attr in ilme.__all__, f"{name(page)}: there is no ilme.{node.attr}"
