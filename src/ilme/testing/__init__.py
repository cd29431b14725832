"""For tests and examples: tiny models, and the checks that every model and scorer must pass.

from ilme.testing import check_transducer
check_transducer(MyTransducer(...), features, lengths, labels=[3, 7])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ilme.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from ilme.protocols import Transducer

__all__ = ["check_transducer", "numbered_tokens", "tiny"]


def numbered_tokens(size: int, use: Literal["transducer", "attention"]) -> Tokens:
    """An inventory with the special unit at id 0, <unk> at 1 and pieces that are only numbers."""
    special = "<b>" if use == "transducer" else "<eos>"
    pieces = (special, "<unk>", *(f"▁{i}" for i in range(2, size)))[:size]
    unk = 1 if size > 1 else None
    if use == "transducer":
        return Tokens(pieces, blank=0, unk=unk)
    return Tokens(pieces, sos=0, eos=0, unk=unk)


def tiny(kind: Literal["rnnt", "aed", "lm"], units: int = 32, seed: int = 0) -> Any:
    """A tiny network with random weights, in evaluation mode."""
    import torch

    from ilme import models

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokens = numbered_tokens(units, "transducer" if kind == "rnnt" else "attention")
        return models.build(kind, models.preset(kind, "tiny"), tokens).eval()


def check_transducer(
    model: Transducer, features: Tensor, lengths: Tensor, labels: Sequence[int], tolerance: float = 1e-4
) -> None:
    """Raises ContractError unless the model keeps the contract of `ilme.protocols.Transducer`.

    Checked: batch = single, states that follow their sequence when reordered, shapes, and an internal LM that is a
    distribution over labels and does not hear.

    Args:
        model: The transducer.
        features, lengths: At least two utterances of different length, as `encode` takes them.
        labels: At least two different labels.
        tolerance: On logits and log-probabilities.
    """
    import torch

    from ilme.ilm.transducer import TransducerInternalLM
    from ilme.runtime.state import select
    from ilme.testing.contract import check_same, require, scorer_rows

    require(len(lengths) >= 2 and len(set(labels)) >= 2, "give at least two utterances and two different labels")
    with torch.no_grad():
        scorer = TransducerInternalLM(model)
        unheard = scorer_rows(scorer, [list(labels)])
        f, frames = model.encode(features, lengths)
        for b in range(len(lengths)):
            alone, own = model.encode(features[b : b + 1, : int(lengths[b])], lengths[b : b + 1])
            require(int(own[0]) == int(frames[b]), f"utterance {b} has {own[0]} frames alone, {frames[b]} in a batch")
            check_same(alone[0, : own[0]], f[b, : own[0]], tolerance, f"utterance {b} alone and in a batch")
        g, state = model.start(2)
        logits = model.join(f[:2, 0], g)
        require(
            logits.shape == (2, len(model.tokens)), f"join gave {tuple(logits.shape)}, not {(2, len(model.tokens))}"
        )
        pair = torch.tensor([labels[0], labels[1]], device=model.device)
        swap = torch.tensor([1, 0], device=model.device)
        g, state = model.predict(pair, state)
        then, _ = model.predict(pair[:1].expand(2), state)
        swapped, _ = model.predict(pair[:1].expand(2), select(state, swap))
        check_same(swapped, then[swap], tolerance, "states before and after reordering")
        require(
            torch.equal(scorer_rows(scorer, [list(labels)]), unheard), "the internal LM's scores changed with audio"
        )
        total = unheard.exp().sum(-1)
        require(bool((total - 1).abs().max() < 1e-3), "the internal LM's rows do not sum to 1")
        require(bool((unheard[..., model.tokens.blank] == -torch.inf).all()), "the internal LM gives blank a chance")
