"""Frozen config dataclasses to JSON and back, nested ones included. What a file says is checked field by field."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from ilme.errors import BadInputError, CheckpointError

__all__ = [
    "changed_config",
    "config_from_json",
    "config_to_json",
    "finite_numbers",
    "json_object",
    "overlaid",
    "read_json_object",
]

Config = TypeVar("Config")

LARGEST_FILE = 1 << 28  # bytes of JSON; an inventory of a million pieces has a tenth of that
LARGEST = 1 << 63  # magnitude of a whole number
_PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", tuple: "a list"}


def config_to_json(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def config_from_json(kind: type[Config], data: dict[str, Any]) -> Config:
    """Builds the dataclass `kind`; a field that it does not know, or of another type, is an error that names it."""
    if not isinstance(data, dict):
        raise BadInputError(f"{kind.__name__} is made from fields with names, not from {_shown(data)}")
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - known)
    if unknown:
        raise BadInputError(
            f"{kind.__name__} has no field {unknown[0]!r} (fields: {', '.join(sorted(known))}); "
            "was this written by a newer version?"
        )
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise BadInputError(f"{kind.__name__} lacks the field {field.name!r}")
    return kind(**{name: _value(f"{kind.__name__}.{name}", hints[name], value) for name, value in data.items()})


def changed_config(config: Config, changes: dict[str, Any]) -> Config:
    """The config with some fields changed, nested ones field by field: {"encoder": {"hidden": 320}}."""
    return config_from_json(type(config), overlaid(config_to_json(config), changes))


def overlaid(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The base with the changes laid over it: mappings are merged field by field, all else is replaced."""
    merged = dict(base)
    for name, value in changes.items():
        inner = merged.get(name)
        merged[name] = overlaid(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def json_object(text: str | bytes, where: object) -> dict[str, Any]:
    """A JSON object out of a file; anything else is a CheckpointError that begins with `where`."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply to be read; it is damaged") from None
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{where} is not a JSON object: it holds {_shown(data)}")
    if not _encodable(text, data):
        raise CheckpointError(f"{where} holds half a character (a lone surrogate), which no file can; it is damaged")
    return data


def finite_numbers(data: Any) -> bool:
    """Whether no number of a JSON document is NaN or infinite."""
    try:
        json.dumps(data, allow_nan=False)
    except ValueError:
        return False
    return True


def _encodable(text: str | bytes, data: Any) -> bool:
    """Whether every text of the data can be written as UTF-8: an escape may stand for half a character."""
    if not re.search(rb"\\u[dD][89a-fA-F]" if isinstance(text, bytes) else r"\\u[dD][89a-fA-F]", text):  # type: ignore[arg-type]
        return True
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json_object(file: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        if not file.is_file():
            raise CheckpointError(f"{file} {'is not a regular file' if file.exists() else 'does not exist'}")
        if (size := file.stat().st_size) > LARGEST_FILE:
            raise CheckpointError(f"{file} has {size:,} bytes, too many for a description; it is damaged")
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    return json_object(content, file)


def _value(name: str, hint: Any, value: Any) -> Any:
    """The value as the hint says, lists as tuples; an error that names the field if it is of another type."""
    if dataclasses.is_dataclass(hint):
        return config_from_json(typing.cast(type, hint), value) if isinstance(value, dict) else _same(name, hint, value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(name, inner, value)
    if origin is typing.Literal:
        if not any(value == choice and type(value) is type(choice) for choice in inner):
            raise BadInputError(f"{name} must be one of {', '.join(map(str, inner))}, got {_shown(value)}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        each = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(each) != len(value):
            raise BadInputError(f"{name} holds {len(each)} values, got {len(value)}")
        return tuple(_value(name, h, v) for h, v in zip(each, value, strict=True))
    if origin is not None:
        return _same(name, origin, value)
    return _same(name, hint, value)


def _one_of(name: str, hints: tuple[Any, ...], value: Any) -> Any:
    problem: BadInputError | None = None
    for hint in hints:
        try:
            return _value(name, hint, value)
        except BadInputError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _same(name: str, kind: Any, value: Any) -> Any:
    if not isinstance(kind, type):
        return value  # Any, and what only a type checker knows
    right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not right or (isinstance(value, bool) and kind in (int, float)):
        raise BadInputError(f"{name} must be {_PLAIN.get(kind, f'a {kind.__name__}')}, got {_shown(value)}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise BadInputError(f"{name} is a number with {len(str(abs(value)))} digits, which cannot be right")
    if kind is float and math.isnan(value):
        raise BadInputError(f"{name} must be a number, got nan")
    return value


def _shown(value: Any) -> str:
    """A value in few characters, whatever it is."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return "nothing" if value is None else repr(value)[:80]
