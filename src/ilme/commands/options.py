"""The options of a command, read from its signature and its docstrings.

A parameter is an option; a parameter that is a dataclass is a group, and its fields are options named `group.field`. If
it is annotated with `FLAT` they are named `field`, so that commands can share options. What an option does is the entry
of its name under `Args:` or `Attributes:`. A line under `Example:` is shown by --help.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FLAT", "REQUIRED", "Command", "Option", "flat_groups", "read_command"]

FLAT = "flat"  # Annotated[Group, FLAT]
REQUIRED: Any = inspect.Parameter.empty  # the default of an option that has none


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        name: As it is written after `--` and in a config file, such as `loop.steps`.
        hint: Its type.
        default: Its value where none is given, or `REQUIRED`.
        help: What it does.
    """

    name: str
    hint: Any
    default: Any
    help: str

    @property
    def group(self) -> str:
        """Name of the group it belongs to; empty for a parameter of the command itself."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def types(self) -> tuple[Any, ...]:
        """The types it may have, None left out: (Path,) of `Path | None`."""
        union = typing.get_origin(self.hint) in (typing.Union, types.UnionType)
        return tuple(t for t in typing.get_args(self.hint) if t is not type(None)) if union else (self.hint,)

    @property
    def is_group(self) -> bool:
        return any(dataclasses.is_dataclass(t) for t in self.types)

    @property
    def is_list(self) -> bool:
        return any(typing.get_origin(t) in (list, tuple) for t in self.types)

    @property
    def is_dict(self) -> bool:
        return any(typing.get_origin(t) is dict for t in self.types)

    @property
    def is_flag(self) -> bool:
        return self.types == (bool,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal."""
        literals = (t for t in self.types if typing.get_origin(t) is typing.Literal)
        return tuple(str(value) for literal in literals for value in typing.get_args(literal))

    @property
    def item_choices(self) -> tuple[str, ...]:
        """The values that the items of a list may have; empty if any."""
        items = (item for t in self.types if typing.get_origin(t) is list for item in typing.get_args(t))
        literals = (item for item in items if typing.get_origin(item) is typing.Literal)
        return tuple(str(value) for literal in literals for value in typing.get_args(literal))


@dataclass(frozen=True)
class Command:
    """What a command's function says of itself.

    Attributes:
        purpose: What it does, one paragraph after another.
        example: Lines that call it.
        options: Its options, each group before its fields.
        shown: Names of those that --help shows, in this order; empty where the command's module does not say.
    """

    purpose: tuple[str, ...]
    example: tuple[str, ...]
    options: tuple[Option, ...]
    shown: tuple[str, ...]

    @property
    def positional(self) -> tuple[Option, ...]:
        """Options that must be given, which may be given without their names."""
        return tuple(option for option in self.options if option.required and not option.group)

    @property
    def values(self) -> tuple[Option, ...]:
        """The options without the groups."""
        return tuple(option for option in self.options if not option.is_group)


def read_command(function: Callable[..., Any]) -> Command:
    from docstring_parser.google import parse

    text = parse(inspect.getdoc(function) or "")
    paragraphs = "\n\n".join(filter(None, (text.short_description, text.long_description))).split("\n\n")
    example = "\n".join(example.description or "" for example in text.examples)
    shown: Mapping[str, tuple[str, ...]] = getattr(inspect.getmodule(function), "SHOWN", {})
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    return Command(
        tuple(" ".join(paragraph.split()) for paragraph in paragraphs),
        tuple(line.strip() for line in example.splitlines()),
        tuple(_options(function, defaults)),
        shown.get(function.__name__, ()),
    )


def flat_groups(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters that are annotated with `FLAT`, and their dataclasses."""
    hints = typing.get_type_hints(function, include_extras=True)
    return {n: typing.get_args(hint)[0] for n, hint in hints.items() if FLAT in getattr(hint, "__metadata__", ())}


def _options(owner: Any, defaults: Mapping[str, Any], prefix: str = "") -> Iterator[Option]:
    """The options that a function's parameters or a dataclass's fields make."""
    from docstring_parser.google import parse

    hints = typing.get_type_hints(owner)
    told = {p.arg_name: p.description or "" for p in parse(inspect.getdoc(owner) or "").params}
    flat = {} if inspect.isclass(owner) else flat_groups(owner)
    for name, default in defaults.items():
        if name in flat:
            yield from _options(flat[name], _field_defaults(flat[name], default))
            continue
        option = Option(prefix + name, hints[name], default, " ".join(told.get(name, "").split()))
        yield option
        for part in option.types:
            if dataclasses.is_dataclass(part):
                yield from _options(part, _field_defaults(part, default), f"{option.name}.")


def _field_defaults(group: Any, given: Any) -> dict[str, Any]:
    """Defaults of a group's fields: those of the instance that is the group's own default, else the class's."""
    fields = [field for field in dataclasses.fields(group) if field.init]
    if dataclasses.is_dataclass(given):
        return {field.name: getattr(given, field.name) for field in fields}
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    plain = {f.name: REQUIRED if f.default is dataclasses.MISSING else f.default for f in fields}
    return plain | made
