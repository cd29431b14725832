"""Options that several commands hand on to a model."""

from __future__ import annotations

from typing import Any

__all__ = ["model_options"]


def model_options(language: str = "", prompt: str = "", ranks: str = "", head: str = "") -> dict[str, Any]:
    """Those that were given; a model whose kind does not take one says so."""
    given = {"language": language, "prompt": prompt, "ranks": ranks, "head": head}
    return {name: value for name, value in given.items() if value}
