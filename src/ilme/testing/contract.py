"""What every adapted model and its internal LM must do, whatever made them.

    check_attention_model(model, features, lengths)
    check_internal_lm(scorer, model, features, lengths)

Each raises ContractError with what was found. They ship with the package, so that an adapter written
elsewhere can be checked with one line.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ilme.errors import IlmeError
from ilme.protocols import AttentionDecoder, CTCModel, SharedStep, TokenScorer
from ilme.runtime.state import State, map_tensors, select

__all__ = [
    "ContractError",
    "check_attention_model",
    "check_ctc",
    "check_internal_lm",
    "check_same",
    "check_shared_step",
    "require",
]

TOLERANCE = 1e-4


class ContractError(IlmeError):
    """An adapter that does not keep the contract of `ilme.protocols`."""


@torch.no_grad()
def check_attention_model(
    model: AttentionDecoder,
    features: Tensor,
    lengths: Tensor,
    labels: Sequence[int],
    tolerance: float = TOLERANCE,
) -> None:
    """Distributions, batch = single, several sequences of one utterance, and reordering.

    Args:
        model: The model.
        features, lengths: At least two utterances, as `encode` takes them.
        labels: A few labels to extend the sequences by; at least two different ones.
        tolerance: On log-probabilities.
    """
    B = len(lengths)
    require(B >= 2 and len(set(labels)) >= 2, "give at least two utterances and two different labels")
    memory = model.encode(features, lengths)
    rows, _ = model.start(memory)
    require(rows.shape == (B, len(model.tokens)), f"start gave {tuple(rows.shape)}, not {(B, len(model.tokens))}")
    batched = attention_rows(model, memory, [list(labels)] * B)
    _distributions(batched, "the model's rows")
    for b in range(B):
        alone = attention_rows(model, model.encode(features[b : b + 1], lengths[b : b + 1]), [list(labels)])
        check_same(alone[0], batched[b], tolerance, f"utterance {b} alone and in a batch")
    turned = [list(labels[::-1]) for _ in range(B)]
    other = attention_rows(model, memory, turned)
    pairs = attention_rows(model, memory, [y for b in range(B) for y in (list(labels), turned[b])], per=2)
    check_same(pairs[0::2], batched, tolerance, "a sequence alone and beside another of its utterance")
    check_same(pairs[1::2], other, tolerance, "a sequence alone and beside another of its utterance")
    _check_reorder(model, memory, labels, tolerance)


@torch.no_grad()
def check_ctc(model: CTCModel, features: Tensor, lengths: Tensor, tolerance: float = TOLERANCE) -> None:
    """Batch = single, shapes, and an internal LM that is a distribution over labels and does not hear.

    Args:
        model: The CTC model.
        features, lengths: At least two utterances of different length, as `encode` takes them.
        tolerance: On logits.
    """
    from ilme.ilm import internal_lm

    V, blank = len(model.tokens), model.tokens.blank
    require(blank is not None, "the inventory has no blank")
    require(len(lengths) >= 2, "give at least two utterances")
    require(model.emit(None).shape == (V,), f"emit(None) gave {tuple(model.emit(None).shape)}, not {(V,)}")
    scorer = internal_lm(model, "removed")
    before = scorer.start(1)[0].clone()
    h, frames = model.encode(features, lengths)
    logits = model.emit(h)
    require(logits.shape == (*h.shape[:2], V), f"emit gave {tuple(logits.shape)}, not {(*h.shape[:2], V)}")
    for b in range(len(lengths)):
        alone, own = model.encode(features[b : b + 1, : int(lengths[b])], lengths[b : b + 1])
        require(int(own[0]) == int(frames[b]), f"utterance {b} has {int(own[0])} frames alone, {int(frames[b])} before")
        n = int(own[0])
        check_same(model.emit(alone)[0, :n], logits[b, :n], tolerance, f"utterance {b} alone and in a batch")
    require(torch.equal(before, scorer.start(1)[0]), "the internal LM's scores changed after the model heard audio")
    _distributions(before, "the internal LM's rows")
    require(bool(before[0, blank] == -torch.inf), "the internal LM scores blank")


@torch.no_grad()
def check_internal_lm(
    scorer: TokenScorer,
    model: AttentionDecoder,
    features: Tensor,
    lengths: Tensor,
    labels: Sequence[int],
    tolerance: float = TOLERANCE,
) -> None:
    """Independence of audio, distributions, batch = single, reordering, and the shared step if there is one."""
    before = scorer_rows(scorer, [list(labels)])
    memory = model.encode(features, lengths)
    attention_rows(model, memory, [list(labels)] * len(lengths))
    after = scorer_rows(scorer, [list(labels)])
    require(torch.equal(before, after), "the internal LM's scores changed after the model heard audio")
    _distributions(before, "the internal LM's rows")
    turned = list(labels[::-1])
    both = scorer_rows(scorer, [list(labels), turned])
    check_same(both[0], before[0], tolerance, "a sequence alone and in a batch")
    check_same(both[1], scorer_rows(scorer, [turned])[0], tolerance, "a sequence alone and in a batch")
    _, state = scorer.start(2)
    _, state = scorer.score(torch.tensor([labels[0], labels[1]], device=scorer.device), state)
    swap = torch.tensor([1, 0], device=scorer.device)
    then = torch.full((2,), labels[0], device=scorer.device)
    straight, _ = scorer.score(then, state)
    swapped, _ = scorer.score(then, select(state, swap))
    check_same(swapped, straight[swap], tolerance, "states before and after reordering")
    if isinstance(scorer, SharedStep) and scorer.host is model:
        check_shared_step(scorer, model, memory, labels, tolerance)


@torch.no_grad()
def check_shared_step(
    scorer: TokenScorer,
    model: AttentionDecoder,
    memory: State,
    labels: Sequence[int],
    tolerance: float = TOLERANCE,
) -> None:
    """One shared pass gives what two separate ones give, label after label."""
    rows, state = model.start(memory)
    _, internal = scorer.start(len(rows))
    apart_state, apart_internal = state, internal
    for label in labels:
        given = torch.full((len(rows),), label, device=model.device)
        apart, apart_state = model.step(given, apart_state, memory)
        apart_lm, apart_internal = scorer.score(given, apart_internal)
        (own, state), (lm, internal) = scorer.step_both(given, state, internal, memory)  # type: ignore[attr-defined]
        check_same(own, apart, tolerance, "the model's rows in a shared step and in its own")
        check_same(lm, apart_lm, tolerance, "the internal LM's rows in a shared step and alone")


def attention_rows(model: AttentionDecoder, memory: State, sequences: list[list[int]], per: int = 1) -> Tensor:
    """All rows (n, U + 1, V) of the sequences; `per` of them for each utterance, standing together."""
    rows, state = model.start(memory)
    if per > 1:
        index = torch.arange(len(rows), device=rows.device).repeat_interleave(per)
        rows, state = rows[index], select(state, index)
    out = [rows]
    for column in zip(*sequences, strict=True):
        rows, state = model.step(torch.tensor(column, device=model.device), state, memory)
        out.append(rows)
    return torch.stack(out, 1)


def scorer_rows(scorer: TokenScorer, sequences: list[list[int]]) -> Tensor:
    """All rows (n, U + 1, V) of the sequences."""
    rows, state = scorer.start(len(sequences))
    out = [rows]
    for column in zip(*sequences, strict=True):
        rows, state = scorer.score(torch.tensor(column, device=scorer.device), state)
        out.append(rows)
    return torch.stack(out, 1)


def _check_reorder(model: AttentionDecoder, memory: State, labels: Sequence[int], tolerance: float) -> None:
    """Two sequences of each utterance change places: so must everything that follows."""
    rows, state = model.start(memory)
    B = len(rows)
    state = select(state, torch.arange(B, device=model.device).repeat_interleave(2))
    _, state = model.step(torch.tensor([labels[0], labels[1]] * B, device=model.device), state, memory)
    kept = map_tensors(torch.clone, state)
    swap = torch.arange(2 * B, device=model.device).view(B, 2).flip(1).flatten()
    then = torch.full((2 * B,), labels[0], device=model.device)
    straight, _ = model.step(then, state, memory)
    swapped, _ = model.step(then, select(state, swap), memory)
    check_same(swapped, straight[swap], tolerance, "states before and after reordering")
    again, _ = model.step(then, kept, memory)
    check_same(again, straight, 0.0, "a state that had been used for a step and its copy")


def _distributions(rows: Tensor, what: str) -> None:
    total = rows.exp().sum(-1)
    worst = (total - 1).abs().max().item()
    require(worst < 1e-3, f"{what} are no log-probabilities: they sum to 1 ± {worst:.3g}")


def check_same(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    """|a − b| ≤ tolerance beyond what float32 rounds: a suppressed unit's score, about −10⁴, is known to 0.001 only."""
    finite = torch.isfinite(a) & torch.isfinite(b)
    require(bool((torch.isfinite(a) == torch.isfinite(b)).all()), f"{what}: other units are impossible")
    a, b = a[finite], b[finite]
    rounding = torch.finfo(torch.float32).eps * b.abs() if tolerance else 0.0
    worst = ((a - b).abs() - rounding).max().item() if len(a) else 0.0
    require(worst <= tolerance, f"{what} differ by {worst:.3g}")


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(message)
