"""A search over audio that comes in pieces finds what one over the whole finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ilme import models
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.models.rnnt import RNNT
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.streaming import SpeechStream, can_stream
from ilme.testing import numbered_tokens, tiny
from tests.checkpoints import noise
from tests.recogniser.job import PieceTokenizer

FRONTEND = FrontendConfig(normalisation="global", mean=(0.0,) * 80, istd=(0.2,) * 80)
WEIGHTS = FusionWeights(lm=0.3, subtracted=0.2, length=0.5)


def network(**encoder: object) -> RNNT:
    config = models.preset("rnnt", "tiny")
    torch.manual_seed(0)
    model = RNNT(replace(config, encoder=replace(config.encoder, **encoder)), numbered_tokens(12, "transducer")).eval()
    for parameter in model.parameters():  # small random weights decide nothing
        parameter.data.mul_(2.5)
    model.attach(PieceTokenizer(model.tokens), FRONTEND)
    return model


def recogniser(model: RNNT) -> Recogniser:
    return Recogniser(model, lm=tiny("lm", 12), subtracted=internal_lm(model), weights=WEIGHTS)


@pytest.mark.parametrize("encoder", [{}, {"time_reduction": 2, "reduce_after": 1}, {"projection": 24}])
@pytest.mark.parametrize("piece", [160, 1000, 7777, 100_000])
def test_pieces_give_what_the_whole_gives(encoder: dict, piece: int) -> None:
    ours = recogniser(network(**encoder))
    audio = noise(1.37, 5)
    (whole,) = ours.nbest([audio])
    stream = SpeechStream(ours)
    texts = [stream.feed(audio[at : at + piece]) for at in range(0, len(audio), piece)]
    found = stream.finish()
    assert [h.tokens for h in found] == [h.tokens for h in whole] and whole[0].text
    assert [h.score for h in found] == pytest.approx([h.score for h in whole], abs=1e-3)
    assert [h.times for h in found] == [h.times for h in whole]
    assert stream.samples == len(audio)
    if piece == 1000:
        assert texts[0] != texts[-1], "words come while audio comes"


def test_an_encoder_that_reads_on_gives_the_same_frames() -> None:
    model = network(layers=3, time_reduction=3, reduce_after=2, reduce_by="mean")
    x = torch.randn(1, 23, 240, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        whole, _ = model.encode(x, torch.tensor([23]))
        state, parts = None, []
        for start, end in ((0, 1), (1, 9), (9, 9), (9, 23)):
            part, state = model.encode_on(x[:, start:end], state, last=end == 23)
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)


def test_what_is_too_short_or_empty_is_heard_as_silence() -> None:
    ours = recogniser(network())
    stream = SpeechStream(ours)
    stream.feed(np.zeros(3, np.float32))
    (whole,) = ours.nbest([np.zeros(3, np.float32)])
    assert stream.finish()[0].tokens == whole[0].tokens


@pytest.mark.parametrize("which", ["both ways", "utterance", "attention"])
def test_models_that_hear_the_whole_say_so(which: str) -> None:
    if which == "attention":
        model = tiny("aed")
        model.attach(PieceTokenizer(model.tokens), FRONTEND)
    else:
        model = network(bidirectional=which == "both ways")
        if which == "utterance":
            model.attach(PieceTokenizer(model.tokens), FrontendConfig())
    ours = Recogniser(model)
    assert not can_stream(ours)
    with pytest.raises(BadInputError, match="as a whole"):
        SpeechStream(ours)
