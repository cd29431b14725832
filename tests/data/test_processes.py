"""Ordered results, taken no faster than they are wanted."""

from __future__ import annotations

import pytest

from ilme.data.processes import cores, ordered_map


def square(x):
    if x == 99:
        raise ValueError("99 is not squared")
    return x * x


@pytest.mark.parametrize("workers", [1, 2])
def test_order_is_kept_and_items_are_taken_lazily(workers):
    taken = []

    def items():
        for i in range(60):
            taken.append(i)
            yield i

    results = ordered_map(square, items(), workers)
    assert next(results) == 0
    assert len(taken) <= 3 * workers + 2
    assert list(results) == [i * i for i in range(1, 60)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_arrives(workers):
    with pytest.raises(ValueError, match="99"):
        list(ordered_map(square, [1, 99, 2], workers))


def test_there_is_a_core():
    assert cores() >= 1
