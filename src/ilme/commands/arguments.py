"""From the words after a command's name to the values of its options.

Options come from `--config FILE.yaml`, from `--name value` and from `name=value`; the command line counts more than the
file. The habits of shells are written the way the parser (jsonargparse) reads them, which then checks every value
against its type. Mistakes are `UsageError`s of one line.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentError
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ilme.commands.options import Command, Option, flat_groups, read_command
from ilme.errors import BadInputError, UsageError

__all__ = ["did_you_mean", "parse_arguments", "plain_arguments", "usage"]

PARSERS = ("config", "print_config")  # options that the parser itself adds
# Bytes of a name that are no UTF-8 come as surrogates, which the parser cannot read: private characters stand for them.
SHIELDED = {surrogate: 0xF0000 + surrogate for surrogate in range(0xDC80, 0xDD00)}
UNSHIELDED = {shield: surrogate for surrogate, shield in SHIELDED.items()}


def parse_arguments(name: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The values with which a command's function is to be called."""
    from jsonargparse import ArgumentParser

    command, flat = read_command(function), flat_groups(function)
    parser = ArgumentParser(prog=f"ilme {name}", exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_function_arguments(function, fail_untyped=True, skip=set(flat))
    for group in flat.values():
        parser.add_class_arguments(group, fail_untyped=True)
    try:
        parsed = parser.parse_args(plain_arguments(name, command, [word.translate(SHIELDED) for word in words]))
    except ArgumentError as error:
        raise UsageError(_explain(name, command, str(error))) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            "--config: this is not a file of options in YAML: it is no text, or nested too deeply"
        ) from error
    for key, value in parsed.items():
        if key.rpartition(".")[2] == "seed" and isinstance(value, int) and value < 0:
            raise UsageError(f"--{key} must not be negative, got {value}")
    try:
        values = {k: _unshielded(v) for k, v in vars(parser.instantiate(parsed)).items() if k not in PARSERS}
        groups = {n: group(**{f.name: values.pop(f.name) for f in fields(group)}) for n, group in flat.items()}
    except ValueError as error:  # a dataclass of options refuses its values; in the parser's words where it may be None
        refused = error if isinstance(error, BadInputError) else error.__cause__
        if not isinstance(refused, BadInputError):
            raise
        raise UsageError(str(refused)) from error
    return values | groups


def plain_arguments(name: str, command: Command, words: Sequence[str]) -> list[str]:
    """The words as `--name=value`, one for each option, and files of options before everything else.

    `--text a.txt b.txt`, `--text a.txt --text b.txt` and a positional list become one JSON list, `loop.steps=5` becomes
    `--loop.steps=5`, a bare `--flag` becomes `--flag=true`, and values without a name go to the required options.
    """
    left = deque(words)
    files: list[str] = []
    named: list[str] = []
    lists: dict[str, list[str]] = {}
    loose: list[str] = []
    while left:
        word = left.popleft()
        if word == "--":
            loose += left
            break
        if not _names_option(word):
            loose.append(word)
            continue
        key, equals, value = word.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        if key == "print_config":
            named.append(f"--{key}{equals}{value}")
            continue
        option = _find(key, word, command)
        if option is not None and option.is_list and not (equals and value.startswith("[")):
            lists.setdefault(key, []).extend([value] if equals else _take_values(option, left))
            continue
        if not equals:
            value = _take_value(key, option, left)
        (files if key == "config" else named).append(f"--{key}={value}")
    given = {*lists, *(word[2:].partition("=")[0] for word in named)}
    free = [option for option in command.positional if option.name not in given]
    named += [f"--{key}={json.dumps(values, ensure_ascii=False)}" for key, values in lists.items()]
    whole = files + named + _give_names(loose, free, usage(name, command))
    for word in whole:
        key, _, value = word.removeprefix("--").partition("=")
        if not value and key != "print_config":  # as from a variable of the shell that is not set
            raise UsageError(f"--{key} is empty: give it a value, or leave it out")
    return whole


def _unshielded(value: Any) -> Any:
    """The value with the bytes of names as they came."""
    if isinstance(value, str):
        return value.translate(UNSHIELDED)
    if isinstance(value, Path):
        return Path(str(value).translate(UNSHIELDED))
    if isinstance(value, list | tuple):
        return type(value)(_unshielded(item) for item in value)
    return value


def usage(name: str, command: Command) -> str:
    """How to call a command, in one line."""
    places = (option.name.upper() + ("..." if option.is_list else "") for option in command.positional)
    return " ".join(("ilme", name, *places, "[options]"))


