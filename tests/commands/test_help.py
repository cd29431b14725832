"""`--help` shows the options that matter, `--help-all` every one, and neither waits for torch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ilme.cli import COMMANDS, load, main
from ilme.commands.help import MOST, command_help, shown_options
from ilme.commands.options import read_command

# Their options are dataclasses of modules that compute.
NEED_TORCH = {"tune", "evaluate", "train rnnt", "train aed", "train lm", "ilm learn"}


def listed(page: str) -> list[str]:
    """The options that a page of help shows, by name."""
    rows = re.findall(r"^  (?:--([\w.]+)|([A-Z_]+)(?:\.\.\.)?)(?: |$)", page, re.MULTILINE)
    return [name or place.lower() for name, place in rows]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short_and_help_all_is_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = read_command(load(COMMANDS[name][0]))
    options = [option.name for option in command.values]
    assert main([*name.split(), "--help"]) == 0
    short = capsys.readouterr().out
    assert short.startswith(f"usage: ilme {name} ") and 0 < len(listed(short)) <= MOST
    assert main([*name.split(), "--help-all"]) == 0
    whole = capsys.readouterr().out
    assert sorted(listed(whole)) == sorted(options)
    if len(options) <= MOST:
        assert listed(short) == options
    else:
        assert f"{len(listed(short))} of {len(options)} options" in short
        assert set(command.shown) <= set(options)
        assert {option.name for option in command.positional} <= set(listed(short))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    unexplained = [o.name for o in read_command(load(COMMANDS[name][0])).options if not o.help]
    assert not unexplained


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_call_the_command_with_options_it_has(name: str) -> None:
    command = read_command(load(COMMANDS[name][0]))
    options = {option.name for option in command.options}
    for line in command.example:
        assert line.startswith(f"ilme {name}"), line
        assert set(re.findall(r"--([\w.]+)", line)) <= options, line


def test_without_a_list_the_commands_own_options_come_first() -> None:
    command = read_command(load(COMMANDS["train lm"][0]))
    shown = shown_options(type(command)((), (), command.options, ()))
    assert len(shown) == MOST and not any(option.group for option in shown[:4]) and shown[-1].group


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    function = load(COMMANDS["text prepare"][0])
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = command_help("text prepare", function).splitlines()
        assert max(map(len, lines)) <= int(columns)


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS.keys() - NEED_TORCH)])
def test_help_does_not_import_torch(name: str) -> None:
    code = "import sys, ilme.cli; ilme.cli.main(sys.argv[1:]); assert not {'torch', 'jsonargparse'} & set(sys.modules)"
    command = [sys.executable, "-c", code, *name.split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
