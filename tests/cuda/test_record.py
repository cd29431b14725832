"""The record of the GPU's tests says what is true of the sources, and every test that needs a GPU is among them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.record import PAGE, ROOT, hash_of, load, page, save, sources, state_of, stated

ASKS_ITSELF = {"conftest.py", "cuda/run.py", "cuda/test_record.py"}
AGAIN = "run `make cuda` on a machine with a GPU; without one it makes the record say that nothing was run"


def run(**changed: Any) -> dict[str, Any]:
    machine = {"device": "a GPU", "python": "3.12.1", "torch": "2.11.0", "triton": "3.6.0"}
    usual = {"date": "d", "commit": "c", "sources": "now", "machine": machine, "seconds": 1, "failures": {}}
    return {**usual, "left out": {}, "passed": 20, "failed": 0, "skipped": 0, **changed}


def test_the_record_is_true_of_the_sources() -> None:
    record = load()
    assert record == stated(record["run"], record["known"]), AGAIN
    if record["run"] is not None:
        made = record["run"]
        assert re.fullmatch("[0-9a-f]{64}", made["sources"]) and made["commit"] and made["date"]
        assert made["failed"] == len(made["failures"]) and made["skipped"] == len(made["left out"])
        assert all(made["machine"][k] for k in ("device", "python", "torch", "triton"))


def test_the_page_says_what_the_record_says() -> None:
    assert PAGE.read_text("utf-8") == page(load()), AGAIN


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (None, "not run"),
        (run(), "passed"),
        (run(sources="before"), "not run"),
        (run(sources="before", failed=1), "not run"),
        (run(failed=1), "failed"),
        (run(failed=1, skipped=2), "failed"),
        (run(skipped=1), "incomplete"),
        (run(passed=0), "incomplete"),
    ],
)
def test_only_a_whole_run_of_these_sources_has_passed(made: dict[str, Any] | None, state: str) -> None:
    assert state_of(made, "now") == state


def test_who_changes_a_kernel_makes_a_run_stale(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "ilme"
    folder.mkdir(parents=True)
    for name, text in (("kernel.py", "import triton\n"), ("graph.py", "torch.CUDA\n"), ("plain.py", "x = 1\n")):
        (folder / name).write_text(text)
    assert [p.name for p in sources(tmp_path)] == ["graph.py", "kernel.py"]
    made = run(sources=hash_of(sources(tmp_path), tmp_path))
    assert stated(made, ["before"], tmp_path) == {"state": "passed", "run": made, "known": []}
    (folder / "plain.py").write_text("x = 2\n")
    assert stated(made, [], tmp_path)["state"] == "passed"
    (folder / "kernel.py").write_text("import triton  # another\n")
    stale = stated(made, ["before"], tmp_path)
    assert stale == {"state": "not run", "run": made, "known": ["before"]}
    (folder / "kernel.py").write_text("import triton\n")
    (folder / "graph.py").rename(folder / "graphs.py")
    assert stated(made, [], tmp_path)["state"] == "not run"
    save(stale, tmp_path / "cuda.json", tmp_path / "cuda.md")
    assert load(tmp_path / "cuda.json") == stale and "Not known" in (tmp_path / "cuda.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, ["Not known", "No run has been recorded"]),
        (run(), ["Yes: every test passed", "| passed | 20 |", "| device | a GPU |"]),
        (run(sources="before"), ["Not known", "hash of the sources that were run | before"]),
        (run(failed=1, failures={"a::b": "assert 0"}), ["No: ", "1 tests fail", "- `a::b`: assert 0"]),
        (run(skipped=1, **{"left out": {"a::c": "no"}}), ["Not all of it is known", "- `a::c`: no"]),
    ],
)
def test_every_state_is_shown_plainly(made: dict[str, Any] | None, words: list[str]) -> None:
    text = page({"state": state_of(made, "now"), "run": made, "known": []})
    assert all(word in text for word in words) and ("Yes:" in text) == (state_of(made, "now") == "passed")


def test_the_rule_finds_what_runs_on_a_gpu() -> None:
    found = {p.relative_to(ROOT / "src" / "ilme").as_posix() for p in sources()}
    assert {"losses/rnnt_kernels.py", "models/energy_kernels.py", "runtime/cuda.py", "train/graphs.py"} <= found
    assert {"search/transducer.py", "search/attention.py", "models/energies.py"} <= found
    assert "fusion.py" not in found


def test_a_test_that_needs_a_gpu_is_marked() -> None:
    """The marker alone leaves tests out: what asks for a GPU by itself would be missing from `make cuda`."""
    tests = ROOT / "tests"
    asking = {
        p.relative_to(tests).as_posix() for p in tests.rglob("*.py") if "cuda.is_available" in p.read_text("utf-8")
    }
    assert asking <= ASKS_ITSELF


def test_each_test_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  cuda: a GPU\n")
    (tmp_path / "test_some.py").write_text(
        "import pytest\npytestmark = pytest.mark.cuda\n"
        "@pytest.fixture\ndef broken():\n  yield\n  raise ValueError('at the end')\n"
        "def test_a(): pass\ndef test_b(): assert 0\ndef test_c(): pytest.skip('no')\ndef test_d(broken): pass\n"
    )
    (tmp_path / "test_other.py").write_text("import pytest\ndef test_unmarked(): assert 0\n# mark.cuda\n")
    (tmp_path / "test_lost.py").write_text("import absent_package  # mark.cuda\n")
    (tmp_path / "test_none.py").write_text("def test_e(): assert 0\n")
    program = (
        "import pathlib\nfrom tests.cuda.run import counted, marked\n"
        "c = counted(marked(pathlib.Path('.')))\n"
        "print('\\nFOUND', [sorted(c.of(o)) for o in ('passed', 'failed', 'skipped')])\n"
        "print('WHY', c.of('skipped'))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    counted = [["test_some.py::test_a"], ["test_lost.py", "test_some.py::test_b", "test_some.py::test_d"]]
    assert f"FOUND {[*counted, ['test_some.py::test_c']]}" in said, said
    assert "no" in said.split("WHY")[1]
