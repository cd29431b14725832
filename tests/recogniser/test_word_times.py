"""Words' times and confidences: against every way through an attention, by hand, and against speech of known times."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import ilme
from ilme.data.audio import resample
from ilme.models.aed import AED
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.word_times import label_times, timed_words, warp, words_of_labels
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.testing import tiny
from ilme.tokens import Tokens


class Pieces:
    """Ids 1 … are the pieces, joined as sentencepiece does."""

    def __init__(self, *pieces: str) -> None:
        self.tokens = Tokens(("<b>", *pieces), blank=0)

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: list[int]) -> str:
        return "".join(self.tokens.pieces[i] for i in ids).replace("▁", " ").strip()


def ways(U: int, T: int) -> list[list[tuple[int, int]]]:
    """Every way from the first cell to the last."""
    if (U, T) == (0, 0):
        return [[(0, 0)]]
    before = [(U - 1, T - 1), (U, T - 1), (U - 1, T)]
    return [[*way, (U, T)] for u, t in before if u >= 0 and t >= 0 for way in ways(u, t)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 3), (2, 5), (4, 2)])
def test_the_cheapest_way_is_found(shape: tuple[int, int]) -> None:
    weights = np.random.default_rng(shape[0] * 10 + shape[1]).normal(size=shape)
    best = max(ways(shape[0] - 1, shape[1] - 1), key=lambda way: sum(weights[cell] for cell in way))
    first = [min(t for u, t in best if u == row) for row in range(shape[0])]
    assert warp(weights).tolist() == first


def test_labels_belong_to_words() -> None:
    tokenizer = Pieces("▁the", "▁wh", "ale", "▁", "s", "wam", "'s")
    places, words = words_of_labels([1, 2, 3, 4, 5, 6], tokenizer)
    assert words == ["the", "whale", "swam"] and places == [0, 1, 1, 2, 2, 2]
    assert words_of_labels([2, 3, 7], tokenizer) == ([0, 0, 0], ["whale's"])
    assert words_of_labels([], tokenizer) == ([], [])


def test_a_transducers_words_begin_with_their_first_label() -> None:
    tokenizer = Pieces("▁the", "▁wh", "ale")
    found = Hypothesis((1, 2, 3), 0.0, Scores(0.0), times=(2, 5, 6), text="the whale")
    memory = torch.zeros(1, 40, 4), torch.tensor([40])
    words = timed_words(object(), memory, 4.0, [found], [1.0, 1.0], tokenizer)
    assert [(w.text, w.start, w.end, w.confidence) for w in words] == [("the", 0.2, 0.5, 1), ("whale", 0.5, 1.5, 1)]


def test_a_model_that_cannot_tell_gives_no_words() -> None:
    found = Hypothesis((1,), 0.0, Scores(0.0), text="the")
    assert label_times(object(), None, 1.0, found) is None
    assert timed_words(object(), None, 1.0, [found], [1.0], Pieces("▁the")) == []


def test_the_aeds_attention_is_that_of_its_steps() -> None:
    model: AED = tiny("aed")
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2, 30, model.config.encoder.features, generator=generator)
    memory = model.encode(features, torch.tensor([30, 20]))
    alone = tuple(x[1:] for x in memory)
    labels = torch.tensor([5, 9, 12])
    rows, frame = model.attended(labels, alone, 2.0)
    assert rows.shape == (4, 20) and frame == pytest.approx(0.1)
    _, state = model.start(alone)
    for u, label in itertools.chain(enumerate(labels, 1), [(4, None)]):
        if label is None:
            break
        torch.testing.assert_close(rows[u], state[1][0, :20])
        _, state = model.step(label[None], state, alone)
    torch.testing.assert_close(rows.sum(1), torch.ones(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/rnnt", "bundled/aed"])
def test_words_are_where_espeak_put_them(name: str) -> None:
    pytest.importorskip("espeakng_loader")
    from ilme.data.espeak import RATE_HZ, Voice, speak_timed

    recogniser = Recogniser(ilme.load_model(name))
    text = "nor is the manner of the captain less interesting than his matter"
    samples, known = speak_timed(text, Voice())
    audio = resample((samples / 32768).astype(np.float32), RATE_HZ, 16_000)
    (segment,) = recogniser.transcribe(audio, words=True).segments
    spoken = {text[place:].split()[0]: start for place, start in known}
    errors = [abs(w.start - spoken[w.text]) for w in segment.words if text.split().count(w.text) == 1]
    assert len(errors) >= 6, segment.text
    assert np.median(errors) <= 0.06
    assert all(0 <= w.confidence <= 1 for w in segment.words)
    assert [w.text for w in segment.words] == segment.text.split()
    starts = [w.start for w in segment.words]
    assert starts == sorted(starts) and all(w.end >= w.start for w in segment.words)
