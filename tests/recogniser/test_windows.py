"""Windows of long recordings: nothing is lost, cuts fall into pauses, silence is found."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.recogniser.windows import cut_windows, is_silent, stream_windows


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40_000), st.floats(0.1, 3.0))
def test_windows_are_the_recording_and_never_too_long(length, longest):
    samples = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    windows = cut_windows(samples, 1000, longest)
    np.testing.assert_array_equal(np.concatenate([w.samples for w in windows]), samples)
    assert all(0 < len(w.samples) <= longest * 1000 + 1 for w in windows)
    assert all(a.end == b.start for a, b in pairwise(windows))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40_000), st.floats(0.1, 3.0), st.integers(1, 9_000))
def test_windows_do_not_depend_on_the_blocks_that_a_recording_comes_in(length, longest, size):
    samples = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    blocks = [samples[at : at + size] for at in range(0, length, size)]
    whole, streamed = cut_windows(samples, 1000, longest), list(stream_windows(blocks, 1000, longest))
    assert [(w.start, w.end) for w in whole] == [(w.start, w.end) for w in streamed]
    np.testing.assert_array_equal(np.concatenate([w.samples for w in streamed]), samples)


def test_a_cut_falls_into_the_pause():
    rate = 16_000
    noise = np.random.default_rng(0).standard_normal(50 * rate).astype(np.float32)
    noise[24 * rate : int(24.6 * rate)] = 0.0
    first, second = cut_windows(noise, rate, 30.0)
    assert 24.1 < first.end < 24.5 and second.end == 50.0


def test_three_hours_are_cut_in_good_time():
    windows = cut_windows(np.zeros(3 * 3600 * 100, dtype=np.float32), 100, 30.0)
    assert len(windows) >= 360 and windows[-1].end == 3 * 3600


def test_silence():
    assert is_silent(np.zeros(16_000, dtype=np.float32))
    assert is_silent(np.zeros(0, dtype=np.float32))
    quiet = np.zeros(16_000, dtype=np.float32)
    quiet[8000:8320] = 0.01
    assert not is_silent(quiet)


def test_windows_need_a_length():
    with pytest.raises(BadInputError, match="longest=0"):
        cut_windows(np.zeros(10, dtype=np.float32), 1000, 0)
