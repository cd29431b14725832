"""Every link between the README and the guides leads to a file, and to a heading if it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The headings as a browser addresses them: lower case, spaces as hyphens, no other punctuation."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for file, heading in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links to {file}, which is not there"
        if heading:
            assert heading in anchors(target), f"{page.name} links to {file}#{heading}, and there is no such heading"


def test_there_are_links_to_check() -> None:
    assert sum(len(LINK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 30
