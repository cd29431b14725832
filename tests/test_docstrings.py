"""Docstrings that list attributes or arguments name every one of them, each at the start of its own line.

`ilme COMMAND --help` is made of these lists: an entry that begins in the middle of another's line is not shown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ilme"
ENTRY = re.compile(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*): \S")


def signature(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    more = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [a.arg for a in (*plain, *more) if a.arg not in ("self", "cls")]


def listed_names(node: ast.AST) -> tuple[str, list[str]] | None:
    """The heading of a list in the docstring, and the names that it should have; None where there is none."""
    if isinstance(node, ast.FunctionDef) and "Args:" in (ast.get_docstring(node) or ""):
        return "Args:", signature(node)
    if not isinstance(node, ast.ClassDef):
        return None
    text = ast.get_docstring(node) or ""
    made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if "Args:" in text and made is not None:
        return "Args:", signature(made)
    typed = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    fields = [name for name in typed if not name.startswith("_")]
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    return ("Attributes:", fields) if "Attributes:" in text and is_dataclass else None


def faults(text: str, heading: str, names: list[str]) -> Iterator[str]:
    section = re.split(r"\n(?=\S)", text[text.index(heading) :])[0].splitlines()[1:]
    entries = [line for line in section if re.match(r"    \S", line)]
    found = [name.strip("* ") for line in entries if (m := ENTRY.match(line)) for name in m[1].split(",")]
    yield from (f"line {line.strip()!r} is no entry" for line in entries if not ENTRY.match(line))
    yield from (f"{name} is missing" for name in names if name not in found)
    yield from (f"there is no {name}" for name in found if name not in names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_lists_are_whole(path: Path) -> None:
    wrong = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        wanted = listed_names(node)
        if wanted is not None:
            text = ast.get_docstring(node) or ""  # type: ignore[arg-type]
            wrong += [f"{node.name}: {fault}" for fault in faults(text, *wanted)]  # type: ignore[attr-defined]
    assert not wrong


def test_an_entry_inside_another_is_seen() -> None:
    text = "What it is.\n\nArgs:\n    one: The first; of several\n    words. two: The second."
    assert list(faults(text, "Args:", ["one", "two"])) == [
        "line 'words. two: The second.' is no entry",
        "two is missing",
    ]
