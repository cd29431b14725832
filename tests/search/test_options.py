"""The edge of every search option: the least value that is taken, and the greatest that is not."""

from __future__ import annotations

import math

import pytest

from ilme.errors import BadInputError
from ilme.search.attention import AttentionOptions
from ilme.search.ctc import CTCOptions
from ilme.search.transducer import TransducerOptions

SHARED = {"beam": 1, "nbest": 0, "max_repeats": 0, "repeat_span": 1}
WHOLE = {
    TransducerOptions: SHARED | {"max_symbols": 1, "shortlist": 1},
    CTCOptions: SHARED,
    AttentionOptions: SHARED | {"max_length": 1, "look_back": 0, "stop_after": 0},
}
ANY = {
    TransducerOptions: ["blank_gate", "labels_per_second"],
    CTCOptions: ["labels_per_second"],
    AttentionOptions: ["length_normalisation", "end_margin", "certain_end", "stop_margin", "labels_per_second"],
}


@pytest.mark.parametrize(("kind", "name", "least"), [(k, n, least) for k, w in WHOLE.items() for n, least in w.items()])
def test_whole_numbers(kind, name, least):
    assert getattr(kind(**{name: least}), name) == least
    for wrong in (least - 1, least + 0.5, str(least)):
        with pytest.raises(BadInputError, match=f"{name} must be a whole number of at least {least}"):
            kind(**{name: wrong})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in ANY.items() for name in names])
def test_numbers_that_are_not_negative(kind, name):
    assert getattr(kind(**{name: 0.0}), name) == 0.0
    for wrong in (-0.001, math.nan):
        with pytest.raises(BadInputError, match=name):
            kind(**{name: wrong})
    if name == "blank_gate":
        with pytest.raises(BadInputError, match="blank_gate must be a finite number"):
            kind(blank_gate=math.inf)
    else:
        assert getattr(kind(**{name: math.inf}), name) == math.inf


@pytest.mark.parametrize("kind", list(WHOLE))
def test_no_more_hypotheses_than_the_beam_holds(kind):
    assert kind(beam=3, nbest=3).nbest == 3
    with pytest.raises(BadInputError, match="nbest=4 cannot exceed beam=3"):
        kind(beam=3, nbest=4)


def test_as_many_ends_as_are_kept():
    assert AttentionOptions(beam=3, stop_after=3).stop_after == 3
    assert AttentionOptions(beam=3, nbest=2, stop_after=2).stop_after == 2
    with pytest.raises(BadInputError, match="stop_after=4 hypotheses can never end where nbest=3"):
        AttentionOptions(beam=3, stop_after=4)
    with pytest.raises(BadInputError, match="stop_after=3 hypotheses can never end where nbest=2"):
        AttentionOptions(beam=3, nbest=2, stop_after=3)


def test_what_is_passed_over_needs_a_count():
    assert AttentionOptions(max_repeats=2, repeat_ignores=[3]).repeat_ignores == (3,)
    with pytest.raises(BadInputError, match="give max_repeats too"):
        AttentionOptions(repeat_ignores=(3,))
