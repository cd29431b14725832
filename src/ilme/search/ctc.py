"""Time-synchronous prefix beam search for CTC, batched over utterances and hypotheses.

At each frame CTC puts out a label or blank; an alignment is read by merging equal neighbours and dropping blanks. The
score of a label sequence is

    score(y) = log Σ_alignments Π_t P(π_t | x) + λ_T log P_T(y) − μ log P_S(y) + β |y| + κ B(y)

A prefix y keeps two sums, of the alignments that end in blank and of those that end in its last label:

    p_b(y, t) = (p_b + p_l)(y, t−1) P(blank)
    p_l(y, t) = p_l(y, t−1) P(y_U) + (y_U = y_{U−1} ? p_b : p_b + p_l)(y_{<U}, t−1) P(y_U)

Language scores belong to the sequence and are added once per label; blank is the model's alone. Fusion comes before
pruning. Label sequences and what networks know of them are kept as in a transducer's search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.fusion import SCORERS, Fusion, fuse
from ilme.protocols import CTCModel
from ilme.runtime.numerics import log_softmax
from ilme.search.history import NO_NODE, History
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.search.prefixes import EMPTY, Lane, PrefixPool, extend_hash, is_ragged
from ilme.search.repetition import repetition_lane

__all__ = ["CTCOptions", "CTCSearch", "CTCStream"]

BLOCK = 128  # frames whose whole vocabulary is computed at once
ROUNDING = 1e-6  # by which a bound may be wrong, relative to the scores


@dataclass(frozen=True)
class CTCOptions:
    """How to search. The same options apply to every fusion method.

    Attributes:
        beam: Label sequences kept after each frame.
        nbest: Hypotheses returned for each utterance; 0 means the whole beam.
        lm_eos: Add the external LM's end-of-sentence score after the last frame.
        subtracted_eos: Subtract the subtracted LM's; None: as `lm_eos`.
        max_repeats: Most times in a row that a run of up to `repeat_span` labels may stand; 0 does not count.
        repeat_span: Longest run of labels that is watched for repetition.
        labels_per_second: Most labels for a second of audio, and a few to spare; inf does not count. A recogniser turns
            it into the `limits` of a search.
        plausible_length: Leave out hypotheses far shorter or longer than the one that the model itself likes best (see
            `ilme.search.length`).
        consensus: Temperature of the consensus that a recogniser takes of a list (see `ilme.search.consensus`); 0 takes
            the best hypothesis.
        joined: Whether a recogniser also searches without LMs, and takes the consensus of both lists.
    """

    beam: int = 25
    nbest: int = 0
    lm_eos: bool = False
    subtracted_eos: bool | None = None
    max_repeats: int = 0
    repeat_span: int = 8
    labels_per_second: float = math.inf
    plausible_length: bool = False
    consensus: float = 0.0
    joined: bool = False

    def __post_init__(self) -> None:
        for name, least in {"beam": 1, "nbest": 0, "max_repeats": 0, "repeat_span": 1}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise BadInputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.nbest > self.beam:
            raise BadInputError(f"nbest={self.nbest} cannot exceed beam={self.beam}")
        if math.isnan(self.labels_per_second) or self.labels_per_second < 0:
            raise BadInputError(f"labels_per_second must not be negative, got {self.labels_per_second!r}")

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether the LM that is added, and the one that is subtracted, score the end."""
        return self.lm_eos, self.lm_eos if self.subtracted_eos is None else self.subtracted_eos


class Prefixes(NamedTuple):
    """K label sequences of each of B utterances; every field is (B, K). A place not in use has −inf twice."""

    blank: Tensor  # log Σ over the alignments that end in blank
    label: Tensor  # log Σ over those that end in the last label
    lm: Tensor
    subtracted: Tensor
    phrases: Tensor
    length: Tensor
    hash: Tensor
    node: Tensor  # where the labels are: an index into the stream's history
    slot: Tensor  # where the networks' states are: an index into the pool
    last: Tensor  # the last label; blank's id for the empty sequence

    @property
    def asr(self) -> Tensor:
        return torch.logaddexp(self.blank, self.label)

    def take(self, index: Tensor) -> Prefixes:
        return Prefixes(*(x.gather(1, index) for x in self))


