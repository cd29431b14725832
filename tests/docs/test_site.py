"""The site's navigation has every page once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.pages import ROOT


def files(entry: Any) -> Iterator[str]:
    for item in entry:
        for target in item.values():
            yield from [target] if isinstance(target, str) else files(target)


def test_the_navigation_has_every_page_once() -> None:
    found = list(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    docs = ROOT / "docs"
    assert sorted(found) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
