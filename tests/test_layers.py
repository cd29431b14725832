"""Imports point one way. A package may import those on floors below its own, never one above or beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ilme"
FLOORS = (  # from the ground up
    ("errors",),
    ("tokens",),
    ("runtime", "bundle"),
    ("protocols",),
    ("smoothing",),
    ("fusion",),
    ("data", "search"),
    ("lm", "models"),
    ("losses", "adapters"),
    ("ilm", "train"),
    ("recogniser",),
    ("evaluation",),
    ("tuning", "report"),
    ("workflows", "testing"),
    ("study", "serve"),
    ("commands",),
    ("cli",),
)
FLOOR = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}


def package_of(module: str) -> str:
    """ilme.search.attention → search."""
    return module.split(".")[1] if "." in module else ""


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours, those inside functions too; not those for type checkers alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ilme":
            names = (
                [node.module]
                if node.module != "ilme"
                else [f"ilme.{a.name}" for a in node.names if a.name != "__version__"]
            )
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] == "ilme")


def test_every_package_has_a_floor():
    found = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert found - {"__init__"} == set(FLOOR)


def test_no_import_points_upwards():
    upward = []
    for file in sorted(SOURCE.rglob("*.py")):
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own == "__init__":  # names of `ilme` itself are imported when they are first used
            continue
        for line, module in imports(file):
            other = package_of(module)
            if other != own and FLOOR[other] >= FLOOR[own]:
                upward.append(f"{file.relative_to(SOURCE)}:{line} ({own}) imports {module}")
    assert not upward, "\n".join(upward)
