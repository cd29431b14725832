"""Time-synchronous beam search for token-and-duration transducers (TDT, Xu et al. 2023), batched.

At frame t a hypothesis y takes a label or blank, and a duration d: it then stands at frame t + d. Labels may take
d = 0, up to `max_symbols` of them at one frame; blank may not. A hypothesis that reaches the end, or would pass it,
has ended. The score is the transducer's,

    score(y) = log Σ_alignments Π P(label or blank | t, y) P(d | t, y) + λ_T log P_T(y) − μ log P_S(y) + β |y|

with the sum over labels' places and all durations. Blanks and durations are scored by the model alone; language scores
belong to the label sequence. Hypotheses compete with those that stand at the same frame: for each of the next frames,
as far as a duration reaches, there is a beam of those that will arrive there, and equal sequences in it are one. Of
each duration the K best longer sequences arrive, and a label of duration 0 is followed up while it scores above the
K-th best of some beam ahead.

Lanes, pool, history, expansion and results are those of `ilme.search.transducer`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.fusion import Fusion
from ilme.protocols import DurationTransducer
from ilme.runtime.numerics import log_softmax
from ilme.search.gate import BlankGate
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.search.transducer import Beam, Longer, TransducerOptions, TransducerSearch, TransducerStream, merge, places

__all__ = ["TDTSearch", "TDTStream"]


class TDTSearch(TransducerSearch):
    """A search over one model with one fusion. Call it on encoder outputs, or feed a stream chunk by chunk.

    Args:
        model: The transducer, with durations.
        fusion: What is added and subtracted, with which weights.
        options: How to search; there is no blank gate for durations.
    """

    def __init__(
        self, model: DurationTransducer, fusion: Fusion | None = None, options: TransducerOptions | None = None
    ) -> None:
        super().__init__(model, fusion, options)
        self.records = False
        if max(model.durations, default=0) < 1:
            raise BadInputError(f"a TDT needs a duration of at least one frame, it has {model.durations}")
        if self.options.blank_gate:
            raise BadInputError("blank_gate skips frames one by one; a TDT skips them by its durations, use 0")

    def stream(self, batch: int, limits: Tensor | None = None) -> TDTStream:
        return TDTStream(self, batch, limits)


class TDTStream(TransducerStream):
    """The state of a search between two chunks of frames: what stands at the next frame, and what arrives later.

    Beams of several frames or durations are one `Beam` with fields (A, B, K) or (D, B, K).
    """

    def __init__(self, search: TDTSearch, batch: int, limits: Tensor | None = None) -> None:
        self.durations = cast(DurationTransducer, search.model).durations
        super().__init__(search, batch, limits)
        moving = [d for d, frames in enumerate(self.durations) if frames]
        self.moving = torch.tensor(moving, device=self.device)
        self.where = torch.tensor([self.durations[d] - 1 for d in moving], device=self.device)
        self.stays = self.durations.index(0) if 0 in self.durations else None
        self.ahead = _stacked([self._empty()] * max(self.durations))  # what arrives at the next frame, the one after, …

    @property
    def growths(self) -> int:
        return self.options.max_symbols

    @property
    def width(self) -> int:
        return len(self.durations) * self.options.beam

    @property
    def slots(self) -> int:
        """Those that wait, those that stand, and all that one frame may add."""
        return (max(self.durations) + 4) * self.options.beam + self.growths * self.width

    def partial(self) -> list[Hypothesis]:
        return [nbest[0] for nbest in self._read_out(self._arrived(), 1)]

    @torch.no_grad()
    def finish(self) -> list[NBest]:
        self.beam = self._best(self._arrived(), self.options.beam)
        return super().finish()

    def _arrived(self) -> Beam:
        """All hypotheses, at whatever frame: after the last frame all of them have ended."""
        found = self.beam
        for beam in zip(*self.ahead, strict=True):
            found = merge(found, Beam(*beam))
        return found

    def _advance(self, f: Tensor, active: Tensor, gate: BlankGate | None, t: int) -> None:
        """One frame: f (B, J); an utterance that is not active (B,) keeps its beams."""
        live, open_, ahead = active[:, None], self.beam, self.ahead
        for symbols in range(self.options.max_symbols + 1):
            rows = places((open_.path > -torch.inf) & live)
            if not len(rows):
                break
            logp, blank, durations = self._join_durations(f, open_, rows)
            closed = self._take_blank(open_, blank)
            ahead = self._arrive(ahead, _spread(closed, durations[self.moving]))
            if symbols == self.options.max_symbols:
                break
            longer = self._grow(open_, self._continue(open_, rows, logp, blank), durations, live)
            ahead = self._arrive(ahead, Beam(*(x[self.moving] for x in longer)))
            if self.stays is None:
                break
            open_ = Beam(*(x[self.stays] for x in longer))
            floor = self.total(ahead).amin(2).amin(0)[:, None]  # the K-th best of some beam ahead
            open_ = open_._replace(path=open_.path.masked_fill(self.total(open_) <= floor, -torch.inf))
        following = Beam(*(x[0] for x in ahead))
        waiting = Beam(*(torch.cat([x[1:], y[None]]) for x, y in zip(ahead, self._empty(), strict=True)))
        self.beam, self.ahead = _where(live, following, self.beam), _where(live, waiting, self.ahead)
        self.pool.touch(torch.cat([self.beam.slot, *self.ahead.slot], 1))
        self.frame += 1

    def _join_durations(self, f: Tensor, beam: Beam, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log P(· | t, y) (m, V) of the m places in use, log P(blank) (B, K), and log P(d) (D, B, K)."""
        model, (B, K) = cast(DurationTransducer, self.search.model), beam.path.shape
        g = self.g.read(beam.slot.flatten()[rows], self.pool.labels)
        units, durations = (log_softmax(x) for x in model.join_durations(f[rows // K], g))
        blank = beam.path.new_zeros(B * K)
        blank[rows] = units[:, model.tokens.blank].to(blank.dtype)
        wide = beam.path.new_full((len(self.durations), B * K), -torch.inf)  # places not in use go nowhere
        wide[:, rows] = durations.T.to(wide.dtype)
        return units, blank.view(B, K), wide.view(-1, B, K)

    def _grow(self, beam: Beam, longer: Longer, durations: Tensor, live: Tensor) -> Beam:
        """Of each duration (D, B, K) the K best sequences one label longer: (D, B, K)."""
        (B, K), D = beam.path.shape, len(durations)
        scores = longer.scores[None] + durations[..., None]  # (D, B, K, labels)
        best, index = scores.flatten(2).topk(min(K, longer.scores[0].numel()))
        best = torch.nn.functional.pad(best, (0, K - best.shape[2]), value=-torch.inf)
        index = torch.nn.functional.pad(index, (0, K - index.shape[2]))
        valid = (best > -torch.inf) & live
        wide = [x.transpose(0, 1).reshape(B, D * K) for x in (index, valid)]
        children = self._children(beam, longer, wide[0], wide[1])
        split = Beam(*(x.view(B, D, K).transpose(0, 1) for x in children))
        taken = durations.gather(2, index // longer.scores.shape[2]).masked_fill(~valid, 0)
        return split._replace(path=split.path + taken, asr=split.asr + taken)

    def _arrive(self, ahead: Beam, new: Beam) -> Beam:
        """For each frame ahead the K best of those that were there and those that come, (moving, B, K)."""
        there = Beam(*(x[self.where].flatten(0, 1) for x in ahead))
        best = self._best(merge(there, Beam(*(x.flatten(0, 1) for x in new))), self.options.beam)
        return Beam(*(x.index_copy(0, self.where, y.view_as(x[self.where])) for x, y in zip(ahead, best, strict=True)))

    def _empty(self) -> Beam:
        return self.beam._replace(path=torch.full_like(self.beam.path, -torch.inf))


def _spread(beam: Beam, durations: Tensor) -> Beam:
    """The beam (B, K) after each of the durations (D, B, K): (D, B, K)."""
    wide = Beam(*(x.expand(len(durations), *x.shape) for x in beam))
    return wide._replace(path=wide.path + durations, asr=wide.asr + durations)


def _stacked(beams: list[Beam]) -> Beam:
    return Beam(*(torch.stack(fields) for fields in zip(*beams, strict=True)))


def _where(condition: Tensor, new: Beam, old: Beam) -> Beam:
    return Beam(*(torch.where(condition, a, b) for a, b in zip(new, old, strict=True)))
