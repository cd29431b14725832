"""Dev utterances that no hypothesis can explain are found; hard ones, and hard domains, are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ilme
from ilme.data.utterances import Utterance
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import SearchDecoder
from ilme.workflows.dev_check import unexplained
from tests.recogniser.test_own_model import RATE, OwnDecoder, OwnTransducer, Words, features, spoken

TEXTS = ["red green blue", "blue white red", "green red white", "white green blue", "blue red green", "green white red"]


def utterance(name: str, said: str, text: str) -> Utterance:
    wave = spoken(said)
    return Utterance(name, text, wave, seconds=len(wave) / RATE, rate=RATE)


def checked(model, dev: list[Utterance]) -> list[str]:
    recogniser = ilme.Recogniser(model, features, Words(model.tokens), rate=RATE)
    recogniser.options = replace(recogniser.options, beam=4)
    lists = SearchDecoder(recogniser, dev).decode(FusionWeights(), 4)
    return [u.id for u in unexplained(recogniser, dev, lists, "none", lambda text: text)]


@pytest.fixture(params=[OwnTransducer, OwnDecoder])
def model(request):
    return request.param()


RIGHT = [utterance(str(i), text, text) for i, text in enumerate(TEXTS)]


def test_another_text_and_a_cut_recording_are_set_aside(model):
    other = utterance("other", "red green blue", "white blue white")
    cut = utterance("cut", "red", "green white blue red")
    assert checked(model, [*RIGHT, other, cut]) == ["other", "cut"]


def test_the_reason_says_what_was_heard():
    model, dev = OwnDecoder(), [*RIGHT, utterance("other", "red green blue", "white blue white")]
    recogniser = ilme.Recogniser(model, features, Words(model.tokens), rate=RATE)
    lists = SearchDecoder(recogniser, dev).decode(FusionWeights(), 4)
    (found,) = unexplained(recogniser, dev, lists, "none", lambda text: text)
    assert "'red green blue'" in found.reason and "'white blue white'" in found.reason and found.excess > 1


def test_what_the_model_is_unsure_of_is_kept():
    """Heights between two words: the transcript is wrong in every label, and as likely as what was heard."""
    wave = np.concatenate([np.full(RATE // 10, height, np.float32) for height in (0.149, 0.349, 0.149)])
    hard = Utterance("hard", "green white green", wave, seconds=0.3, rate=RATE)
    assert checked(OwnDecoder(), [*RIGHT, hard]) == []


def test_where_most_is_wrong_it_is_the_model_that_is_wrong(model):
    wrong = [utterance(f"w{i}", text, "white blue white") for i, text in enumerate(TEXTS)]
    assert checked(model, [*RIGHT[:4], *wrong]) == []


def test_nothing_to_compare_with_sets_nothing_aside(model):
    assert checked(model, [RIGHT[0], RIGHT[1], utterance("other", "red green blue", "white blue white")]) == []
