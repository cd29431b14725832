"""The pages that are made from the code are current, and what they are made of is complete."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

import ilme
from ilme.cli import COMMANDS
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_build", FOLDER / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(build: ModuleType) -> None:
    for name, text in build.pages().items():
        kept = (FOLDER / name).read_text(encoding="utf-8")
        assert kept == text, f"docs/reference/{name} is not what the code says: run python docs/reference/build.py"


def test_the_tables_of_models_are_current(build: ModuleType) -> None:
    for name, text in build.pages_with_tables().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: run python docs/reference/build.py"
        assert "<!-- end -->\n" in text


def test_the_short_table_has_every_family(build: ModuleType) -> None:
    short, readme = build.short_models(), (ROOT / "README.md").read_text(encoding="utf-8")
    assert short in readme
    assert all(f"| {family.short} |" in short for family in build.FAMILIES)
    assert readme.count("\n") < 150


def test_every_command_and_every_public_name_has_its_section(build: ModuleType) -> None:
    pages = build.pages()
    assert all(f"\n### ilme {name}\n" in pages["cli.md"] for name in COMMANDS)
    assert all(f"\n### ilme.{name}\n" in pages["api.md"] for name in ilme.__all__ if name != "__version__")


def test_every_option_says_what_it_does(build: ModuleType) -> None:
    from ilme.cli import load
    from ilme.commands.options import read_command

    silent = [
        f"ilme {name} --{option.name}"
        for name, (target, _) in COMMANDS.items()
        for option in read_command(load(target)).values
        if not option.help
    ]
    assert not silent, f"no words on {', '.join(silent)}"


def test_what_markdown_would_misread_is_escaped(build: ModuleType) -> None:
    assert build.prose("ids of `<unk>` and <blank>") == "ids of `<unk>` and &lt;blank>"
    assert build.cell("P(y|x)") == "P(y\\|x)"
    assert build.slug("ilme.load_model") == "ilmeload_model"
