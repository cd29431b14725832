"""The logits processor under `generate`: the same scores, step by step, as our own search."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    GenerationMixin,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ilme.errors import BadInputError  # noqa: E402
from ilme.fusion import Fusion, FusionWeights, fuse  # noqa: E402
from ilme.ilm import internal_lm  # noqa: E402
from ilme.recogniser.logits_processor import FusionLogitsProcessor  # noqa: E402
from ilme.search.attention import AttentionOptions, AttentionSearch  # noqa: E402
from ilme.testing.contract import attention_rows, scorer_rows  # noqa: E402
from tests.adapters.tiny import tiny_whisper, waves  # noqa: E402

WEIGHTS = FusionWeights(lm=0.4, subtracted=0.3, length=0.2)


class Bigram:
    """A random bigram over the model's tokens; the state is the last label."""

    def __init__(self, tokens) -> None:
        self.tokens, self.device = tokens, torch.device("cpu")
        table = torch.randn(len(tokens) + 1, len(tokens), generator=torch.Generator().manual_seed(5))
        table[:, tokens.eos] += 6.0  # sentences are short
        self.table = table.log_softmax(-1)

    def start(self, n):
        return self.score(torch.full((n,), len(self.tokens)), None)

    def score(self, labels, state):
        return self.table[labels], labels

    def finish(self, rows):
        return rows[:, self.tokens.eos]


@pytest.fixture(scope="module")
def parts():
    model = tiny_whisper()
    return model, Bigram(model.tokens), internal_lm(model, "zeroed")


def logits_of(model, features, ids):
    """What `generate` would give a processor: the model's logits, with the adapter's suppression."""
    with torch.no_grad():
        logits = model.model(input_features=features, decoder_input_ids=ids).logits[:, -1]
    first = ids.shape[1] == len(model.prefix)
    return logits + (model.allowed_first if first else model.allowed)


def test_each_step_is_the_fused_score_of_our_search_whatever_the_beams_do(parts):
    model, lm, internal = parts
    features, lengths = model.features(waves(1))
    processor = FusionLogitsProcessor(model, lm, WEIGHTS, internal)
    memory = model.encode(features, lengths)
    prefix = list(model.prefix)
    # beams: two grow, then both continue the second, in another order, then one stays behind
    for beams in ([[]], [[5], [9]], [[9, 6], [9, 7]], [[9, 7, 5], [9, 6, 5]], [[9, 6, 5, 8], [9, 6, 5, 8]]):
        ids = torch.tensor([prefix + b for b in beams])
        own = logits_of(model, features.expand(len(beams), -1, -1), ids)
        fused = processor(ids, own)
        asr = attention_rows(model, memory, beams, per=len(beams))[:, -1]
        rows = [scorer_rows(scorer, beams)[:, -1].clone() for scorer in (lm, internal)]
        length = torch.ones_like(asr)
        length[:, model.tokens.eos] = 0
        expected = fuse(asr, rows[0], rows[1], length, WEIGHTS)
        finite = torch.isfinite(expected)
        torch.testing.assert_close(fused[finite], expected[finite], atol=1e-4, rtol=0)
        assert torch.isinf(fused[~finite]).all()


def test_generate_finds_what_our_search_finds(parts):
    model, lm, internal = parts
    features, lengths = model.features(waves(2))
    weights = FusionWeights(lm=0.8, subtracted=0.3)
    options = AttentionOptions(beam=4, max_length=30, length_normalisation=0.0, stop_margin=100.0)
    lists = AttentionSearch(model, Fusion(lm, internal, weights), options)(model.encode(features, lengths))
    processor = FusionLogitsProcessor(model, lm, weights, internal)
    never, first = (torch.isinf(m).nonzero().flatten().tolist() for m in (model.allowed, model.allowed_first))
    suppress = SuppressTokensLogitsProcessor(never)
    suppress_first = SuppressTokensAtBeginLogitsProcessor(first, begin_index=len(model.prefix))
    generated = GenerationMixin.generate(
        model.model,
        features,
        decoder_input_ids=torch.tensor([model.prefix] * 2),
        logits_processor=LogitsProcessorList([suppress, suppress_first, processor]),
        generation_config=transformers.GenerationConfig(
            num_beams=4,
            max_new_tokens=31,
            length_penalty=0.0,
            eos_token_id=model.tokens.eos,
            pad_token_id=model.tokens.eos,
            decoder_start_token_id=model.tokens.sos,
        ),
    )
    for row, nbest in zip(generated.tolist(), lists, strict=True):
        assert row[-1] == model.tokens.eos
        assert tuple(i for i in row[len(model.prefix) :] if i != model.tokens.eos) == nbest[0].tokens


def test_a_batch_whose_rows_have_ended(parts):
    model, lm, internal = parts
    features, _ = model.features(waves(2))
    processor = FusionLogitsProcessor(model, lm, WEIGHTS, internal)
    eos = model.tokens.eos
    ids = torch.tensor([[*model.prefix, 5, eos], [*model.prefix, 5, 6]])
    own = logits_of(model, features, ids)
    fused = processor(ids, own)
    torch.testing.assert_close(fused[0], own[0].log_softmax(-1))
    assert not torch.allclose(fused[1][5:9], own[1].log_softmax(-1)[5:9])


def test_another_prefix_is_refused(parts):
    model, lm, _ = parts
    processor = FusionLogitsProcessor(model, lm, FusionWeights(lm=0.1))
    with pytest.raises(BadInputError, match="the adapter expects"):
        processor(torch.tensor([[1, 2, 3]]), torch.zeros(1, len(model.tokens)))
