"""Attacks on what `ilme evaluate` and `ilme tune` write and other commands read: results, tunings, ledgers, texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ilme.data.utterances import Reference
from ilme.errors import BadInputError
from ilme.evaluation.ledger import record_look
from ilme.evaluation.metrics import ErrorCounts
from ilme.evaluation.results import Results, System
from ilme.evaluation.tuning_result import Balance, HeatMap, TuningResult, TuningStep
from ilme.fusion import FusionWeights
from tests.attacks.cases import TRACEBACK, Case, attacks, check_call, check_command, run_here

WEIGHTS = FusionWeights(0.3, 0.1, 0.2)
COUNTS = ErrorCounts(5, 1, 1, 0)
TUNING = TuningResult(
    "ILME", WEIGHTS, COUNTS, COUNTS, 4, "none", 0.0, 2, (TuningStep(WEIGHTS, 4, COUNTS, 20.0, 3),),
    HeatMap((0.0, 0.3), (0.0, 0.1), ((30.0, 20.0), (25.0, 15.0)), 0.0),
    Balance((0.0, 0.3), (0.0, 0.1), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0)), None, 1.0,
)  # fmt: skip
REFERENCES = {"u0": Reference("the whale swam", "ann", 1.0), "u1": Reference("the sea was calm", "bob", 1.0)}
SYSTEMS = (
    System("rnnt", "BS", FusionWeights(), {"u0": "the wail swam", "u1": "the sea was calm"}),
    System("rnnt", "ILME", WEIGHTS, {"u0": "the whale swam", "u1": "the sea was calm"}, 20.0, 5, 1.0, 4, 10.0,
           tuning=TUNING, search_errors={"right": 1, "search": 0, "model": 1}),
)  # fmt: skip
RESULTS = Results("sea", "none", REFERENCES, SYSTEMS)
DEEP = "[" * 100_000
ODD: dict[str, Any] = {
    "nothing": None, "a text": "x", "a negative number": -1, "NaN": float("nan"), "infinity": float("inf"),
    "a huge number": 10**400, "true": True, "a list": [], "a mapping": {}, "half a character": "\ud800",
    "a tag": "<script>alert(1)</script>",
}  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value of a JSON document; of a list, its first entry alone."""
    inner = data.items() if isinstance(data, dict) else list(enumerate(data))[:1] if isinstance(data, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


def without(data: Any, path: tuple[Any, ...]) -> Any:
    copy = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copy


def damaged(data: Any) -> list[Any]:
    """(what it is, the document) with each value in turn replaced by something odd, or taken away."""
    rows = []
    for k, path in enumerate(places(data)):
        name = "/".join(map(str, path))
        for j, (kind, value) in enumerate(ODD.items()):
            mark = () if (k + j) % 37 == 0 else pytest.mark.attacks
            rows.append(pytest.param(changed(data, path, value), id=f"{name} is {kind}", marks=mark))
        rows.append(pytest.param(without(data, path), id=f"no {name}", marks=pytest.mark.attacks))
    return rows


def check_reader(words: list[str], file: Path) -> None:
    """It reads the file, or says in one line which file it cannot read."""
    result = run_here(words)
    assert TRACEBACK not in result.err and result.status in (0, 1), result.err
    if result.status:
        told = (file.name, "have no hypothesis", "have no reference", "the references hold no words")
        assert any(words in result.err for words in told) and len(result.err.strip().splitlines()) == 1, result.err


@pytest.mark.parametrize("data", damaged(RESULTS.to_json()))
def test_results(data: Any, tmp_path: Path) -> None:
    """Compared and shown, or refused."""
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    for words in (["compare", str(file)], ["report", str(file), "--out", str(tmp_path / "r.html"), "--audio", "0"]):
        check_reader(words, file)
    if (tmp_path / "r.html").exists():
        page = (tmp_path / "r.html").read_text()
        assert "<script>alert(1)</script>" not in page


@pytest.mark.parametrize("data", damaged(TUNING.to_json()))
def test_tunings(data: Any, tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps(data))
    try:
        TuningResult.load(file)
    except BadInputError as error:
        assert "tuning.json" in str(error)


def content(text: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "bad.json").write_bytes(text.encode() if isinstance(text, str) else text)
        return folder / "bad.json"

    return make


BROKEN = [
    Case("a missing file", lambda f: f / "bad.json", BadInputError, ("there is no", "bad.json")),
    Case("a folder", lambda f: f, BadInputError, ("not a regular file",)),
    Case("nothing", content(""), BadInputError, ("bad.json", "not JSON")),
    Case("deep nesting", content(DEEP), BadInputError, ("bad.json", "nested too deeply")),
    Case("deep mappings", content('{"a":' * 100_000), BadInputError, ("bad.json",)),
    Case("bytes", content(bytes(range(256))), BadInputError, ("bad.json", "not JSON")),
    Case("UTF-16", content("{}".encode("utf-16")), BadInputError, ("bad.json",)),
    Case("a long number", content("9" * 5000), BadInputError, ("bad.json",)),
    Case("a list", content("[]"), BadInputError, ("bad.json", "not a JSON object")),
    Case("an empty object", content("{}"), BadInputError, ("bad.json",)),
    Case("cut off", content(json.dumps(RESULTS.to_json())[:-9]), BadInputError, ("bad.json", "not JSON")),
]


@attacks(BROKEN)
def test_files_that_are_no_results(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, Results.load)


@attacks(BROKEN)
def test_files_that_are_no_tuning(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, TuningResult.load)


SETS = (None, [], "x", {"a": 1}, {"a": {}}, {"a": {"looks": 5}}, {"a": {"looks": [1]}})


@attacks([*(c for c in BROKEN if c.name != "a missing file"),
          *(Case(f"sets are {value!r}", content(json.dumps({"format": "ilme-ledger", "version": 1, "sets": value})),
                 BadInputError, ("bad.json", "damaged"))
            for value in SETS)])  # fmt: skip
def test_ledgers(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, lambda path: record_look(path, RESULTS))


TEXTS = [
    Case("a missing file", lambda f: f / "gone.jsonl", 1, ("gone.jsonl",)),
    Case("a folder", lambda f: f, 1, ()),
    Case("no JSON", content("hello\n"), 1, ("bad.json, line 1",)),
    Case("deep nesting", content(DEEP + "\n"), 1, ("bad.json, line 1",)),
    Case("a list", content("[1]\n"), 1, ("bad.json, line 1",)),
    Case("no text", content('{"id": "u0"}\n'), 1, ("bad.json, line 1",)),
    Case("bytes", content(bytes(range(256)) * 9), 1, ("bad.json",)),
    Case("half a character", content('{"id": "u0", "text": "\\ud800"}\n'), 1, ("bad.json, line 1", "surrogate")),
    Case("an id twice", content('{"id": "u0", "text": "a"}\n' * 2), 1, ("u0",)),
    Case("nothing", content(""), 1, ()),
]


@attacks(TEXTS)
def test_texts_of_another_program(case: Case, tmp_path: Path) -> None:
    from tests.checkpoints import write_set

    test = write_set(tmp_path, "test", ["the whale swam", "the sea"])
    words = ["evaluate", "theirs", str(test), str(tmp_path / "out"), "--hypotheses"]
    check_command(replace(case, make=lambda f: [*words, str(case.make(f))]), tmp_path)
    assert not (tmp_path / "out" / "results.json").exists()