class CTCSearch:
    """A search over one model with one fusion. Call it on encoder outputs, or feed a stream chunk by chunk.

    Args:
        model: The CTC model.
        fusion: What is added and subtracted, with which weights.
        options: How to search.
    """

    def __init__(self, model: CTCModel, fusion: Fusion | None = None, options: CTCOptions | None = None) -> None:
        if model.tokens.blank is None:
            raise BadInputError("this model's token inventory has no blank; it is no CTC model")
        self.model = model
        self.blank: int = model.tokens.blank
        self.fusion = fusion or Fusion()
        self.options = options or CTCOptions()
        self.weights = self.fusion.weights
        self.lm, self.subtracted, self.phrases = self.fusion.scorers(model)

    @torch.no_grad()
    def __call__(self, h: Tensor, lengths: Tensor, limits: Tensor | None = None) -> list[NBest]:
        """Encoder outputs (B, T, E) and their lengths (B,), as `model.encode` gives them, to one n-best list each.

        limits (B,) caps each utterance's labels.
        """
        stream = self.stream(len(h), limits)
        stream.feed(h, lengths)
        return stream.finish()

    def stream(self, batch: int, limits: Tensor | None = None) -> CTCStream:
        """A new search over `batch` utterances whose frames will come in chunks; limits (B,) caps their labels."""
        return CTCStream(self, batch, limits)


