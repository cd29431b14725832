"""Free memory goes back to the system; another C library is no obstacle."""

from __future__ import annotations

import ctypes

import pytest

from ilme.runtime import memory


def test_free_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    memory._trim.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: type("Library", (), {"malloc_trim": calls.append}))
    memory.give_back_memory()
    assert calls == [0]
    memory._trim.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    memory.give_back_memory()
    memory._trim.cache_clear()
