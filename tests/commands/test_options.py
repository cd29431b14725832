"""Options are read from signatures and docstrings, groups and all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ilme.commands.options import FLAT, REQUIRED, Option, flat_groups, read_command


@dataclass(frozen=True)
class Inner:
    """Innermost.

    Attributes:
        depth: How deep.
    """

    depth: float = 2.0


@dataclass(frozen=True)
class Group:
    """Some options.

    Attributes:
        files: Files
            to read.
        inner: Further in.
        maybe: Left out by default.
        names: A mapping.
        must: No default.
    """

    must: int
    files: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    names: dict[str, float] = field(default_factory=dict)


GROUP = Group(must=3, files=("a",))


def command(
    model: str,
    texts: list[Path],
    style: Literal["plain", "rich"] = "plain",
    out: Path | None = None,
    quick: bool = False,
    group: Group = GROUP,
    other: Group | None = None,
) -> None:
    """Do something.

    Twice, if need
    be.

    Example:
        ilme do model a.txt b.txt
        ilme do model --quick

    Args:
        model: Which model.
        texts: What to read.
        style: How it looks.
        out: Where to.
        quick: In a hurry.
        group: Several things.
        other: More of them.
    """


def options() -> dict[str, Option]:
    return {option.name: option for option in read_command(command).options}


def test_a_docstring_is_purpose_example_and_options() -> None:
    read = read_command(command)
    assert read.purpose == ("Do something.", "Twice, if need be.")
    assert read.example == ("ilme do model a.txt b.txt", "ilme do model --quick")
    assert [option.name for option in read.positional] == ["model", "texts"]
    found = options()
    assert found["model"].help == "Which model." and found["group.files"].help == "Files to read."
    assert found["group.inner.depth"].help == "How deep."
    assert list(found)[:9] == [
        "model", "texts", "style", "out", "quick", "group", "group.must", "group.files", "group.inner"
    ]  # fmt: skip
    assert "group" not in [option.name for option in read.values] and "return" not in found


def test_defaults_of_fields_are_those_of_the_groups_own_default() -> None:
    found = options()
    assert (found["group.must"].default, found["group.files"].default) == (3, ("a",))
    assert (found["other.must"].default, found["other.files"].default) == (REQUIRED, ())
    assert found["other.inner.depth"].default == found["group.maybe.depth"].default == 2.0


def test_types_are_seen_through_none() -> None:
    found = options()
    assert found["out"].types == (Path,) and found["quick"].is_flag
    assert found["style"].choices == ("plain", "rich") and not found["out"].choices
    assert found["texts"].is_list and found["group.files"].is_list and not found["model"].is_list
    assert found["group.names"].is_dict and not found["group.names"].is_group
    assert found["group.maybe"].is_group and (found["group.must"].group, found["group.must"].leaf) == ("group", "must")


def flat_command(first: str, inner: Annotated[Group, FLAT] = GROUP, last: int = 1) -> None:
    """Do it.

    Args:
        first: The first.
        inner: Not an option.
        last: The last.
    """


def test_fields_of_a_flat_group_are_options_of_the_command() -> None:
    found = {option.name: option for option in read_command(flat_command).options}
    assert list(found)[:5] == ["first", "must", "files", "inner", "inner.depth"] and list(found)[-1] == "last"
    assert found["files"].help == "Files to read." and found["must"].default == 3
    assert flat_groups(flat_command) == {"inner": Group} and not flat_groups(command)


def test_the_module_says_what_help_shows(monkeypatch: Any) -> None:
    assert read_command(command).shown == ()
    monkeypatch.setitem(globals(), "SHOWN", {"command": ("model", "group.files")})
    assert read_command(command).shown == ("model", "group.files")