class CTCStream:
    """The state of a search between two chunks of frames."""

    def __init__(self, search: CTCSearch, batch: int, limits: Tensor | None = None) -> None:
        self.search, self.options, self.weights = search, search.options, search.weights
        model, K = search.model, search.options.beam
        self.batch, self.device = batch, model.device
        self.frame = 0
        slots = 5 * K
        with torch.no_grad():
            self.lm = Lane(search.lm.start, search.lm.score, batch * slots, ragged=is_ragged(search.lm))
            self.subtracted = Lane(search.subtracted.start, search.subtracted.score, batch * slots)
            self.phrases = Lane(search.phrases.start, search.phrases.score, batch * slots)
            dtype = torch.promote_types(model.emit(None).dtype, torch.float32)
        self.guard, self.repeats = repetition_lane(self.options, len(model.tokens), batch * slots, self.device)
        lanes = [self.lm, self.subtracted, self.phrases, *([] if self.repeats is None else [self.repeats])]
        self.pool = PrefixPool(lanes, batch, slots, self.device)
        self.limits = None if limits is None else limits.to(self.device)[:, None]
        zeros = torch.zeros(batch, K, dtype=dtype, device=self.device)
        nothing = torch.full_like(zeros, -torch.inf)
        blank = nothing.clone()
        blank[:, 0] = 0
        ids = torch.zeros(batch, K, dtype=torch.long, device=self.device)
        slot = self.pool.base.expand(batch, K).clone()
        empty = ids + EMPTY, ids + NO_NODE, slot, ids + search.blank
        self.beam = Prefixes(blank, nothing, zeros, zeros, zeros, zeros, *empty)
        self.history = History(K, self.device)

    @torch.no_grad()
    def feed(self, h: Tensor, lengths: Tensor | None = None) -> None:
        """Searches on through encoder outputs (B, T, E); the first lengths (B,) frames are each utterance's."""
        if h.dim() != 3 or len(h) != self.batch:
            raise BadInputError(f"expected encoder outputs of shape ({self.batch}, T, E), got {tuple(h.shape)}")
        frames = torch.full((self.batch,), h.shape[1], device=self.device)
        frames = frames if lengths is None else lengths.to(self.device)
        last = min(h.shape[1], int(frames.max())) if len(frames) else 0
        for begin in range(0, last, BLOCK):
            rows = log_softmax(self.search.model.emit(h[:, begin : min(begin + BLOCK, last)]))
            for t, logp in enumerate(rows.unbind(1), begin):
                self._advance(logp, (t < frames)[:, None])

    def partial(self) -> list[Hypothesis]:
        """The best hypothesis of each utterance so far."""
        return [nbest[0] for nbest in self._read_out(self.beam, 1)]

    @torch.no_grad()
    def finish(self) -> list[NBest]:
        """The n-best lists, after the last frame."""
        beam, slots = self.beam, self.beam.slot.flatten()
        for name, counts in zip(SCORERS, (*self.options.ends, True), strict=True):
            if counts:
                rows, old = getattr(self, name).read(slots, self.pool.labels), getattr(beam, name)
                beam = beam._replace(**{name: old + getattr(self.search, name).finish(rows).view_as(old)})
        return self._read_out(beam, self.options.nbest or self.options.beam)

    def total(self, beam: Prefixes) -> Tensor:
        """The fused score (B, K)."""
        return fuse(beam.asr, beam.lm, beam.subtracted, beam.length, self.weights, beam.phrases)

    def _language(self, beam: Prefixes) -> Tensor:
        """The fused score (B, K) without the model's own."""
        return fuse(torch.zeros_like(beam.lm), beam.lm, beam.subtracted, beam.length, self.weights, beam.phrases)

    def _advance(self, logp: Tensor, active: Tensor) -> None:
        """One frame: log P (B, V); an utterance that is not active (B, 1) keeps its beam."""
        stays, arrivals = self._move(logp)
        floor = self.total(stays).amin(1, keepdim=True)
        slots = stays.slot.flatten()
        subtracted, phrases = (
            lane.read(slots, self.pool.labels).view(*stays.slot.shape, -1) for lane in (self.subtracted, self.phrases)
        )
        if self._may_enter(arrivals, subtracted, phrases, floor, active):
            stays = self._expand(stays, arrivals, subtracted, phrases, active)
        self.beam = Prefixes(*(torch.where(active, new, old) for new, old in zip(stays, self.beam, strict=True)))
        self.frame += 1

    def _move(self, logp: Tensor) -> tuple[Prefixes, Tensor]:
        """The prefixes of the beam after this frame, and log Σ (B, K, V) of the alignments that add a label to one.

        Where a prefix and a label make another prefix of the beam, its alignments are added there and are no arrival.
        """
        beam, blank = self.beam, self.search.blank
        both = beam.asr
        arrivals = both[:, :, None] + logp[:, None, :]
        again = (beam.blank + logp.gather(1, beam.last))[:, :, None]  # the last label, said twice
        arrivals.scatter_(2, beam.last[:, :, None], again)
        arrivals[:, :, blank] = -torch.inf
        if self.limits is not None:
            arrivals.masked_fill_((beam.length >= self.limits)[:, :, None], -torch.inf)

        alive = both > -torch.inf
        child = extend_hash(beam.hash[:, :, None], beam.last[:, None, :]) == beam.hash[:, None, :]  # (B, parent, child)
        child &= alive[:, :, None] & alive[:, None, :]
        last = beam.last[:, None, :].expand_as(child)
        handed = arrivals.gather(2, last).masked_fill(~child, -torch.inf).amax(1)  # a prefix has one parent
        arrivals.scatter_reduce_(2, last, torch.where(child, -torch.inf, torch.inf).to(arrivals.dtype), "amin")
        label = torch.logaddexp(beam.label + logp.gather(1, beam.last), handed)
        return beam._replace(blank=both + logp[:, blank, None], label=label), arrivals

    def _may_enter(self, arrivals: Tensor, subtracted: Tensor, phrases: Tensor, floor: Tensor, active: Tensor) -> bool:
        """Whether a longer sequence may pass the floor (B, 1), judged without the external LM: log P_T ≤ 0."""
        bound = fuse(arrivals, torch.zeros_like(arrivals), subtracted, 1.0, self.weights, phrases)
        bound = bound.masked_fill(arrivals.isneginf(), -torch.inf).amax(2)
        needed = floor - self._language(self.beam)
        return bool(((bound >= needed - ROUNDING * (1 + needed.abs())) & (bound > -torch.inf) & active).any())

    def _expand(
        self, stays: Prefixes, arrivals: Tensor, subtracted: Tensor, phrases: Tensor, active: Tensor
    ) -> Prefixes:
        """The K best (B, K) of the prefixes that stay and of those that are one label longer."""
        beam, (B, K, V) = self.beam, arrivals.shape
        slots = beam.slot.flatten()
        lm = self.lm.read(slots, self.pool.labels).view(B, K, -1)
        score = fuse(arrivals, lm, subtracted, 1.0, self.weights, phrases)
        score = score + self._language(beam)[:, :, None]
        score.masked_fill_(arrivals.isneginf(), -torch.inf)  # a scorer may say −inf too, and subtracting that is NaN
        if self.guard is not None and self.repeats is not None:
            self.guard.forbid(score, self.repeats.read(slots, self.pool.labels).view(B, K, -1))
        each = min(K, V)
        best, labels = score.topk(each, dim=2)  # no sequence gives more than K of the K best
        chosen, index = torch.cat([self.total(stays), best.flatten(1)], 1).topk(K, dim=1)
        longer = (index >= K) & (chosen > -torch.inf) & active
        place = (index - K).clamp(min=0)
        parent, label = place // each, labels.flatten(1).gather(1, place)
        kept, parents = stays.take(index.clamp(max=K - 1)), beam.take(parent)

        def of(rows: Tensor) -> Tensor:
            """What rows (B, K, V or 1) say of each new label, 0 where there is none."""
            rows = rows.expand(B, K, V).flatten(1).gather(1, parent * V + label)
            return torch.where(longer, rows, 0.0)

        hashes = extend_hash(parents.hash, label)
        children = Prefixes(
            blank=torch.full_like(chosen, -torch.inf),
            label=torch.where(longer, arrivals.flatten(1).gather(1, parent * V + label), -torch.inf),
            lm=parents.lm + of(lm),
            subtracted=parents.subtracted + of(subtracted),
            phrases=parents.phrases + of(phrases),
            length=parents.length + 1,
            hash=hashes,
            node=self.history.add(parents.node, label, longer, self.frame),
            slot=self.pool.place(hashes, parents.slot, label, longer),
            last=label,
        )
        new = Prefixes(*(torch.where(longer, a, b) for a, b in zip(children, kept, strict=True)))
        dead = chosen.isneginf()
        new = new._replace(blank=new.blank.masked_fill(dead, -torch.inf), label=new.label.masked_fill(dead, -torch.inf))
        self.pool.touch(new.slot)
        return new

    def _read_out(self, beam: Prefixes, nbest: int) -> list[NBest]:
        total, asr = self.total(beam).tolist(), beam.asr.tolist()
        components = [x.tolist() for x in (beam.asr, beam.lm, beam.subtracted, beam.length, beam.phrases)]
        nodes = beam.node.tolist()
        order = [
            sorted((k for k in range(len(row)) if row[k] > -math.inf), key=lambda k: -total[b][k])[:nbest]
            for b, row in enumerate(asr)
        ]
        traced = self.history.trace([[nodes[b][k] for k in row] for b, row in enumerate(order)])
        out: list[NBest] = []
        for b in range(self.batch):
            hypotheses = []
            for k, (labels, times) in zip(order[b], traced[b], strict=True):
                scores = Scores(*(float(x[b][k]) for x in components))
                hypotheses.append(Hypothesis(labels, total[b][k], scores, times))
            out.append(hypotheses)
        return out
