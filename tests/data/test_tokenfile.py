"""Token files: what goes in comes out, and damage is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ilme.data.tokenfile import MAGIC, TokenFile, write_tokens
from ilme.errors import BadInputError, CheckpointError
from ilme.tokens import Tokens


def inventory(size):
    return Tokens(tuple(f"▁{i}" for i in range(size)), sos=0, eos=0, unk=1)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(1, 49), max_size=8), max_size=20))
def test_round_trip(tmp_path, sentences):
    full = [s for s in sentences if s]
    lines, count = write_tokens(tmp_path / "t.tok", sentences, inventory(50), {"kind": "test"})
    file = TokenFile(tmp_path / "t.tok")
    assert (lines, count) == (file.sentences, len(file)) == (len(full), sum(len(s) + 1 for s in full))
    assert [s.tolist() for s in file] == full
    assert file.inventory == inventory(50) and file.tokenizer == {"kind": "test"}
    assert file.ids.dtype == np.uint16


def test_large_vocabularies_take_four_bytes_and_big_files_several_batches(tmp_path):
    sentences = [[70_000, 5]] * 200_000
    write_tokens(tmp_path / "t.tok", sentences, inventory(70_001))
    file = TokenFile(tmp_path / "t.tok")
    assert file.ids.dtype == np.uint32 and len(file) == 600_000
    assert (file.ids.reshape(-1, 3) == [70_000, 5, 0]).all()
    raw = (tmp_path / "t.tok").read_bytes()
    start = len(MAGIC) + 4 + int.from_bytes(raw[8:12], "little")
    assert raw[:8] == b"ILMETOK1" and start % 64 == 0
    assert json.loads(raw[12:start])["count"] == 600_000


def test_errors(tmp_path):
    path = tmp_path / "t.tok"
    with pytest.raises(CheckpointError, match="no token file"):
        TokenFile(path)
    write_tokens(path, [[1, 2], [3]], inventory(5))
    whole = path.read_bytes()
    for damaged, message in (
        (b"", "not a token file"),
        (b"RIFF" + whole, "not a token file"),
        (whole[:40], "damaged header"),
        (whole[:-1], "cut off"),
        (whole + b"x", "cut off"),
        (whole.replace(b"uint16", b"int999"), "damaged header"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=message):
            TokenFile(path)
    with pytest.raises(BadInputError, match="do not fit"):
        write_tokens(tmp_path / "u.tok", [[9]], inventory(5))
    with pytest.raises(BadInputError, match="end of sentence"):
        write_tokens(tmp_path / "u.tok", [[1]], Tokens(("a", "b")))
    assert not (tmp_path / "u.tok").exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 250), cut=st.integers(0, 40), put=st.binary(max_size=6))
def test_fuzz_any_damage_is_read_or_named(tmp_path, at, cut, put):
    write_tokens(tmp_path / "f.tok", [[1, 2], [3]], inventory(5))
    data = (tmp_path / "f.tok").read_bytes()
    (tmp_path / "f.tok").write_bytes(data[:at] + put + data[at + cut :])
    try:
        file = TokenFile(tmp_path / "f.tok")
    except CheckpointError as error:
        assert "f.tok" in str(error)
    else:
        assert len(file) == len(file.ids)
