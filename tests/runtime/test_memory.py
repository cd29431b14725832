"""Free memory goes back to the system; another C library is no obstacle."""

from __future__ import annotations

import ctypes
import os

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


def test_the_bound_of_kernels_is_the_user_s_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.KERNELS, "1")  # so that it is put back afterwards, whatever it was
    monkeypatch.delenv(memory.KERNELS)
    memory.bound_kernels(7)
    assert os.environ[memory.KERNELS] == "7"
    monkeypatch.setenv(memory.KERNELS, "300")
    memory.bound_kernels(7)
    assert os.environ[memory.KERNELS] == "300"
