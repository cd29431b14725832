"""Words of a shell become values; a mistake is one line that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ilme.commands.arguments import parse_arguments, plain_arguments
from ilme.commands.options import FLAT, read_command
from ilme.errors import BadInputError, UsageError


@dataclass(frozen=True)
class Inner:
    width: int = 1

    def __post_init__(self) -> None:
        if self.width < 1:
            raise BadInputError(f"width must be at least 1, got {self.width}")


@dataclass(frozen=True)
class Group:
    files: tuple[str, ...] | str = ()
    quick: bool = False
    snr: tuple[float, float] = (0.0, 1.0)
    steps: int = 1
    inner: Inner | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInputError(f"group.steps must be at least 1, got {self.steps}")


GROUP = Group()


def command(
    first: list[str],
    second: Path,
    text: list[str] | None = None,
    flag: bool = False,
    size: int = 1,
    rate: float | None = None,
    style: Literal["plain", "markdown"] = "plain",
    model: dict[str, Any] | None = None,
    group: Group = GROUP,
) -> None:
    """Does nothing."""


def plain(*words: str) -> list[str]:
    return plain_arguments("do", read_command(command), words)


def parse(*words: str) -> dict[str, Any]:
    return parse_arguments("do", command, words)


def mistake(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        parse(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_shell_habits_become_parser_arguments() -> None:
    assert plain("a", "b", "c", "--text", "x", "y", "--flag", "size=4") == [
        "--flag=true", "--size=4", '--text=["x", "y"]', '--first=["a", "b"]', "--second=c"
    ]  # fmt: skip
    assert plain("--text", "x", "--size", "4", "--text", "y", "--text=z", "a", "b") == [
        "--size=4", '--text=["x", "y", "z"]', '--first=["a"]', "--second=b"
    ]  # fmt: skip
    assert plain("--group.files", "x", "y", "--group.quick", "group.files=z") == [
        "--group.quick=true", '--group.files=["x", "y", "z"]'
    ]  # fmt: skip
    assert plain("--flag", "false", "--text=[a, b]", "--size", "-3") == ["--flag=false", "--text=[a, b]", "--size=-3"]


def test_what_must_be_given_may_be_given_by_name() -> None:
    by_place = parse("a", "b", "c")
    assert by_place == parse("--first", "a", "b", "--second", "c") == parse("first=[a, b]", "second=c")
    assert by_place == parse("--second=c", "a", "b") and by_place["second"] == Path("c")
    assert parse("--first", "x", "--", "--odd")["second"] == Path("--odd")


def test_values_have_their_types() -> None:
    found = parse("a", "b", "--group.snr", "2", "5", "--rate", "1e-3", "--model.ctc", "true", "--group.inner.width=4")
    assert found["group"] == Group(snr=(2.0, 5.0), inner=Inner(4))
    assert found["rate"] == 1e-3 and found["model"] == {"ctc": True} and found["text"] is None
    assert set(found) == {"first", "second", "text", "flag", "size", "rate", "style", "model", "group"}


def test_the_command_line_counts_more_than_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("first: [a]\nsecond: b\nsize: 3\ngroup: {steps: 7}\ntext: [x]\n")
    found = parse("size=5", "--config", str(file))
    assert (found["first"], found["size"], found["group"].steps, found["text"]) == (["a"], 5, 7, ["x"])
    assert parse(f"--config={file}", "--text", "y", "z")["text"] == ["y", "z"]


def test_a_file_with_an_equals_sign_in_its_name_is_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("take=2.wav").touch()
    assert parse("a", "take=2.wav")["second"] == Path("take=2.wav")


def test_unknown_options_are_answered_with_known_ones() -> None:
    assert mistake("a", "b", "--sise", "3") == "there is no option --sise; did you mean --size?"
    assert mistake("a", "b", "stile=plain") == "there is no option stile; did you mean --style?"
    assert mistake("a", "b", "--steps=3") == "there is no option --steps; did you mean --group.steps?"
    assert mistake("a", "b", "--group.stesp=3") == "there is no option --group.stesp; did you mean --group.steps?"
    assert mistake("a", "b", "--zzz") == "there is no option --zzz; --help-all lists them"
    assert mistake("a", "b", "-q") == "there is no option -q; --help-all lists them"


def test_missing_and_spare_values_are_named() -> None:
    usage = "usage: ilme do FIRST... SECOND [options]"
    assert mistake() == f"FIRST, SECOND must be given; {usage}"
    assert mistake("a") == f"FIRST must be given; {usage}"
    assert mistake("--first", "a", "--second", "b", "--", "c") == f"'c' belongs to no option; {usage}"
    assert mistake("a", "b", "--size") == mistake("a", "b", "--size", "--flag") == "--size needs a value"
    assert mistake("a", "b", "--text", "--flag") == "--text needs at least one value"


def test_values_that_are_empty_are_named() -> None:
    for words in ["", "b"], ["b", "--size="], ["b", "--rate", ""], ["b", "--group.steps", ""]:
        name = {"": "first"}.get(words[0], words[-2 if words[-1] == "" else -1].strip("-="))
        if words[0]:
            assert mistake("a", *words) == f"--{name} is empty: give it a value, or leave it out"
    assert mistake("a", "") == "--second is empty: give it a value, or leave it out"
    assert parse("a", "", "b")["first"] == ["a", ""]  # whoever reads a list says which of its parts is none


def test_values_of_a_wrong_type_are_named() -> None:
    assert mistake("a", "b", "--size", "x") == "--size: 'x' is not a whole number"
    assert mistake("a", "b", "--rate", "x") == "--rate: 'x' is not a number"
    assert mistake("a", "b", "--flag=maybe") == "--flag: 'maybe' is not true or false"
    assert mistake("a", "b", "--style", "markdwon") == (
        "--style: 'markdwon' is not one of plain, markdown; did you mean markdown?"
    )
    assert mistake("a", "b", "--group.snr", "1") == "--group.snr: ['1'] is not a list of 2 values"
    assert mistake("a", "b", "--group.inner.width=x") == "--group.inner.width: 'x' is not a whole number"
    assert mistake("a", "b", "group.steps=0") == "group.steps must be at least 1, got 0"
    assert mistake("a", "b", "--group.inner.width=0") == "width must be at least 1, got 0"
    assert mistake("a", "b", "--group.seed=-1") == "--group.seed must not be negative, got -1"


def test_mistakes_in_a_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"

    def told(text: str) -> str:
        file.write_text(text)
        return mistake("a", "b", "--config", str(file))

    assert told("sise: 3") == "--config: there is no option sise; did you mean size?"
    assert told("group: {stesp: 3}") == "--config: there is no option group.stesp; did you mean group.steps?"
    assert told("size: x") == "--size: 'x' is not a whole number"
    assert "not a file of options in YAML" in told("just words") and "line 2" in told("size: [\n")
    assert "does not exist" in mistake("a", "b", "--config", str(tmp_path / "none.yaml"))


@dataclass(frozen=True)
class Shared:
    size: int = 1
    group: Group = GROUP


def flat_command(first: str, shared: Annotated[Shared, FLAT] = Shared()) -> None:  # noqa: B008
    """Does nothing."""


def test_a_flat_group_is_given_whole(tmp_path: Path) -> None:
    def given(*words: str) -> dict[str, Any]:
        return parse_arguments("do", flat_command, words)

    assert given("a") == {"first": "a", "shared": Shared()}
    assert given("a", "--size", "2", "group.steps=3") == {"first": "a", "shared": Shared(2, Group(steps=3))}
    (tmp_path / "do.yaml").write_text("size: 5\ngroup:\n  quick: true\n")
    assert given("a", "--config", str(tmp_path / "do.yaml"))["shared"] == Shared(5, Group(quick=True))
    with pytest.raises(UsageError, match="there is no option --shared"):
        given("a", "--shared.size", "2")
    with pytest.raises(UsageError, match="steps must be at least 1"):
        given("a", "--group.steps", "0")
