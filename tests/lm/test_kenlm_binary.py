"""KenLM's own answers against ours, for the same ARPA file."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import BadInputError
from ilme.lm.ngram import NGramScorer
from ilme.tokens import Tokens
from tests.lm.backoff_reference import write_random_arpa

pytest.importorskip("kenlm", reason="the extra 'kenlm' is not installed")

from ilme.lm.kenlm_binary import KenLMScorer

PIECES = ("<eos>", "<unk>", *(f"▁{c}" for c in "abcdefghij"))
TOKENS = Tokens(PIECES, sos=0, eos=0, unk=1)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_rows_equal_those_of_the_automaton(tmp_path, order):
    path = tmp_path / "m.arpa"
    write_random_arpa(path, list(PIECES[2:]), order, seed=order, spare=True)
    ours = NGramScorer.from_arpa(path, TOKENS, dtype=torch.float64)
    theirs = KenLMScorer(path, TOKENS, units="pieces", dtype=torch.float64, kept_rows=5)
    (a, a_state), (b, b_state) = ours.start(6), theirs.start(6)
    generator = torch.Generator().manual_seed(order)
    for _ in range(12):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)  # KenLM stores float32 log10
        torch.testing.assert_close(ours.finish(a), theirs.finish(b), rtol=0, atol=2e-5)
        labels = torch.randint(1, len(PIECES), (6,), generator=generator)
        (a, a_state), (b, b_state) = ours.score(labels, a_state), theirs.score(labels, b_state)


def test_another_vocabulary_is_an_error(tmp_path):
    write_random_arpa(tmp_path / "m.arpa", list(PIECES[2:]), 2, seed=1)
    with pytest.raises(BadInputError, match="another vocabulary"):
        KenLMScorer(tmp_path / "m.arpa", TOKENS, units="ids")
    (tmp_path / "x.bin").write_bytes(b"no model")
    with pytest.raises(BadInputError, match="not a model"):
        KenLMScorer(tmp_path / "x.bin", TOKENS)
    with pytest.raises(BadInputError, match="no KenLM model"):
        KenLMScorer(tmp_path / "none.bin", TOKENS)
