"""Benchmarks and experiments keep up with the package: what they import is there, and they say how to be called."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name

SCRIPTS = [p for f in ("benchmarks", "experiments") for p in sorted((ROOT / f).glob("*.py")) if p.stem != "__init__"]
OURS = ("ilme", "benchmarks", "experiments")


def is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_what_it_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                there = hasattr(module, alias.name) or is_module(f"{node.module}.{alias.name}")
                assert there, f"{name(script)}: {node.module} has no {alias.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_it_says_how_to_be_called(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree) or ""
    assert text, f"{name(script)} has no docstring"
    if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
        assert f"python -m {script.parent.name}.{script.stem}" in text, f"{name(script)} does not say how to call it"


@pytest.mark.parametrize("folder", ["benchmarks", "experiments"])
def test_the_readme_lists_every_script(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    missing = [script.name for script in SCRIPTS if script.parent.name == folder and f"`{script.stem}" not in text]
    assert not missing, f"{folder}/README.md does not name {', '.join(missing)}"
