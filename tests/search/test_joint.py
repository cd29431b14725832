"""CTC beside the attention decoder in one pass: against sums over alignments, brute force, and itself in batches."""

from __future__ import annotations

import math

import pytest
import torch

import ilme
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError
from ilme.evaluation.contributions import label_shares
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.models.aed import AED, AEDConfig
from ilme.models.checkpoint import save_model
from ilme.recogniser.options import options_from_json, options_to_json
from ilme.recogniser.recogniser import Recogniser
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.joint import JointDecoder
from ilme.testing import numbered_tokens
from ilme.testing.contract import check_attention_model
from tests import oracle
from tests.search.test_attention import SMALL, assert_same, decoder, features, language_model
from tests.search.test_ctc_prefix import prefix

UNITS = 4


def hybrid(seed, units=UNITS, dtype=torch.float64):
    torch.manual_seed(seed)
    model = AED(AEDConfig(**{**SMALL.__dict__, "ctc": True}), numbered_tokens(units, "attention")).to(dtype).eval()
    with torch.no_grad():
        model.output.weight.mul_(4)
        model.ctc.weight.mul_(4)
        model.ctc.bias.zero_()
    return model


class Enumerated:
    """(1 − w) log P_att + w CTC, the latter from every alignment of one utterance; a state is the labels so far."""

    def __init__(self, model, weight):
        self.model, self.weight, self.tokens, self.device = model, weight, model.tokens, model.device

    def start(self, memory):
        rows, state = self.model.start(memory)
        return self._both(rows, (), memory), (state, ())

    def step(self, labels, state, memory):
        rows, own = self.model.step(labels, state[0], memory)
        said = (*state[1], int(labels))
        return self._both(rows, said, memory), (own, said)

    def _both(self, rows, said, memory):
        frames, lengths = self.model.ctc_scores(memory)
        heard, eos = frames[0, : int(lengths[0])], self.tokens.eos
        before, says = prefix(heard, said)
        chances = [says if v == eos else prefix(heard, (*said, v))[0] for v in range(len(self.tokens))]
        ctc = [math.log(c / before) if c > 0 and before > 0 else -1e5 for c in chances]
        return (1 - self.weight) * rows + self.weight * torch.tensor([ctc], dtype=rows.dtype)


