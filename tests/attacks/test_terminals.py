"""Terminals and pipes of every kind: what cannot be printed is escaped or dropped, and the work is done."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.cases import TRACEBACK
from tests.attacks.jobs import JOBS, OTHERS, made, make_inputs, preload, run

ALL = JOBS | OTHERS


def encoded(name: str) -> Callable[[], None]:
    """Streams that know this encoding alone, as a console of that code page."""

    def inside() -> None:
        for number, stream in ((1, "stdout"), (2, "stderr")):
            raw = os.fdopen(number, "wb", closefd=False)
            setattr(sys, stream, io.TextIOWrapper(raw, encoding=name, errors="strict", write_through=True))

    return inside


def closed(*streams: str) -> Callable[[], None]:
    def inside() -> None:
        for name in streams:
            os.close({"stdout": 1, "stderr": 2}[name])
            setattr(sys, name, None)

    return inside


def onto(path: str) -> Callable[[], None]:
    """stdout is this file."""

    def inside() -> None:
        os.dup2(os.open(path, os.O_WRONLY), 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)

    return inside


def unread() -> None:
    """stdout is a pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)


def narrow(columns: str) -> Callable[[], None]:
    return lambda: os.environ.update(COLUMNS=columns, LINES="1", TERM="dumb")


TERMINALS: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {  # how, and with which statuses a command may end
    "cp1252": (encoded("cp1252"), (0,)),
    "ASCII": (encoded("ascii"), (0,)),
    "Latin-1": (encoded("latin-1"), (0,)),
    "UTF-16": (encoded("utf-16"), (0,)),
    "closed stdout": (closed("stdout"), (0,)),
    "closed stderr": (closed("stderr"), (0,)),
    "both closed": (closed("stdout", "stderr"), (0,)),
    "a full disk": (onto("/dev/full"), (0, 1)),
    "nobody reads": (unread, (0, 141)),
    "one column": (narrow("1"), (0,)),
    "no columns": (narrow("0"), (0,)),
    "odd columns": (narrow("wide"), (0,)),
}
WRITING = ("adapt", "tune", "evaluate", "transcribe", "train lm", "compare", "report", "text prepare", "ngram train",
           "data import", "data split", "ilm learn", "lm mix")  # fmt: skip
PRINTING: dict[str, list[str]] = {
    "overview": ["--help"],
    "version": ["--version"],
    "help of adapt": ["adapt", "--help"],
    "all help of train": ["train", "aed", "--help-all"],
    "transcripts": ["transcribe", "INPUTS/audio", "--model", "INPUTS/rnnt"],
    "perplexity": ["perplexity", "INPUTS/rnnt", "INPUTS/text.txt"],
    "info": ["info", "rnnt"],
    "a table": ["compare", "INPUTS/results.json"],
    "LaTeX": ["compare", "INPUTS/results.json", "--style", "latex"],
    "a corpus": ["data", "show", "INPUTS/cuts.jsonl.gz"],
}
SAMPLE = {("adapt", "cp1252"), ("adapt", "a full disk"), ("evaluate", "nobody reads"), ("transcribe", "both closed"),
          ("tune", "ASCII")}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preload()
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, object]]:
    known: dict[str, dict[str, object]] = {}

    def made_by(name: str) -> dict[str, object]:
        if name not in known:
            folder = tmp_path_factory.mktemp("whole")
            assert run(ALL[name].words(inputs, folder / "out"), folder).status == 0
            known[name] = made(folder / "out", ALL[name].ignored)
        return known[name]

    return made_by


@pytest.mark.parametrize(
    ("terminal", "name"),
    [pytest.param(t, n, marks=() if (n, t) in SAMPLE else pytest.mark.attacks) for t in TERMINALS for n in WRITING],
)
def test_printing_loses_no_work(
    terminal: str, name: str, inputs: Path, tmp_path: Path, whole: Callable[[str], dict[str, object]]
) -> None:
    if name.startswith("train"):
        pytest.importorskip("lightning_fabric", reason="it trains: pip install 'ilme[train]'")
    inside, statuses = TERMINALS[terminal]
    result = run(ALL[name].words(inputs, tmp_path / "out"), tmp_path, inside=inside)
    assert result.status in statuses and TRACEBACK not in result.err, result.err
    assert made(tmp_path / "out", ALL[name].ignored) == whole(name)
    if result.status == 1:
        assert "the output cannot be written" in result.err


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("overview", "a table") else pytest.mark.attacks) for n in PRINTING]
)
def test_what_only_prints(terminal: str, name: str, inputs: Path, tmp_path: Path) -> None:
    inside, statuses = TERMINALS[terminal]
    words = [word.replace("INPUTS", str(inputs)) for word in PRINTING[name]]
    result = run(words, tmp_path, inside=inside)
    assert result.status in statuses and TRACEBACK not in result.err, result.err
