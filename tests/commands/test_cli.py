"""The table of commands, and what each way of failing prints and returns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ilme import cli
from ilme.errors import BadInputError, MissingExtraError, UsageError


def failing(error: BaseException) -> Callable[..., NoReturn]:
    def run(*_: object) -> NoReturn:
        raise error

    return run


def test_every_command_resolves() -> None:
    for target, text in cli.COMMANDS.values():
        assert text and callable(cli.load(target))


def test_a_wrong_command_is_answered_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["inof"], "there is no command inof; did you mean ilme info?"),
        (["data", "imprt", "x"], "there is no command data imprt; did you mean ilme data import?"),
        (["qqqq"], "there is no command qqqq; `ilme --help` lists the commands"),
        (["text"], "text is 3 commands; name one of text prepare, text bpe, text tokenize"),
        (["--hlep"], "there is no option --hlep before a command; `ilme --help` lists the commands"),
    ):
        assert cli.main(words) == 2
        assert capsys.readouterr() == ("", f"ilme: {said}\n")


def test_overviews_list_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"]):
        assert cli.main(words) == 0
        out = capsys.readouterr().out
        assert all(f"\n  {name} " in out for name in cli.COMMANDS)
    assert cli.main(["text", "--help"]) == 0
    out = capsys.readouterr().out
    assert "text bpe" in out and "adapt" not in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") >= 2


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UsageError("name it\n  with --model"), 2, "name it with --model"),
        (BadInputError("a.wav is silent"), 1, "a.wav is silent"),
        (MissingExtraError("ray", "ray"), 1, "ray is not installed; install it with: pip install 'ilme[ray]'"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 1, "a.txt: No such file or directory"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (OSError("the hub is out of reach"), 1, "the hub is out of reach"),
        (BrokenPipeError(32, "Broken pipe"), 1, "Broken pipe"),  # some other pipe than the output
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_failure_is_one_line_and_a_status(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run", failing(error))
    assert cli.main(["info", "rnnt"]) == status
    assert capsys.readouterr() == ("", f"ilme info: {said}\n")


def test_a_mistake_of_the_program_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["info", "rnnt"])


def test_mistakes_in_options_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["info"], ["info", "rnn"], ["info", "rnnt", "--vocabulary", "x"], ["info", "rnnt", "--sise=3"]):
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith("ilme info: ") and err.count("\n") == 1


def test_a_command_that_returns_a_number_ends_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.txt").write_bytes(bytes(range(256)) * 40)
    assert cli.main(["text", "prepare", str(tmp_path / "broken.txt"), str(tmp_path / "out"), "--strict"]) == 1
    assert "none can be used" in capsys.readouterr().err


def test_options_can_be_printed_as_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["text", "prepare", "a.txt", "out", "--options.hold_out", "0.5", "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "hold_out: 0.5" in printed
    (tmp_path / "options.yaml").write_text(printed)
    assert cli.main(["text", "prepare", "--config", str(tmp_path / "options.yaml")]) == 1
    assert "no text file matches a.txt" in capsys.readouterr().err


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "ilme.cli", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout
