"""Recorded passes: padding changes nothing that counts, and on a CUDA device a replay gives the eager gradients."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

from ilme.errors import BadInputError
from ilme.models.aed import AED
from ilme.models.aed import PRESETS as AEDS
from ilme.models.encoder import EncoderConfig
from ilme.models.rnnt import PRESETS as RNNTS
from ilme.models.rnnt import RNNT
from ilme.runtime.cuda import no_collection
from ilme.testing import numbered_tokens
from ilme.train import graphs
from ilme.train.graphs import RecordedBody, pad_batch, rung
from ilme.train.objectives import AedObjective, Objective, RnntObjective
from ilme.train.options import AedOptions, LoopOptions, RnntOptions

ENCODER = EncoderConfig(features=24, hidden=12, layers=2, bidirectional=True, projection=24, dropout=0.0)


def small_objective(kind: str, **options: Any) -> Objective:
    torch.manual_seed(0)
    if kind == "rnnt":
        config = replace(RNNTS["tiny"], encoder=ENCODER, ctc=True, dropout=0.0)
        return RnntObjective(RNNT(config, numbered_tokens(7, "transducer")), RnntOptions(ctc=0.5))
    config = replace(AEDS["tiny"], encoder=ENCODER, ctc=True, dropout=0.0)
    return AedObjective(AED(config, numbered_tokens(7, "attention")), AedOptions(ctc=0.5, **options))


def batch(B: int, T: int, U: int, seed: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2 * U + 2, T + 1, (B,), generator=draw)
    lengths[0] = T
    labels = torch.randint(1, 7, (B, U), generator=draw)
    label_lengths = torch.randint(1, U + 1, (B,), generator=draw)
    return torch.randn(B, T, 24, generator=draw), lengths, labels, label_lengths


def test_the_ladder_is_sparse_and_never_too_short() -> None:
    rungs = {rung(T) for T in range(1, 400)}
    assert all(rung(T) >= T for T in range(1, 400)) and len(rungs) <= 16


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_padding_frames_and_labels_changes_no_loss(kind: str) -> None:
    objective = small_objective(kind).eval()
    features, lengths, labels, label_lengths = batch(3, 20, 4, seed=1)
    padded = pad_batch(features, lengths, labels, (3, rung(20), 8))
    torch.testing.assert_close(
        objective(*padded, label_lengths), objective(features, lengths, labels, label_lengths), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_padding_changes_no_row(kind: str) -> None:
    objective = small_objective(kind).eval()
    body = objective.body()
    assert body is not None
    features, lengths, labels, _ = batch(3, 20, 4, seed=1)
    plain = body(features, lengths, labels)
    padded = body(*pad_batch(features, lengths, labels, (32, rung(20), 8)))
    torch.testing.assert_close(padded[1][:3], plain[1])
    for i, frames in enumerate(plain[1].tolist()):
        torch.testing.assert_close(padded[0][i, :frames], plain[0][i, :frames], rtol=1e-4, atol=1e-5)
    for a, b in zip(padded[2:], plain[2:], strict=True):
        torch.testing.assert_close(a[:3, : b.shape[1]], b, rtol=1e-4, atol=1e-5)


def test_a_shape_is_recorded_once_it_no_longer_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recording itself, which needs a CUDA device, is replaced by the body and a note of the shape."""
    noted: list[tuple[int, ...]] = []

    def record(body: graphs.Body, inputs: tuple[torch.Tensor, ...], pool: object) -> graphs.Body:
        noted.append((*inputs[0].shape[:2], inputs[2].shape[1]))
        return body

    monkeypatch.setattr(graphs, "_record", record)
    body = small_objective("rnnt").eval().body()
    assert body is not None
    recorded = RecordedBody(body)
    passes = ((3, 4, 0), (5, 6, 0), (3, 4, 1), (33, 4, 0), (2, 3, 0), (8, 3, 1), (4, 9, 0), (33, 9, 0), (33, 9, 1))
    for B, U, expected in passes:
        features, lengths, labels, _ = batch(B, 20, U, seed=B)
        found, plain = recorded(features, lengths, labels), body(features, lengths, labels)
        assert recorded.recordings == expected
        assert [len(x) for x in found] == [B] * 4
        torch.testing.assert_close(found[3][:, : U + 1], plain[3], rtol=1e-4, atol=1e-5)
    assert noted == [(32, rung(20), 8), (64, rung(20), 8), (64, rung(20), 16)]
    recorded(*batch(2, rung(20) + 1, 4, seed=0)[:3])
    assert recorded.recordings == 1  # another rung has its own


