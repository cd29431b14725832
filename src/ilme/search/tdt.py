"""Time-synchronous beam search for token-and-duration transducers (TDT, Xu et al. 2023), batched.

At frame t a hypothesis y takes a label or blank, and a duration d: it then stands at frame t + d. Labels may take
d = 0, up to `max_symbols` of them at one frame; blank may not. Whoever reaches the end of the audio, or would pass it,
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
from ilme.search.transducer import Beam, TransducerOptions, TransducerSearch, TransducerStream, merge

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
        super().__init__(model, fusion, options, fixed=False)
        if max(model.durations, default=0) < 1:
            raise BadInputError(f"a TDT needs a duration of at least one frame, it has {model.durations}")
        if self.options.blank_gate:
            raise BadInputError("blank_gate skips frames one by one; a TDT skips them by its durations, use 0")

    def stream(self, batch: int, limits: Tensor | None = None) -> TDTStream:
        return TDTStream(self, batch, limits)


class TDTStream(TransducerStream):
    """The state of a search between two chunks of frames: who stands at the next frame, and who will arrive later."""

    def __init__(self, search: TDTSearch, batch: int, limits: Tensor | None = None) -> None:
        self.durations = cast(DurationTransducer, search.model).durations
        super().__init__(search, batch, limits)
        self.ahead = [self._nobody()] * max(self.durations)  # who arrives at the next frame, at the one after it, …

    @property
    def growths(self) -> int:
        """Times that a frame may add labels: at each of its symbols, with each duration."""
        return self.options.max_symbols * len(self.durations)

    @property
    def slots(self) -> int:
        """Those that wait, those that stand, and all that one frame may add."""
        return (max(self.durations) + self.growths + 4) * self.options.beam

    def partial(self) -> list[Hypothesis]:
        return [nbest[0] for nbest in self._read_out(self._arrived(), 1)]

    @torch.no_grad()
    def finish(self) -> list[NBest]:
        self.beam = self._best(self._arrived(), self.options.beam)
        return super().finish()

    def _arrived(self) -> Beam:
        """Everybody, wherever they stand: after the last frame all of them have ended."""
        found = self.beam
        for beam in self.ahead:
            found = merge(found, beam)
        return found

    def _advance(self, f: Tensor, active: Tensor, gate: BlankGate | None, t: int) -> None:
        """One frame: f (B, J); an utterance that is not active (B,) keeps its beams."""
        live, open_, ahead = active[:, None], self.beam, list(self.ahead)
        anything = torch.full_like(self.beam.path[:, :1], -torch.inf)  # no floor
        for symbols in range(self.options.max_symbols + 1):
            rows = self._rows((open_.path > -torch.inf) & live)
            if not len(rows):
                break
            logp, blank, durations = self._join_durations(f, open_, rows)
            closed = self._take_blank(open_, blank)
            for d, frames in enumerate(self.durations):
                if frames:
                    ahead[frames - 1] = self._arrive(ahead[frames - 1], _go_on(closed, durations[d], live))
            if symbols == self.options.max_symbols:
                break
            for d, frames in enumerate(self.durations):
                if frames:
                    longer = self._expand(_go_on(open_, durations[d], live), rows, logp, blank, anything, live)
                    ahead[frames - 1] = self._arrive(ahead[frames - 1], longer)
            if 0 not in self.durations:
                break
            floor = torch.stack([self._floor(beam) for beam in ahead]).amin(0)
            stays = _go_on(open_, durations[self.durations.index(0)], live)
            open_ = self._expand(stays, rows, logp, blank, floor, live)
        following, waiting = ahead[0], [*ahead[1:], self._nobody()]
        self.beam = _where(live, following, self.beam)
        self.ahead = [_where(live, new, old) for new, old in zip(waiting, self.ahead, strict=True)]
        for beam in (self.beam, *self.ahead):
            self.pool.touch(beam.slot)
        self.frame.add_(1)

    def _join_durations(self, f: Tensor, beam: Beam, rows: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """log P(· | t, y) (m, V) of the m places in use, log P(blank) (B, K), and log P(d) (B, K) of each duration."""
        model = cast(DurationTransducer, self.search.model)
        g = self.g.read(beam.slot.flatten()[rows], self.pool.labels)
        units, durations = (log_softmax(x) for x in model.join_durations(f[rows // beam.path.shape[1]], g))

        def everywhere(values: Tensor) -> Tensor:
            wide = torch.zeros_like(beam.path)
            wide.view(-1)[rows] = values.to(wide.dtype)
            return wide

        return units, everywhere(units[:, model.tokens.blank]), [everywhere(x) for x in durations.unbind(1)]

    def _arrive(self, there: Beam, new: Beam) -> Beam:
        """The K best of those that were there and those that come; equal sequences are one."""
        return self._best(merge(there, new), self.options.beam)

    def _nobody(self) -> Beam:
        return self.beam._replace(path=torch.full_like(self.beam.path, -torch.inf))


def _go_on(beam: Beam, duration: Tensor, live: Tensor) -> Beam:
    """The beam with log P(d) (B, K) added; nobody of an utterance that is not live (B, 1)."""
    path = (beam.path + duration).masked_fill(~live, -torch.inf)
    return beam._replace(path=path, asr=beam.asr + duration)


def _where(condition: Tensor, new: Beam, old: Beam) -> Beam:
    return Beam(*(torch.where(condition, a, b) for a, b in zip(new, old, strict=True)))
