"""Frozen config dataclasses to JSON and back, nested ones included."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, TypeVar

from ilme.errors import BadInputError

__all__ = ["changed_config", "config_from_json", "config_to_json", "overlaid"]

Config = TypeVar("Config")


def config_to_json(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def config_from_json(kind: type[Config], data: dict[str, Any]) -> Config:
    """Builds the dataclass `kind`; a field it does not know is an error that names it."""
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - known)
    if unknown:
        raise BadInputError(
            f"{kind.__name__} has no field {unknown[0]!r} (fields: {', '.join(sorted(known))}); "
            "was this written by a newer version?"
        )
    values = {
        name: config_from_json(hints[name], value) if dataclasses.is_dataclass(hints[name]) else _as(hints[name], value)
        for name, value in data.items()
    }
    return kind(**values)


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


def _as(hint: Any, value: Any) -> Any:
    return tuple(value) if typing.get_origin(hint) is tuple and isinstance(value, list) else value