@pytest.mark.parametrize("weight", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_a_wide_beam_finds_what_brute_force_over_alignments_finds(seed, weight, monkeypatch):
    monkeypatch.setattr("tests.search.test_ctc_prefix.BLANK", 0)
    monkeypatch.setattr("tests.search.test_ctc_prefix.UNITS", 3)
    model, lm = hybrid(seed, 3), language_model(seed, 3)
    subtracted = AttentionInternalLM(model)
    weights = FusionWeights(0.4, 0.2, 0.1)
    memory = model.encode(features(seed, 4), torch.tensor([4]))
    options = AttentionOptions(beam=130, max_length=3, stop_margin=float("inf"), ctc_weight=weight)
    (found,) = AttentionSearch(model, Fusion(lm, subtracted, weights), options)(memory)
    expected = oracle.attention_best(Enumerated(model, weight), memory, 3, lm, subtracted, weights)
    likely = [item for item in expected if item[0] > -1e3]  # the others have more labels than CTC has frames for
    assert len(likely) > 10
    assert [h.tokens for h in found[: len(likely)]] == [labels for _, labels, _ in likely]
    assert [h.score for h in found[: len(likely)]] == pytest.approx([score for score, _, _ in likely], abs=1e-6)
    assert [h.scores.asr for h in found[: len(likely)]] == pytest.approx([asr for _, _, asr in likely], abs=1e-6)


@torch.no_grad()
def test_a_sequence_and_its_end_have_both_models_probability():
    model, weight, labels = hybrid(5), 0.4, [2, 3, 3]
    memory = model.encode(features(5, 7), torch.tensor([7]))

    def total(scorer, given):
        rows, state = scorer.start(given)
        summed = 0.0
        for label in labels:
            summed += float(rows[0, label])
            rows, state = scorer.step(torch.tensor([label]), state, given)
        return summed + float(rows[0, model.tokens.eos])

    joint = JointDecoder(model, weight)
    frames, lengths = model.ctc_scores(memory)
    ctc = torch.nn.functional.ctc_loss(
        frames.transpose(0, 1), torch.tensor([labels]), lengths, torch.tensor([3]), blank=0, reduction="sum"
    )
    expected = (1 - weight) * total(model, memory) - weight * float(ctc)
    assert total(joint, joint.prepared(memory)) == pytest.approx(expected, abs=1e-9)


def test_ctc_alone_keeps_the_contract_of_a_decoder():
    """Between the two the rows are no distribution: they are a mean of logarithms."""
    joint = JointDecoder(hybrid(1, dtype=torch.float32), 1.0)
    x = features(1, 9, batch=2, dtype=torch.float32)
    check_attention_model(joint, x, torch.tensor([9, 6]), [1, 2])


@pytest.mark.parametrize("seed", range(3))
def test_batched_equals_unbatched_and_permuted(seed):
    model = hybrid(seed, 9)
    fusion = Fusion(language_model(seed, 9), AttentionInternalLM(model), FusionWeights(0.4, 0.3, 0.1))
    search = AttentionSearch(model, fusion, AttentionOptions(beam=5, max_length=12, ctc_weight=0.3))
    lengths, x = torch.tensor([9, 2, 6, 12]), features(seed, 12, batch=4)
    together = search(model.encode(x, lengths))
    apart = [search(model.encode(x[b : b + 1, : lengths[b]], lengths[b : b + 1]))[0] for b in range(4)]
    assert_same(together, apart, 1e-8)
    order = torch.tensor([2, 0, 3, 1])
    assert_same(search(model.encode(x[order], lengths[order])), [together[i] for i in order], 1e-8)


def test_without_weight_nothing_changes():
    model = hybrid(3, 9)
    memory = model.encode(features(3, 10), torch.tensor([10]))
    plain = AttentionSearch(model, options=AttentionOptions(beam=5, max_length=8))(memory)
    off = AttentionSearch(model, options=AttentionOptions(beam=5, max_length=8, ctc_weight=0.0))(memory)
    on = AttentionSearch(model, options=AttentionOptions(beam=5, max_length=8, ctc_weight=0.6))(memory)
    assert plain == off and plain != on


def test_a_model_without_the_layer_is_refused():
    with pytest.raises(BadInputError, match="ctc_weight needs a CTC layer"):
        AttentionSearch(decoder(1), options=AttentionOptions(ctc_weight=0.3))
    with pytest.raises(BadInputError, match="ctc_weight must lie between 0 and 1"):
        AttentionOptions(ctc_weight=1.5)


class Numbers:
    """Text that is the ids."""

    def __init__(self, tokens):
        self.tokens = tokens

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(map(str, ids))


def test_a_recogniser_has_it_as_an_option(tmp_path):
    frontend = FrontendConfig(mel_bins=5, stack=1, stride=1)
    save_model(tmp_path / "model.safetensors", hybrid(2, 9, torch.float32), None, frontend)
    loaded = ilme.load_model(tmp_path)
    options = AttentionOptions(beam=3, max_length=6, ctc_weight=0.5)
    assert options_from_json(options_to_json(options)) == options
    recogniser = Recogniser(loaded, options=options, tokenizer=Numbers(loaded.tokens))
    encoded = recogniser.encode([torch.randn(8000, generator=torch.Generator().manual_seed(1)).numpy() * 0.1])
    best = recogniser.search(encoded)[0][0]
    shares = label_shares(recogniser, encoded, best.tokens)
    assert sum(share.asr for share in shares) == pytest.approx(best.scores.asr, abs=1e-3)