def test_nothing_is_collected_while_a_recording_is_made() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), no_collection():
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(BadInputError, match="graphs"):
        LoopOptions(graphs=True, accumulate=2)


def test_a_network_that_cannot_be_recorded_says_so() -> None:
    config = replace(AEDS["tiny"], encoder=replace(ENCODER, projection=0))
    with pytest.raises(BadInputError, match="have a projection"):
        AedObjective(AED(config, numbered_tokens(7, "attention"))).record()


@pytest.mark.parametrize("rate, recorded_share", [(0.001, 0.9), (0.2, 0.0)])
def test_scheduled_sampling_leaves_most_passes_recorded(rate: float, recorded_share: float) -> None:
    """Draws come at the rate that was asked for, gathered in few batches, as long as one batch can hold them."""
    objective = small_objective("aed").train()
    objective.options = AedOptions(sampling=rate)
    objective.at_step(0)
    objective.recorded = RecordedBody(objective.body())
    labels = torch.ones(20, 10, dtype=torch.long)
    torch.manual_seed(1)
    drawn = [objective._drawn(labels) for _ in range(24000)]
    free = [d is None or not d.any() for d in drawn]
    share = sum(int(d.sum()) for d in drawn if d is not None) / (len(drawn) * labels.numel())
    assert share == pytest.approx(rate, rel=0.15)
    assert sum(free) / len(free) >= recorded_share
    assert objective.eval()._drawn(labels) is None


def test_nothing_is_forgotten_in_evaluation() -> None:
    objective = small_objective("aed")
    objective.options = AedOptions(forget=0.9)
    inputs = batch(3, 20, 4, seed=1)
    plain = AedObjective(objective.model, AedOptions())
    assert objective.eval()(*inputs) == plain.eval()(*inputs)
    assert objective.train()(*inputs) != plain.train()(*inputs)


def test_an_encoder_that_listens_has_recordings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_record", lambda body, inputs, pool: body)
    eager, recorded = (small_objective("aed", listen=6, guide=8).train() for _ in range(2))
    recorded.record()
    inputs, counts = batch(3, 20, 4, seed=1), []
    for step in range(1, 12):
        for objective in (eager, recorded):
            objective.at_step(step)
        torch.testing.assert_close(recorded(*inputs), eager(*inputs), rtol=1e-4, atol=1e-4)
        counts.append((recorded.hearing.recordings if recorded.hearing else 0, recorded.recorded.recordings))
    assert counts[5] == (1, 0) and counts[6] == (0, 0) and counts[10] == (0, 1)


@pytest.mark.cuda
@pytest.mark.parametrize(("kind", "options"), [("rnnt", {}), ("aed", {}), ("aed", {"listen": 1})])
def test_a_replay_gives_the_eager_loss_and_gradients(kind: str, options: dict[str, Any]) -> None:
    eager, recorded = (small_objective(kind, **options).cuda().train() for _ in range(2))
    recorded.record()
    for objective in (eager, recorded):
        objective.at_step(1)
    replayed = recorded.hearing if options else recorded.recorded
    assert isinstance(replayed, RecordedBody)
    for seed in range(24):  # two rungs in turn; the rows of each grow twice, so that recordings give way to others
        B, T = 3 + 32 * (seed // 8), (20, 30)[seed % 2]
        inputs = [x.cuda() for x in batch(B, T - seed % 3, 4, seed)]
        losses = []
        for objective in (eager, recorded):
            objective.zero_grad()
            losses.append(objective(*inputs))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
        for (name, a), (_, b) in zip(recorded.named_parameters(), eager.named_parameters(), strict=True):
            if b.grad is None:  # a decoder that waits
                assert options and a.grad is None, name
                continue
            assert a.grad is not None, name
            scale = float(b.grad.abs().max())
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-2 * max(scale, 1e-3), msg=name)
    assert replayed.recordings == 2
