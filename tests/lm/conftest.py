"""What several tests of language models share."""

from __future__ import annotations

import pytest
import torch

from ilme.lm.ngram import NGramScorer
from ilme.tokens import Tokens
from tests.lm.backoff_reference import write_random_arpa

TOKENS = Tokens(("<eos>", "<unk>", *"abcdef"), sos=0, eos=0, unk=1)


@pytest.fixture
def pair(tmp_path):
    """A bigram and a trigram over TOKENS, in float64."""
    scorers = []
    for seed, order in ((1, 2), (2, 3)):
        write_random_arpa(tmp_path / "m.arpa", list("abcdef"), order, seed)
        scorers.append(NGramScorer.from_arpa(tmp_path / "m.arpa", TOKENS, dtype=torch.float64))
    return scorers
