"""Tuning and testing of a study: weights that do not hold at the tables' beam are named."""

from __future__ import annotations

from ilme.evaluation.metrics import ErrorCounts
from ilme.study.decoding import beam_hint


def test_weights_that_hold_at_the_wider_beam_need_no_word() -> None:
    tuned = ErrorCounts(hits=800, substitutions=150, deletions=50, insertions=50)
    assert beam_hint(tuned, 8, ErrorCounts(790, 150, 60, 50), 25) is None


def test_sentences_that_only_the_wider_beam_lets_run_on_are_named() -> None:
    tuned = ErrorCounts(hits=800, substitutions=150, deletions=50, insertions=50)
    hint = beam_hint(tuned, 8, ErrorCounts(800, 150, 50, 110), 25)
    assert hint is not None
    assert "31.00 % errors at beam 25" in hint and "25.00 % at beam 8" in hint and "decoding.tuning_beam=25" in hint
