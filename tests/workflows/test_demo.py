"""The bundle that ships: whole, small, and as good as it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ilme.data.utterances import Reference
from ilme.errors import BadInputError, CheckpointError
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from ilme.workflows.bundle import FOLDER, read_bundle
from ilme.workflows.demo import DemoOptions, examples, model_tables, run_demo

bundled = pytest.mark.skipif(
    not (FOLDER / "bundle.json").is_file(), reason="no bundle in this checkout; build it with: make bundle"
)


@bundled
def test_it_is_whole_and_light() -> None:
    bundle = read_bundle()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 25_000_000
    assert {(s.model, s.method) for s in bundle.systems} == {
        (model, method) for model in ("rnnt", "aed") for method in ("BS", "SF", "DR", "ILME", "ILME-learned")
    }
    for name in bundle.files:
        bundle._check(FOLDER / name)
    assert "licence" in (FOLDER / "card.md").read_text(encoding="utf-8")


@bundled
@pytest.mark.slow
@pytest.mark.parametrize(("model", "method"), [("rnnt", "ILME"), ("aed", "ILME"), ("rnnt", "ILME-learned")])
def test_twenty_utterances_come_out_as_stored(tmp_path: Path, model: str, method: str) -> None:
    bundle = read_bundle()
    results = run_demo(tmp_path, DemoOptions(model=model, method=method, utterances=20, threads=1), bundle)
    unpacked = bundle.unpack(tmp_path)
    assert len(unpacked.utterances("dev")) >= 200 and len(unpacked.utterances("test")) >= 300
    assert list(results.references) == bundle.check["ids"]
    total = results.measurements[f"{model} {method}"].total
    assert total.words == bundle.check["words"]
    # Another processor rounds differently; a word or two may change.
    assert abs(total.errors - bundle.check["errors"][f"{model} {method}"]) <= 2


@bundled
@pytest.mark.slow
def test_processes_change_nothing_and_their_errors_arrive(tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    def progress(name: str) -> Callable[[int, int], None]:
        counts = seen.setdefault(name, [])
        return lambda done, total: counts.append((done, total))

    def systems(processes: int) -> list[System]:
        options = DemoOptions(model="aed", beam=2, utterances=3, processes=processes)
        return [replace(s, seconds=0.0) for s in run_demo(tmp_path, options, progress=progress).systems]

    assert systems(processes=2) == systems(processes=1)
    assert list(seen) == ["aed DR", "aed ILME", "aed SF", "aed BS"]
    assert all(counts == [(3, 3), (3, 3)] for counts in seen.values())

    damaged = tmp_path / "damaged"
    shutil.copytree(FOLDER, damaged)
    (damaged / "aed.safetensors").write_bytes(b"not what was bundled")
    with pytest.raises(CheckpointError, match=r"aed\.safetensors is damaged"):
        run_demo(tmp_path, DemoOptions(model="aed", utterances=3, processes=2), read_bundle(damaged))


def test_processes_and_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ilme.workflows.demo.cores", lambda: 4)
    options = [DemoOptions(), DemoOptions(threads=2), DemoOptions(threads=0), DemoOptions(threads=8, processes=3)]
    assert [o.at_a_time() for o in options] == [4, 2, 1, 3]


def test_a_folder_without_a_bundle_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="make bundle"):
        read_bundle(tmp_path)
    (tmp_path / "bundle.json").write_text('{"format": "ilme-bundle", "version": 99}')
    with pytest.raises(CheckpointError, match="version 99"):
        read_bundle(tmp_path)


@bundled
def test_all_methods_are_the_papers_and_others_are_decoded_when_named() -> None:
    systems = read_bundle().systems
    assert {s.method for s in systems if DemoOptions().wants(s)} == {"BS", "SF", "DR", "ILME"}
    assert {s.method for s in systems if DemoOptions(method="ILME-learned").wants(s)} == {"ILME-learned"}


def test_options_name_what_is_wrong() -> None:
    with pytest.raises(BadInputError, match=r"model must be whisper, rnnt, aed or all, got 'ctc'"):
        DemoOptions(model="ctc")
    with pytest.raises(BadInputError, match="method must be"):
        DemoOptions(method="LM")
    for wrong in ({"beam": -1}, {"processes": -1}):
        with pytest.raises(BadInputError, match="negative"):
            DemoOptions(**wrong)


def test_tables_fit_a_terminal_and_leave_out_sizes_that_are_all_the_same() -> None:
    said = {"a": Reference("one two three"), "b": Reference("four five")}
    heard = {"a": "one to three", "b": "for fife"}
    systems = tuple(
        System("Whisper tiny.en", name, FusionWeights(0.4, 0.1), heard, parameters=size)
        for name, size in (("BS", 10), ("ILME + phrases", 10))
    )
    (table,) = model_tables(Results("bank calls", "none", said, systems))
    assert table.title.startswith("Whisper tiny.en on bank calls:")
    assert table.columns == ("Method", "λ_T", "μ", "Dev", "Test", "95 %", "vs BS")
    assert all(len(row) == len(table.columns) for row in table.rows) and table.rows[1][0] == "ILME + phrases"
    larger = replace(systems[1], parameters=20_000_000)
    (table,) = model_tables(Results("bank calls", "none", said, (systems[0], larger)))
    assert table.columns[1] == "Params" and table.rows[1][1] == "20.0"


def test_examples_are_utterances_that_ilme_mends() -> None:
    said = {"a": Reference("one two three"), "b": Reference("four five"), "c": Reference("six")}
    fused = {"a": "one to three", "b": "for fife", "c": "six"}
    ilme = {"a": "one two three", "b": "four five", "c": "six"}
    systems = (System("aed", "SF", FusionWeights(), fused), System("aed", "ILME", FusionWeights(), ilme))
    found = examples(Results("set", "none", said, systems), most=2)
    assert [(e.model, e.id, e.fused) for e in found] == [("aed", "b", "for fife"), ("aed", "a", "one to three")]
