"""Errors on listed words and on others, counted by hand."""

from __future__ import annotations

from ilme.evaluation.listed import listed_errors
from ilme.evaluation.metrics import measure
from ilme.lm.phrase_list import as_phrases

NAMES = as_phrases(["Jean Valjean", "Cosette"])


def errors(reference, hypothesis, normaliser="spoken"):
    measured = measure({"a": reference}, {"a": hypothesis}, normaliser_name=normaliser)
    listed, others = listed_errors(measured, NAMES)
    assert listed + others == measured.total
    return [(c.hits, c.substitutions, c.deletions, c.insertions) for c in (listed, others)]


def test_a_word_is_listed_where_it_stands_in_a_phrase():
    assert errors("old jean valjean saw jean", "old john valjean saw john") == [(1, 1, 0, 0), (2, 1, 0, 0)]
    assert errors("cosette's doll", "doll") == [(0, 0, 1, 0), (1, 0, 0, 0)]
    assert errors("Cosette ran", "cosette ran", "none") == [(0, 1, 0, 0), (1, 0, 0, 0)]


def test_a_name_that_nobody_said_is_an_error_of_the_list():
    assert errors("the doll", "the cosette doll") == [(0, 0, 0, 1), (2, 0, 0, 0)]
    assert errors("the doll", "the small doll") == [(0, 0, 0, 0), (2, 0, 0, 1)]
    assert errors("the doll", "the jean doll") == [(0, 0, 0, 0), (2, 0, 0, 1)], "half a phrase is none"
