"""The folder of n-best lists: what is written comes back, what is damaged or of another decode is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.recogniser.store import DecodeStore
from ilme.search.hypothesis import Hypothesis, Scores


def test_store_refuses_what_it_did_not_write(tmp_path: Path) -> None:
    store = DecodeStore(tmp_path, {"beam": 3})
    nbest = [Hypothesis((1, 2), -1.5, Scores(-1.5, -2.0, -3.0, 2), (0, 4), "a b")]
    with store.open() as part:
        part.write([("u", nbest)])
    assert store.read() == {"u": nbest}
    with pytest.raises(BadInputError, match="another decode: beam differ"):
        DecodeStore(tmp_path, {"beam": 4}).read()
    path = tmp_path / "part-0000.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"version": 1', b'"version": 9'))
    with pytest.raises(BadInputError, match="version 9"):
        store.read()
    path.write_bytes(good + b'{"id": \n' + b'{"id": "w", "nbest": []}\n')
    with pytest.raises(BadInputError, match="line 3 is damaged"):
        store.read()
    path.write_bytes(b'{"x": 1}\n')
    with pytest.raises(BadInputError, match="does not begin as"):
        store.read()
