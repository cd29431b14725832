"""How much of each LM a mixture takes: found on text by EM, kept in a file beside the LMs.

    maximise  Σ_u log Σ_i w_i P_i(y_u | y_{<u})   over w;     w_i ← mean over u of  w_i P_i / Σ_j w_j P_j

The sum over the text is concave in w, and no step makes it smaller: from equal weights EM ends at the best ones.
A mixture file is JSON: the LMs, by their path from the file's folder, their weights, and a hash of each LM, so that
one that has been trained again since is not mixed with weights that were found for another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.errors import BadInputError, CheckpointError
from ilme.protocols import TokenScorer
from ilme.runtime.configs import config_from_json, read_json_object
from ilme.runtime.files import short_hash, weights_file, write_json
from ilme.runtime.state import select

__all__ = ["Mixture", "best_weights", "is_mixture", "read_mixture", "token_scores", "write_mixture"]

FORMAT, VERSION = "ilme-mixture", 1
LONGEST_NAME = 255  # bytes of a file's name, without its folder


@dataclass(frozen=True)
class Mixture:
    """LMs and what each of them counts for.

    Attributes:
        files: The LMs.
        weights: Of each; they sum to 1.
    """

    files: tuple[Path, ...]
    weights: tuple[float, ...]


@torch.no_grad()
def token_scores(scorer: TokenScorer, sequences: Sequence[Sequence[int]], batch: int = 64) -> Tensor:
    """log P of every token, then of the end, sequence by sequence: (N,) float64, on CPU.

    Args:
        scorer: An LM.
        sequences: Token ids without special ids.
        batch: Sequences scored at once.
    """
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    scores: list[Tensor] = [torch.empty(0)] * len(sequences)
    for at in range(0, len(order), batch):
        chosen = order[at : at + batch]  # the longest first, so that those at work are always the first ones
        lengths = [len(sequences[i]) for i in chosen]
        labels = pad_sequence([torch.tensor(list(sequences[i]), dtype=torch.long) for i in chosen], batch_first=True)
        found = torch.zeros(len(chosen), lengths[0] + 1, dtype=torch.float64)
        rows, state = scorer.start(len(chosen))
        for u in range(lengths[0] + 1):
            going, here = sum(n > u for n in lengths), sum(n >= u for n in lengths)
            rows = rows[:here]
            found[going:here, u] = scorer.finish(rows[going:]).double().cpu()
            if going:
                now = labels[:going, u].to(scorer.device)
                found[:going, u] = rows[:going].gather(1, now[:, None])[:, 0].double().cpu()
                rows, state = scorer.score(now, select(state, torch.arange(going, device=scorer.device)))
        for i, row, n in zip(chosen, found, lengths, strict=True):
            scores[i] = row[: n + 1]
    return torch.cat(scores)


def best_weights(scores: Tensor, tolerance: float = 1e-7, steps: int = 2000) -> tuple[tuple[float, ...], float]:
    """The weights that give a text its highest probability, and the perplexity per token that they reach.

    Args:
        scores: log P of every token (columns) under every LM (rows): (LMs, N).
        tolerance: Ends when a step gains less than this, in nats per token.
        steps: Most steps.
    """
    if scores.ndim != 2 or not scores.numel():
        raise BadInputError(f"mixture weights are found on (LMs, tokens) scores, got {tuple(scores.shape)}")
    impossible = int((scores == -torch.inf).all(0).sum())
    if impossible:
        raise BadInputError(f"{impossible} tokens of the text are impossible for every LM, so no weights can help")
    w = torch.full((len(scores), 1), 1 / len(scores), dtype=torch.float64)
    reached = -math.inf
    for _ in range(steps):
        joint = scores.double() + w.log()  # log w_i P_i(y_u | y_<u)
        total = joint.logsumexp(0)
        gain, reached = float(total.mean()) - reached, float(total.mean())
        if gain < tolerance:
            break
        w = (joint - total).exp().mean(1, keepdim=True)
    return tuple(w[:, 0].tolist()), math.exp(-reached)


def write_mixture(file: Path, mixture: Mixture) -> None:
    """Writes a mixture file; LMs of weight 0 stay in it, and cost nothing when it is used."""
    folder = file.parent.resolve()
    lms = [
        {"lm": os.path.relpath(lm.resolve(), folder), "weight": weight, "content": short_hash(weights_file(lm))}
        for lm, weight in zip(mixture.files, mixture.weights, strict=True)
    ]
    about = {"format": FORMAT, "version": VERSION, "lms": lms}
    write_json(file, about, indent=2)


def is_mixture(name: str | Path) -> bool:
    """Whether it is a mixture file, whole or damaged: no other LM is JSON."""
    return Path(name).suffix == ".json" and Path(name).is_file()


def read_mixture(file: Path) -> Mixture:
    """Reads what `write_mixture` wrote, and checks that every LM is there and the one it was."""
    about = read_json_object(file)
    if about.get("format") != FORMAT:
        raise CheckpointError(f"{file} is no mixture of LMs: its format is not {FORMAT}; `ilme lm mix` writes one")
    if about.get("version") != VERSION:
        raise CheckpointError(
            f"{file} has format version {str(about.get('version'))[:20]}, this program reads {VERSION}; update ilme"
        )
    try:
        parts = config_from_json(_Parts, {"lms": about.get("lms")}).lms
    except BadInputError as error:
        raise CheckpointError(f"{file} is damaged ({error}); mix again: ilme lm mix") from error
    for part in parts:
        lm = file.parent / part.lm
        if not lm.exists():
            raise CheckpointError(f"{file} mixes {lm}, which is not there; move it back, or mix again: ilme lm mix")
        if not weights_file(lm).is_file() or short_hash(weights_file(lm)) != part.content:
            raise CheckpointError(f"{lm} has changed since {file} was made; find its weights again: ilme lm mix")
    return Mixture(tuple(file.parent / part.lm for part in parts), tuple(part.weight for part in parts))


@dataclass(frozen=True)
class _Part:
    """One LM of a mixture file."""

    lm: str
    weight: float
    content: str

    def __post_init__(self) -> None:
        if not self.lm or "\0" in self.lm or any(len(os.fsencode(p)) > LONGEST_NAME for p in Path(self.lm).parts):
            raise BadInputError("an LM has no name that a file can have")
        if not 0 <= self.weight <= 1:
            raise BadInputError(f"the weight of {self.lm} must lie between 0 and 1, got {self.weight}")


@dataclass(frozen=True)
class _Parts:
    lms: tuple[_Part, ...]

    def __post_init__(self) -> None:
        total = sum(part.weight for part in self.lms)
        if not math.isclose(total, 1.0, abs_tol=1e-3):
            raise BadInputError(f"the weights of its {len(self.lms)} LMs sum to {total:.4f}, not to 1")
