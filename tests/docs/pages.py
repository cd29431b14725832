"""The documents that are checked: the README, and every page under docs/."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "benchmarks" / "README.md", ROOT / "experiments" / "README.md"]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
