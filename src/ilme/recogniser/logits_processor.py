"""Fusion for people who stay with `model.generate()`.

    fusion = FusionLogitsProcessor(Whisper.from_pretrained(name), lm, FusionWeights(lm=0.2, subtracted=0.15))
    hf_model.generate(features, num_beams=8, logits_processor=LogitsProcessorList([fusion]))

At each step it adds λ_T log P_T(y | y_{<u}) − μ log P_ILM(y | y_{<u}) + κ b(y | y_{<u}) of that step to the model's
log-probabilities: the same increments that our own search adds. `generate` reorders its beams without telling, so the
scorers' states are found by what they have read: a row's state is the one that belongs to its labels without the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from ilme.adapters.hf import TransformerAED
from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights, fuse
from ilme.ilm import internal_lm
from ilme.protocols import TokenScorer
from ilme.runtime.state import State, cat, select

__all__ = ["FusionLogitsProcessor"]

Labels = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows (n, V) and states of n sequences, for each of the three scorers."""

    rows: tuple[Tensor, ...]
    states: tuple[State, ...]


class FusionLogitsProcessor:
    """A `transformers` logits processor. It must be the last one: it normalises what the others left.

    One object serves one `generate` at a time, any batch size, any number of beams, greedy search too.

    Args:
        model: The adapter of the model that generates.
        lm: The LM to add, over the model's tokens.
        weights: λ_T, μ, β and κ.
        internal: What to subtract: a scorer, or the name of an internal LM that needs no speech.
        phrases: The bonus for listed phrases (`ilme.lm.phrase_list`).
    """

    def __init__(
        self,
        model: TransformerAED,
        lm: TokenScorer | None,
        weights: FusionWeights,
        internal: TokenScorer | str = "silence",
        phrases: TokenScorer | None = None,
    ) -> None:
        self.model = model
        self.weights = weights
        subtracted: TokenScorer | None = None
        if weights.subtracted:
            subtracted = internal_lm(model, internal) if isinstance(internal, str) else internal
        self.scorers = Fusion(lm, subtracted, weights, phrases=phrases).scorers(model)
        self._prefix = torch.tensor(model.prefix)
        self._known: dict[Labels, tuple[_Batch, int]] = {}  # which row of which batch has read these labels
        self._spoken = torch.isfinite(model.allowed)  # units of text and the end; no others are touched

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Labels so far (n, prefix + U) and the model's scores (n, V) to fused scores (n, V)."""
        sequences = self._sequences(input_ids)
        wanted = list(dict.fromkeys(sequences))
        self._read(wanted)
        self._known = {s: self._known[s] for s in wanted}
        lm, subtracted, phrases = (self._rows(wanted, k) for k in range(3))
        length = torch.ones_like(lm)
        if self.model.tokens.eos is not None:
            length[:, self.model.tokens.eos] = 0.0  # the end is no label
        added = fuse(torch.zeros_like(lm), lm, subtracted, length, self.weights, phrases)
        added = torch.where(self._spoken.to(added.device), added, 0.0).to(scores.device)
        places = {s: i for i, s in enumerate(wanted)}
        own = scores.float().log_softmax(-1)
        fused = own + added[torch.tensor([places[s] for s in sequences], device=scores.device)]
        ended = torch.tensor([self._has_ended(row) for row in input_ids.tolist()], device=scores.device)
        return torch.where(ended[:, None], own, fused)

    def _sequences(self, input_ids: Tensor) -> list[Labels]:
        """The text labels of each row: what stands after the prefix, without special units."""
        size = len(self.model.prefix)
        start = input_ids[:, :size].cpu()
        if start.shape[1] < size or not bool((start == self._prefix).all()):
            raise BadInputError(
                f"generate began with the labels {start[0].tolist()}, the adapter expects {list(self.model.prefix)}: "
                "give both the same language, task, prompt and time-stamp setting"
            )
        spoken = self._spoken.tolist()
        eos = self.model.tokens.eos
        return [tuple(i for i in row if spoken[i] and i != eos) for row in input_ids[:, size:].tolist()]

    def _has_ended(self, row: Sequence[int]) -> bool:
        return row[-1] == self.model.tokens.eos and len(row) > len(self.model.prefix)

    def _read(self, sequences: Iterable[Labels]) -> None:
        """Makes every sequence known: all new ones of one length are scored at once, after their parents."""
        missing = [s for s in dict.fromkeys(sequences) if s not in self._known]
        if not missing:
            return
        if () in missing:
            rows, states = zip(*(scorer.start(1) for scorer in self.scorers), strict=True)
            self._known[()] = (_Batch(rows, states), 0)
            missing.remove(())
        self._read(s[:-1] for s in missing)
        for length in sorted({len(s) for s in missing}):
            self._score([s for s in missing if len(s) == length])

    def _score(self, sequences: list[Labels]) -> None:
        """Extends the parents of the sequences, which are known and of one length, by the last labels."""
        sequences = sorted(sequences, key=lambda s: id(self._known[s[:-1]][0]))
        labels = torch.tensor([s[-1] for s in sequences])
        rows, states = [], []
        for k, scorer in enumerate(self.scorers):
            parts = []
            for batch, members in groupby((self._known[s[:-1]] for s in sequences), key=lambda entry: entry[0]):
                index = torch.tensor([place for _, place in members], device=scorer.device)
                parts.append(select(batch.states[k], index))
            row, state = scorer.score(labels.to(scorer.device), cat(parts))
            rows.append(row)
            states.append(state)
        batch = _Batch(tuple(rows), tuple(states))
        self._known.update({s: (batch, place) for place, s in enumerate(sequences)})

    def _rows(self, sequences: list[Labels], k: int) -> Tensor:
        """Scorer k's rows (n, V) after each known sequence, the end as the scorer's `finish` scores it."""
        scorer, eos = self.scorers[k], self.model.tokens.eos
        rows = torch.stack([batch.rows[k][place] for batch, place in (self._known[s] for s in sequences)])
        rows = rows.expand(-1, len(scorer.tokens)).clone()  # a row of one number stands for every label
        if eos is not None:
            rows[:, eos] = scorer.finish(rows)
        return rows
