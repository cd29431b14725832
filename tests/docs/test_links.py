"""Every link between the pages leads to a file, and to a heading if it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings as a browser addresses them: lower case, spaces as hyphens, no other punctuation."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for file, heading in LINK.findall(prose(page)):
        target = page.parent / file if file else page
        assert target.exists(), f"{name(page)} links to {file}, which is not there"
        if page.is_relative_to(ROOT / "docs"):
            inside = target.resolve().is_relative_to(ROOT / "docs")
            assert inside, f"{name(page)} links to {file}, which is not part of the site"
        if heading:
            assert heading in anchors(target), f"{name(page)} links to {file}#{heading}, and there is no such heading"


def test_every_page_is_reached() -> None:
    """From the site's first page or from the README, link by link."""
    reached: set[Path] = set()
    left = [ROOT / "docs" / "index.md", ROOT / "README.md"]
    while left:
        page = left.pop()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            left += [(page.parent / file).resolve() for file, _ in LINK.findall(prose(page)) if file]
    missing = [name(page) for page in PAGES if page not in reached]
    assert not missing, f"no link leads to {', '.join(missing)}"
