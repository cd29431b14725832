"""What `ilme COMMAND --help` and `ilme COMMAND --help-all` print.

--help shows the options that matter: those that the command's module lists in `SHOWN`, a dict from the name of a
function to names of options. Without an entry it shows the first `MOST`, the command's own before those of its groups.
"""

from __future__ import annotations

import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ilme.commands.arguments import usage
from ilme.commands.options import Command, Option, read_command

__all__ = ["MOST", "command_help", "shown_options"]

MOST = 15  # options that --help shows


def command_help(name: str, function: Callable[..., Any], every: bool = False) -> str:
    """The help of a command, with the options that matter or with every one."""
    command = read_command(function)
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 60), 120)
    lines = [f"usage: {usage(name, command)}", ""]
    for paragraph in command.purpose:
        lines += [*textwrap.wrap(paragraph, width), ""]
    if command.example:
        lines += [*(f"    {line}" for line in command.example), ""]
    if every:
        for title, options in _groups(command):
            lines += [*textwrap.wrap(title, width), *_table(options, width, whole=True), ""]
    else:
        lines += [*_table(shown_options(command), width, whole=False), ""]
    lines += textwrap.wrap(_footer(name, command, every), width)
    return "\n".join(lines)


def shown_options(command: Command) -> list[Option]:
    """The options that --help shows."""
    if len(command.values) <= MOST:
        return list(command.values)
    if command.shown:
        named = {option.name: option for option in command.values}
        return [named[name] for name in command.shown]
    return sorted(command.values, key=lambda option: option.group != "")[:MOST]


def _groups(command: Command) -> Iterator[tuple[str, list[Option]]]:
    """Every option, under what its group is for."""
    titles = {"": ""} | {option.name: option.help for option in command.options if option.is_group}
    for group, title in titles.items():
        if options := [option for option in command.values if option.group == group]:
            yield (f"{group}: {title}" if group else "Options:"), options


def _table(options: Sequence[Option], width: int, whole: bool) -> list[str]:
    """Name and value, default, and what it does, in three columns; whole texts, or their first sentences."""
    rows = [(_name(option), _default(option), _about(option, whole)) for option in options]
    if not whole:
        rows = [(name, textwrap.shorten(default, 14, placeholder=" …"), about) for name, default, about in rows]
    left = min(max(len(name) for name, _, _ in rows), 32)
    middle = min(max(len(default) for _, default, _ in rows), 14)
    indent = " " * (left + middle + 6)
    lines = []
    for name, default, about in rows:
        head = f"  {name:<{left}}  {default:<{middle}}  "
        text = textwrap.wrap(about, width - len(indent)) or [""]
        if len(head) > len(indent):  # a long name or default has a line to itself
            lines.append(head.rstrip())
            head = indent
        lines.append((head + text[0]).rstrip())
        lines += [indent + line for line in text[1:]]
    return lines


def _name(option: Option) -> str:
    if option.required and not option.group:
        return option.name.upper() + ("..." if option.is_list else "")
    return f"--{option.name} {_value(option)}".rstrip()


def _value(option: Option) -> str:
    """What stands for the value after an option's name."""
    if option.is_flag:
        return "true|false" if option.default is True else ""
    if option.choices and len("|".join(option.choices)) <= 24:
        return "|".join(option.choices)
    words = {int: "N", float: "X", Path: "PATH"}
    if not option.is_list:
        return words.get(option.types[0], option.leaf.upper())
    listed = next(t for t in option.types if typing.get_origin(t) in (list, tuple))
    items = [words.get(item, option.leaf.upper()) for item in typing.get_args(listed) if item is not ...]
    return " ".join(items) if len(items) > 1 else f"{items[0]}..."


def _default(option: Option) -> str:
    """The default as it would be typed; empty where it only says that nothing is given."""
    value = option.default
    if option.required:
        return "required"
    if value is None or value is False or value in ("", (), [], {}):
        return ""
    if isinstance(value, bool):
        return "true"
    values = value if isinstance(value, tuple | list) else (value,)
    return " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)


def _about(option: Option, whole: bool) -> str:
    text = option.help if whole else re.split(r"(?<=\.) (?=[A-Z`])", option.help)[0]
    listed = option.choices and _value(option) == option.leaf.upper()
    return f"{text} One of {', '.join(option.choices)}." if listed else text


def _footer(name: str, command: Command, every: bool) -> str:
    shown, count = len(shown_options(command)), len(command.values)
    more = f"{shown} of {count} options; `ilme {name} --help-all` shows all of them. "
    ways = "Options can also be written as name=value, or be read from a file: --config FILE.yaml."
    if every:
        return f"{ways} --print_config prints such a file."
    return (more if shown < count else "") + ways