def did_you_mean(word: str, names: Iterable[str], prefix: str = "") -> str:
    """`; did you mean …?` for the names nearest to a word that is none; empty where none is near."""
    names = list(names)
    leaf = word.rpartition(".")[2]
    close = [name for name in names if name.rpartition(".")[2] == leaf] or get_close_matches(word, names, n=1)
    return f"; did you mean {' or '.join(prefix + name for name in close[:3])}?" if close else ""


def _names_option(word: str) -> bool:
    """Whether a word is `--name`, `--name=value`, `-n` or `name=value`; a file whose name has a = in it is a value."""
    if re.fullmatch(r"[A-Za-z_][\w.-]*=.*", word, re.DOTALL):
        return not Path(word).exists()
    return re.match(r"--?[A-Za-z]", word) is not None


def _find(key: str, word: str, command: Command) -> Option | None:
    """The option with this name; None for one of the parser's, and for an entry of a dict (`model.ctc`)."""
    options = {option.name: option for option in command.options}
    if key in options:
        return options[key]
    parents = [key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)]
    if key in PARSERS or any(parent in options and options[parent].is_dict for parent in parents):
        return None
    shown = word.partition("=")[0]
    raise UsageError(f"there is no option {shown}{did_you_mean(key, options, '--') or '; --help-all lists them'}")


def _take_value(key: str, option: Option | None, left: deque[str]) -> str:
    """The next word, as the value of an option; a flag needs none."""
    if option is not None and option.is_flag:
        return left.popleft() if left and left[0] in ("true", "false") else "true"
    if not left or left[0].startswith("--"):
        raise UsageError(f"--{key} needs a value")
    return left.popleft()


def _take_values(option: Option, left: deque[str]) -> list[str]:
    """The values of a list: every word up to the next option, or up to one that the list cannot hold."""
    values: list[str] = []
    while left and left[0] != "--" and not _names_option(left[0]):
        if values and option.item_choices and left[0] not in option.item_choices:
            break
        values.append(left.popleft())
    if not values:
        raise UsageError(f"--{option.name} needs at least one value")
    return values


def _give_names(values: list[str], free: list[Option], how: str) -> list[str]:
    """Values without names as the options that must be given; a list takes all that the others do not need."""
    spare = len(values) - sum(not option.is_list for option in free)
    words, at = [], 0
    for option in free:
        take = values[at : at + (max(spare, 0) if option.is_list else 1)]
        at += len(take)
        if take:
            words.append(f"--{option.name}={json.dumps(take, ensure_ascii=False) if option.is_list else take[0]}")
    if at < len(values):
        raise UsageError(f"{values[at]!r} belongs to no option; usage: {how}")
    return words


def _explain(name: str, command: Command, message: str) -> str:
    """What the parser complains about, in one line that says what to do."""
    if missing := re.match(r"the following arguments are required: (.*)", message):
        return f"{missing[1].upper()} must be given; usage: {usage(name, command)}"
    options = {option.name: option for option in command.options}
    if unknown := re.match(r"(?:Group '(.*)' does not accept o|O)ption '(.*?)'", message):
        key = ".".join(filter(None, unknown.groups()))
        return f"--config: there is no option {key}{did_you_mean(key, options) or '; --help-all lists them'}"
    if broken := re.match(r"(?:Problems parsing|Unexpected) config: (.*)", message, re.DOTALL):
        reason = " ".join(broken[1].replace('in "<unicode string>", ', "").split())
        return f"--config: this is not a file of options in YAML: {reason}"
    keys = re.findall(r'Parser key "([^"]+)"', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    option = options.get(".".join(keys)) or options.get("".join(keys[:1]))
    if option is None or value is None:
        return " ".join(re.sub(r'Parser key "(.*?)":', r"--\1:", message).split())
    shown = value[1] if value[1].startswith("[") else repr(value[1])
    return f"--{option.name}: {shown} is not {_wanted(option, message, value[1])}"


def _wanted(option: Option, message: str, value: str) -> str:
    choices = option.choices or option.item_choices
    if choices:
        return f"one of {', '.join(choices)}{did_you_mean(value, choices)}"
    if tuple_of := re.search(r"Expected a tuple with (\d+) elements", message):
        return f"a list of {tuple_of[1]} values"
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    other = "a list such as [a, b]" if option.is_list else "of a type it takes"
    return " or ".join(dict.fromkeys(words.get(kind, other) for kind in option.types))
