"""Whisper's time stamps: the rules equal those of `transformers`, scorers read past them, segments have times."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from ilme.adapters.whisper import WhisperOptions  # noqa: E402
from ilme.adapters.whisper_timestamps import ReadsPastStamps, TimestampRules, stamped_segments  # noqa: E402
from ilme.fusion import FusionWeights  # noqa: E402
from ilme.ilm import internal_lm  # noqa: E402
from ilme.recogniser.recogniser import Recogniser  # noqa: E402
from ilme.testing.contract import check_attention_model  # noqa: E402
from tests.adapters.tiny import WhisperWords, tiny_whisper, waves  # noqa: E402
from tests.recogniser.test_logits_processor import Bigram  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return tiny_whisper(options=WhisperOptions(timestamps=True))


def test_rules_equal_those_of_transformers():
    """Random logits, and sequences drawn from what the rules allow."""
    words = WhisperWords()
    eos, first, size = words.tokens.eos, words.ids["<|0.00|>"], len(words.tokens)
    config = transformers.GenerationConfig(eos_token_id=eos, bos_token_id=eos)
    config.no_timestamps_token_id = first - 1
    config.max_initial_timestamp_index = 50
    theirs = transformers.WhisperTimeStampLogitsProcessor(config, begin_index=2)
    rules = TimestampRules(first, eos)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        labels, state = [], rules.start(1)
        for _ in range(12):
            logits = 3 * torch.randn(1, size, generator=generator)
            logits[:, eos + 1 : first] = -torch.inf  # special units, suppressed in use
            ours = rules.apply(logits.clone(), state)
            expected = theirs(torch.tensor([[1, 2, *labels]]), logits.clone())
            assert torch.equal(torch.isinf(ours), torch.isinf(expected)), labels
            if torch.isinf(ours).all():
                break
            label = torch.multinomial(ours.softmax(-1), 1, generator=generator)[0]
            if int(label) == eos:
                break
            labels.append(int(label))
            state = rules.advance(label, state)


def test_contract_with_time_stamps(model):
    first = model.rules.first
    check_attention_model(model, *model.features(waves(2)), [first, 5, 9])
    assert [model.tokens.pieces[i] for i in model.prefix] == ["<|startoftranscript|>"]


def test_an_lm_reads_past_stamps(model):
    lm = Bigram(model.tokens)
    past = ReadsPastStamps(lm, model.rules.first)
    stamp = model.rules.first + 3
    rows, state = past.start(2)
    assert (rows[:, model.rules.first :] == 0).all()
    rows, state = past.score(torch.tensor([5, stamp]), state)
    torch.testing.assert_close(rows[0, :40], lm.table[5, :40])
    torch.testing.assert_close(rows[1, :40], lm.start(1)[0][0, :40])
    rows, state = past.score(torch.tensor([stamp, 5]), state)
    torch.testing.assert_close(rows[:, :40], lm.table[[5, 5], :40])


def test_segments_have_times_of_their_own(model):
    assert stamped_segments([50, 1, 2, 60, 60, 3, 70], 50, 9.0) == [
        (0.0, pytest.approx(0.2), [1, 2]),
        (pytest.approx(0.2), pytest.approx(0.4), [3]),
    ]
    assert stamped_segments([50, 1, 2], 50, 9.0) == [(0.0, 9.0, [1, 2])]
    assert stamped_segments([], 50, 9.0) == []


def test_a_transcript_with_time_stamps_and_fusion(model):
    weights = FusionWeights(lm=0.3, subtracted=0.2)
    internal = internal_lm(model, "zeroed")
    recogniser = Recogniser(model, lm=Bigram(model.tokens), subtracted=internal, weights=weights)
    transcript = recogniser.transcribe(waves(1)[0])
    times = [t for s in transcript.segments for t in (s.start, s.end)]
    assert times == sorted(times) and times[-1] <= transcript.seconds + 1e-6
    assert "<|" not in transcript.text
