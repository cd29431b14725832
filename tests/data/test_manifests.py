"""JSON lines with the number of each line, and the checks of their fields."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from ilme.data.manifests import LONGEST_LINE, CheckedCuts, number, plain_text, read_json_lines
from ilme.errors import BadInputError


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_lines_keep_their_numbers(tmp_path: Path, name: str) -> None:
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert list(read_json_lines(tmp_path / name)) == [(1, {"a": 1}), (4, {"a": 2})]


def test_lines_before_a_bad_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n[]\n')
    rows = read_json_lines(tmp_path / "rows.jsonl")
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(BadInputError, match=r"rows\.jsonl, line 2 is not a JSON object in UTF-8: it is list"):
        next(rows)


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "rows.jsonl").open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of zeros, none of which is on the disk
    with pytest.raises(BadInputError, match=f"line 1 .* longer than {LONGEST_LINE:,} bytes"):
        list(read_json_lines(tmp_path / "rows.jsonl"))


def test_numbers() -> None:
    assert number({"x": 2}, "x") == 2.0 and number({"x": None}, "x", 3.0) == 3.0 and number({}, "x") == 0.0
    for value in (-1, float("nan"), float("inf"), "1", True, [1], 10**400):
        with pytest.raises(BadInputError, match="x must be a number of at least 0"):
            number({"x": value}, "x")


def test_texts() -> None:
    assert plain_text({"x": "é 🐋"}, "x") == "é 🐋" and plain_text({"x": 7}, "x") == "7" and plain_text({}, "x") == ""
    for value in (True, 1.5, ["a"], {"a": 1}, "\ud800"):
        with pytest.raises(BadInputError, match=r"^x (must be text|holds half a character)"):
            plain_text({"x": value}, "x")


def test_cuts_can_travel_to_other_processes(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(CheckedCuts(tmp_path))).path == tmp_path
