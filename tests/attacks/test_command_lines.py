"""Mistakes on the command line: every option of every command with values it cannot have, and words that are none."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from ilme import cli
from ilme.commands.options import Command, Option, read_command
from tests.attacks.cases import TRACEBACK, Run, run_here
from tests.checkpoints import write_wave

EVERY = 41  # of so many cases one runs in `make test`


@functools.cache
def command(name: str) -> Command:
    return read_command(cli.load(cli.COMMANDS[name][0]))


def wrong(option: Option) -> list[str]:
    """Values that the option's type does not allow."""
    if option.choices:
        return ["banana", "", "NONE"]
    if option.is_flag:
        return ["--X=banana", "--X=2"]
    if option.types in ((int,), (float,)):
        return ["banana", "1e", "0x", "[1]", "{}", "nil"] + (["1.5", "1e999"] if option.types == (int,) else [])
    if option.is_dict:
        return ["banana", "[1]", "7"]
    return []


def rows() -> list[Any]:
    found: list[tuple[str, list[str], str]] = []
    for name in cli.COMMANDS:
        values = command(name).values
        found += [(name, [f"--{o.name}={v}" if not v.startswith("--X") else v.replace("X", o.name)], o.name)
                  for o in values for v in wrong(o)]  # fmt: skip
        found += [(name, [f"--{o.name}"], o.name) for o in values if not o.is_flag]  # without its value
        found += [(name, [f"--{o.name[:-1]}x", "1"], "there is no option") for o in values[:5] if len(o.name) > 3]
        found += [
            (name, ["--nonsense", "1"], "there is no option"), (name, ["nonsense=1"], "there is no option"),
            (name, ["--nonsense=--nonsense"], "there is no option"), (name, ["-q"], "there is no option"),
            (name, ["--config"], "--config needs a value"), (name, ["--config", "gone.yaml"], "gone.yaml"),
            (name, ["--config", "a.wav"], "config"), (name, ["--config", "list.yaml"], "config"),
            (name, ["--config", "deep.yaml"], "config"), (name, ["--config", "odd.yaml"], "nonsense"),
            (name, ["--config", "."], "config"), (name, ["x"] * 40, ""),
        ]  # fmt: skip
        if command(name).positional:
            found.append((name, [], "must be given"))
    return [
        pytest.param(n, w, t, id=f"{n} {' '.join(w)[:60]}", marks=() if k % EVERY == 0 else pytest.mark.attacks)
        for k, (n, w, t) in enumerate(found)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("here")
    write_wave(place / "a.wav", 0.1)
    (place / "list.yaml").write_text("[1, 2]")
    (place / "deep.yaml").write_text(json.dumps({"a": 1})[:-1] + ', "b": ' + "[" * 500)
    (place / "odd.yaml").write_text("nonsense: 1\n")
    return place


def check_usage(result: Run, told: str) -> None:
    assert TRACEBACK not in result.err, result.err
    assert result.status in (1, 2), f"{result.status}: {result.out}{result.err}"
    lines = result.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith(("ilme ", "ilme:")), result.err
    assert "<class" not in lines[0] and told in lines[0], result.err


@pytest.mark.parametrize(("name", "words", "told"), rows())
def test_mistakes(name: str, words: list[str], told: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, status 2: nothing is loaded before the options are right."""
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    result = run_here([*name.split(), *words])
    check_usage(result, told)
    assert result.status == 2 or words == ["x"] * 40, result.err  # files that are not there, where a list is taken
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["trian", "rnnt"], ["train"], ["train", "nonsense"], ["--nonsense"], ["-x"], [""], [" "], ["--"],
     ["adapt "], ["ADAPT"], ["\0"], ["data", "data"], ["study", "--nonsense"], ["'adapt'"], ["a" * 10_000], ["\udcff"],
     ["train lm"], ["--version2"], ["=x"], ["adapt=1"]],
    ids=lambda words: " ".join(words)[:30].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_words_that_are_no_command(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = run_here(words)
    if words == ["train lm"]:  # as one word of the shell
        assert result.status in (1, 2)
        return
    check_usage(result, "")
    assert result.status == 2
