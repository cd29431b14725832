"""Each model loaded once, however many domains name it: they differ in their LMs, internal LMs and weights.

    models = SharedModels()
    visits, letters = (load_domain(folder, load=models) for folder in ("visits", "letters"))
    assert visits.model is letters.model

A model keeps nothing of what it has heard, and is packed for the CPU in one format, so one thread can use it for all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ilme import bundle
from ilme.recogniser.loading import load_model

__all__ = ["SharedModels"]


class SharedModels:
    """Takes the place of `load_model`; what it loads is kept."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, ...], Any] = {}

    def __call__(self, name: str | Path, device: str = "cpu", **options: Any) -> Any:
        """The model, loaded if it is the first time, if its options differ, or if its files have changed."""
        key = (*_place(str(name)), device, json.dumps(options, sort_keys=True, default=str))
        if key not in self._loaded:
            self._loaded[key] = load_model(name, device, **options)
        return self._loaded[key]


def _place(name: str) -> tuple[str, ...]:
    """Where a model is, by whatever link it was named, and the time of its latest change; a hub id is itself."""
    path = Path(name)
    if name.startswith(bundle.PREFIX) or not path.exists():
        return (name,)
    files = [f for f in path.iterdir() if f.is_file()] if path.is_dir() else [path]
    return str(path.resolve()), str(max((f.stat().st_mtime_ns for f in files), default=0))
