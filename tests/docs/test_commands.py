"""Every command in a document exists, with the options that it is given, and so does every script."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ilme.cli import COMMANDS, load, split_command
from ilme.commands.options import read_command
from tests.docs.pages import PAGES, ROOT, name

OURS = {"config", "help", "help-all", "print_config", "resume"}  # of every command; `resume` of those that train
PARTS = ("model.",)  # a dict: its fields are the network's own
INLINE = re.compile(r"`--([\w.-]+)[^`]*`")
OTHERS = {
    "index-url",
    "no-index",
    "find-links",
    "target",
    "no-deps",
    "check",
    "quick",
    "merge",
    "strict",
}  # pip, scripts, mkdocs


@cache
def options_of(command: str) -> frozenset[str]:
    return frozenset(option.name for option in read_command(load(COMMANDS[command][0])).options)


def command_lines(page: Path) -> Iterator[str]:
    """The lines of the page's shell blocks, continued ones joined."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()


def given_options(words: list[str]) -> Iterator[str]:
    for word in words:
        if found := re.match(r"--([\w.-]+)", word) or re.match(r"([A-Za-z_][\w.]*)=", word):
            yield found[1]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_options_exist(page: Path) -> None:
    if page.name == "cli.md":
        return
    for line in command_lines(page):
        called = re.match(r"(?:\.venv/bin/)?ilme (.*)|torchrun .*-m ilme\.cli (.*)", line)
        if not called:
            continue
        words = shlex.split(called[1] or called[2], comments=True)
        command, rest = split_command(words)
        assert command is not None or words[0].startswith("--"), f"{name(page)}: {line}"
        for option in given_options(rest) if command else ():
            there = {option, option.replace("-", "_")} & (options_of(command) | OURS)
            assert there or option.startswith(PARTS), f"{name(page)}: --{option} of {line}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guide").glob("*.md")), ids=name)
def test_options_in_the_text_exist(page: Path) -> None:
    known = frozenset().union(*(options_of(command) for command in COMMANDS)) | OURS | OTHERS
    groups = {option.rpartition(".")[0] for option in known} | {"attention", "checks"}
    for option in INLINE.findall(page.read_text(encoding="utf-8")):
        assert option in known or option.removesuffix(".NAME") in groups, f"{name(page)}: --{option}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_scripts_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m ((?:benchmarks|experiments)\.[a-z]\w+)", text):
        assert importlib.util.find_spec(module) is not None, f"{name(page)}: python -m {module}"
    for file in re.findall(r"\b((?:benchmarks|experiments|configs)/[a-z][\w/.-]*\.(?:py|yaml))\b", text):
        if page.name != "index.md":  # which speaks of recorded commands
            assert (ROOT / file).is_file(), f"{name(page)}: {file}"
