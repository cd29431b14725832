"""Shards: what is written comes back, in order, and what is not whole does not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.study.shards import is_whole, list_shards, read_samples, write_shard


def write_two(folder: Path) -> list[np.ndarray]:
    waves = [np.arange(n, dtype=np.int16) - 3 for n in (5, 0, 9)]
    write_shard(folder / "0001", ["c"], ["dritter ist größer"], ["w"], waves[2:])
    write_shard(folder / "0000", ["a", "b"], ["one", ""], ["v", "w"], waves[:2])
    return waves


def test_utterances_come_back_in_the_order_of_their_files(tmp_path: Path) -> None:
    waves = write_two(tmp_path)
    listed = list_shards(tmp_path)
    assert listed.ids == ["a", "b", "c"] and listed.texts == ["one", "", "dritter ist größer"]
    assert listed.voices == ["v", "w", "w"] and listed.sizes == [5, 0, 9]
    assert np.array_equal(read_samples(tmp_path, 14), np.concatenate(waves))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000.i16", "0000.json", "0001.i16", "0001.json"]


def test_samples_without_a_list_are_not_whole(tmp_path: Path) -> None:
    write_two(tmp_path)
    (tmp_path / "0001.json").unlink()
    assert is_whole(tmp_path / "0000") and not is_whole(tmp_path / "0001")
    assert list_shards(tmp_path).ids == ["a", "b"]


@pytest.mark.parametrize("cut", [-2, 4])
def test_a_file_that_does_not_fit_its_list_is_named(cut: int, tmp_path: Path) -> None:
    write_two(tmp_path)
    data = (tmp_path / "0001.i16").read_bytes()
    (tmp_path / "0001.i16").write_bytes(data[:cut] if cut < 0 else data + bytes(cut))
    with pytest.raises(BadInputError, match=r"holds 1[36] samples, its lists say 14; remove it"):
        read_samples(tmp_path, 14)


def test_a_speaking_process_does_without_torch() -> None:
    code = "import sys, ilme.study.synthesis; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
