"""A distilled internal LM: what it learns from, that it is no worse than a unigram, and what smoothing does."""

from __future__ import annotations

import pytest
import torch

from ilme.errors import BadInputError
from ilme.ilm import Calibration, internal_lm
from ilme.ilm.distilled import DistilledOptions, distil, expectations
from ilme.ilm.files import load_internal_lm, save_internal_lm
from tests.ilm.test_ctc import model
from tests.search.test_ctc import heard
from tests.search.test_ctc_prefix import prefix


def spoken(host, count=24, seed=0):
    """Utterances in which label 3 always follows label 2, and 5 follows 4; the acoustics are unsure."""
    generator = torch.Generator().manual_seed(seed)
    outputs, transcripts = [], []
    back = torch.linalg.pinv(host.weight)
    for _ in range(count):
        labels = [x for _ in range(3) for x in ([2, 3] if torch.rand(1, generator=generator) < 0.5 else [4, 5])]
        frames = []
        for label in labels:
            for unit in (label, 0):
                wanted = torch.full((6,), -1.0, dtype=torch.float64)
                wanted[unit] = 1.5
                frames.append(back @ (wanted - host.bias))
        outputs.append(torch.stack(frames))
        transcripts.append(labels)
    return outputs, transcripts


@torch.no_grad()
def test_it_learns_from_ratios_of_prefix_probabilities():
    host = model(1, units=4)
    host.tokens = type(host.tokens)(host.tokens.pieces, blank=1)
    h = heard(2, 5)[0]
    before, q = expectations(host, [h], [[0, 2]], 1.0)
    rows = host.emit(h).log_softmax(-1)
    for n, sequence in enumerate([(), (0,)]):
        expected = torch.tensor([prefix(rows, (*sequence, v))[0] if v != 1 else 0.0 for v in range(4)])
        torch.testing.assert_close(q[n], expected / expected.sum(), rtol=0, atol=1e-5, check_dtype=False)
    assert before.tolist() == [1, 0]


def test_labels_start_as_vectors_of_length_one():
    host = model(1)
    start = distil(host, *spoken(host, count=4), DistilledOptions(steps=0, width=64))
    assert start.embedding.norm(dim=1).tolist() == pytest.approx([1.0] * len(host.tokens), abs=0.35)
    assert not start.output.any(), "what follows is not known yet"


def test_it_knows_which_label_follows_and_is_no_worse_than_a_unigram():
    host = model(1)
    outputs, transcripts = spoken(host)
    student = distil(host, outputs, transcripts)
    unigram = distil(host, outputs, transcripts, DistilledOptions(steps=0))
    after = student.rows(torch.tensor([2, 4]), 0)
    assert after[0, 3] > after[0, 5] + 0.2 and after[1, 5] > after[1, 3] + 0.2
    torch.testing.assert_close(unigram.rows(torch.tensor([2]), 0), unigram.rows(torch.tensor([4]), 0))
    before, q = expectations(host, *spoken(host, seed=9), 0.5)

    def loss(found):
        return -(q * found.rows(before, 0).clamp(min=-1e4)).sum(1).mean()

    assert loss(student) < loss(unigram) - 0.01


def test_smoothing_keeps_it_from_learning_the_transcripts_by_heart():
    host = model(1)
    outputs, transcripts = spoken(host)
    sharp, smooth = (distil(host, outputs, transcripts, DistilledOptions(sharpness=t)) for t in (1.0, 0.3))
    assert sharp.rows(torch.tensor([2]), 0)[0, 3] > smooth.rows(torch.tensor([2]), 0)[0, 3]


def test_through_internal_lm_and_files(tmp_path):
    host = model(1)
    outputs, transcripts = spoken(host, 6)
    scorer = internal_lm(host, "distilled", calibration=Calibration(outputs, transcripts))
    rows, state = scorer.start(2)
    assert rows.shape == (2, 6) and rows[0, 0] == -torch.inf
    torch.testing.assert_close(rows.exp().sum(1), torch.ones(2))
    after, _ = scorer.score(torch.tensor([2, 4]), state)
    assert not torch.allclose(after[0], after[1])
    save_internal_lm(tmp_path / "internal.safetensors", scorer)
    again = load_internal_lm(tmp_path / "internal.safetensors", host)
    torch.testing.assert_close(again.score(torch.tensor([2, 4]), None)[0], after)
    assert again.how == "distilled"


def test_utterances_without_labels_and_wrong_options():
    host = model(1)
    student = distil(host, [heard(0, 4)[0], heard(1, 3)[0]], [[], []])
    assert student.rows(torch.tensor([0]), 0).exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(BadInputError, match="sharpness"):
        DistilledOptions(sharpness=2.0)
