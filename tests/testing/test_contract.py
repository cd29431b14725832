"""Our own networks keep the contract that adapters keep; networks that break it are caught."""

from __future__ import annotations

import pytest
import torch

from ilme.ilm import internal_lm
from ilme.testing import check_transducer, tiny
from ilme.testing.contract import ContractError, check_attention_model, check_internal_lm

FEATURES = torch.randn(3, 14, 240, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([14, 9, 11])


def test_the_rnnt():
    check_transducer(tiny("rnnt"), FEATURES, LENGTHS, [3, 7])


def test_the_aed_and_its_internal_lm():
    model = tiny("aed")
    check_attention_model(model, FEATURES, LENGTHS, [3, 7, 5])
    check_internal_lm(internal_lm(model), model, FEATURES, LENGTHS, [3, 7, 5])


def test_a_state_that_stays_behind_is_caught():
    model = tiny("rnnt")
    predict, kept = model.predict, {}

    def forgetful(labels, state):
        n = len(labels)
        g, kept[n] = predict(labels, kept.get(n, state))
        return g, kept[n]

    model.predict = forgetful
    with pytest.raises(ContractError):
        check_transducer(model, FEATURES, LENGTHS, [3, 7])


def test_a_model_that_mixes_utterances_is_caught():
    model = tiny("rnnt")
    encode = model.encode
    model.encode = lambda x, n: (encode(x, n)[0] + x.mean(), encode(x, n)[1])
    with pytest.raises(ContractError, match="alone and in a batch"):
        check_transducer(model, FEATURES, LENGTHS, [3, 7])
