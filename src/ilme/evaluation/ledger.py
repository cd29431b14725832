"""How often a test set has been looked at. A test set that chose its own weights is a dev set.

A JSON file beside the results: for each test set (known by its ids and transcripts) every decode with tuned weights.
The same decode again is not a new look; other weights, another model or another beam are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ilme.errors import BadInputError, CheckpointError
from ilme.evaluation.results import Results
from ilme.recogniser.store import identity
from ilme.runtime.configs import read_json_object
from ilme.runtime.files import write_json
from ilme.runtime.locks import only_run

__all__ = ["looks_at", "record_look"]

FORMAT = "ilme-ledger"
VERSION = 1


def record_look(path: Path, results: Results) -> int:
    """Writes down that the systems of `results` were decoded on this test set; returns how many looks there were."""
    with only_run(path, wait=True):
        return _recorded(path, results)


def _recorded(path: Path, results: Results) -> int:
    data = _read(path)
    test_set = _fingerprint(results)
    entry = data["sets"].setdefault(test_set, {"name": results.name, "looks": []})
    for system in results.systems:
        weights = asdict(system.weights)
        if not any(weights.values()):
            continue  # nothing was tuned
        look = {"model": system.model, "method": system.method, "weights": weights, "beam": system.beam}
        known = [{k: old[k] for k in look} for old in entry["looks"]]
        if look not in known:
            when = datetime.now(UTC).isoformat(timespec="seconds")
            entry["looks"].append({**look, "wer": round(results.measurements[system.name].rate, 4), "when": when})
    write_json(path, data)
    return len(entry["looks"])


def looks_at(path: Path, results: Results) -> list[Mapping[str, Any]]:
    """Every look at this test set that the ledger knows."""
    looks: list[Mapping[str, Any]] = _read(path)["sets"].get(_fingerprint(results), {"looks": []})["looks"]
    return looks


def _fingerprint(results: Results) -> str:
    return identity({i: r.text for i, r in results.references.items()})


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"format": FORMAT, "version": VERSION, "sets": {}}
    try:
        data = read_json_object(path)
    except CheckpointError as error:
        raise BadInputError(f"{error}; put the ledger right, it is the record of looks") from error
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise BadInputError(f"{path} is not a ledger of version {VERSION}; choose another place with --ledger")
    if not _whole(data):
        raise BadInputError(f"the ledger {path} is damaged; put it right, it is the record of looks")
    return data


def _whole(data: Mapping[str, Any]) -> bool:
    """Whether the sets and their looks are as `record_look` writes them."""
    sets = data.get("sets")
    entries = list(sets.values()) if isinstance(sets, dict) else [None]
    looks = [entry["looks"] if isinstance(entry, dict) and "looks" in entry else None for entry in entries]
    fields = {"model", "method", "weights", "beam"}
    return all(
        isinstance(found, list) and all(isinstance(x, dict) and fields <= x.keys() for x in found) for found in looks
    )
