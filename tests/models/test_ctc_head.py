"""The CTC layer of our own networks as a recogniser: its loss, its contract, and its way through the loader."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ilme import models
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError
from ilme.losses.ctc import ctc_loss
from ilme.models.checkpoint import save_model
from ilme.models.ctc_head import CTCHead
from ilme.recogniser.loading import load_model
from ilme.search.ctc import CTCOptions, CTCSearch
from ilme.testing import numbered_tokens
from ilme.testing.contract import check_ctc


def network(kind, **changes):
    torch.manual_seed(0)
    tokens = numbered_tokens(7, "transducer" if kind == "rnnt" else "attention")
    return models.build(kind, replace(models.preset(kind, "tiny"), ctc=True, **changes), tokens).eval()


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
@torch.no_grad()
def test_all_hypotheses_of_a_search_have_the_losses_probability(kind):
    net = network(kind)
    head = CTCHead(net)
    x, lengths = torch.randn(1, 6, net.config.encoder.features), torch.tensor([6])
    h, frames = head.encode(x, lengths)
    (nbest,) = CTCSearch(head, options=CTCOptions(beam=50))(h, frames)
    for best in nbest[:5]:
        labels = torch.tensor([best.tokens], dtype=torch.long)
        loss = ctc_loss(net.ctc, h, frames, labels, torch.tensor([len(best.tokens)]), head.tokens.blank)
        assert best.scores.asr == pytest.approx(-loss.item(), abs=0.02)  # the beam drops a few alignments
    assert head.tokens.blank == 0 and head.tokens.eos is None


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_the_contract(kind):
    net = network(kind)
    check_ctc(CTCHead(net), torch.randn(3, 9, net.config.encoder.features), torch.tensor([9, 4, 6]))


def test_it_is_loaded_by_name_and_a_network_without_says_so(tmp_path):
    save_model(tmp_path / "with", network("aed"), frontend=FrontendConfig())
    model = load_model(tmp_path / "with", head="ctc")
    assert model.kind == "ctc" and model.rate == 16_000
    with pytest.raises(BadInputError, match="the head 'ctc' beside its own, not 'rnn'"):
        load_model(tmp_path / "with", head="rnn")
    plain = models.build("aed", models.preset("aed", "tiny"), numbered_tokens(7, "attention"))
    with pytest.raises(BadInputError, match="this AED has no CTC layer"):
        CTCHead(plain)
