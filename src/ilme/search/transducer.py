"""Time-synchronous beam search for transducers, batched over utterances and hypotheses.

At each frame a hypothesis y takes blank, or up to `max_symbols` labels and then blank. Its score is

    score(y) = log Σ_alignments P(alignment | x) + λ_T log P_T(y) − μ log P_S(y) + β |y| + κ B(y)

Alignments of one label sequence are added (prefix recombination); the language scores belong to the sequence and are
added once per label (Eq. 27). Blank takes the transducer's score alone. Fusion comes before pruning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.fusion import SCORERS, Fusion, fuse
from ilme.protocols import SharedPrediction, TokenScorer, Transducer
from ilme.runtime.cuda import kernels_run_on
from ilme.runtime.numerics import log_softmax
from ilme.search.gate import BlankGate
from ilme.search.history import NO_NODE, History
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.search.prefixes import EMPTY, DerivedLane, Lane, Outputs, PrefixPool, extend_hash, is_ragged
from ilme.search.repetition import repetition_lane

__all__ = [
    "ROUNDING",
    "Beam",
    "Idle",
    "Longer",
    "TransducerOptions",
    "TransducerSearch",
    "TransducerStream",
    "merge",
    "places",
]

ROUNDING = 1e-6  # by which a bound may be wrong, relative to the scores
WIDEST = 512  # places of those that end a frame up to which a CUDA kernel keeps an utterance's in registers


@dataclass(frozen=True)
class TransducerOptions:
    """How to search. The same options apply to every fusion method.

    Attributes:
        beam: Label sequences kept after each frame.
        nbest: Hypotheses returned for each utterance; 0 means the whole beam.
        max_symbols: Most labels emitted at one frame.
        lm_eos: Add the external LM's end-of-sentence score after the last frame.
        subtracted_eos: Subtract the subtracted LM's; None: as `lm_eos`.
        blank_aware: Scale the external LM's view of blank: a label adds λ ln(1 − p_blank), blank adds λ ln p_blank.
        blank_gate: Take a frame as blank for a hypothesis, without computing the vocabulary, when its log P(blank)
            is estimated above −blank_gate (see `ilme.search.gate`); 0 computes everything. Used on CPU, where it
            saves most of the work; scores then carry an error far below the gate at each frame.
        shortlist: Output units that the estimate is made from.
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
    max_symbols: int = 3
    lm_eos: bool = False
    subtracted_eos: bool | None = None
    blank_aware: bool = False
    blank_gate: float = 0.0
    shortlist: int = 64
    max_repeats: int = 0
    repeat_span: int = 8
    labels_per_second: float = math.inf
    plausible_length: bool = False
    consensus: float = 0.0
    joined: bool = False

    def __post_init__(self) -> None:
        leasts = {"beam": 1, "nbest": 0, "max_symbols": 1, "shortlist": 1, "max_repeats": 0, "repeat_span": 1}
        for name, least in leasts.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise BadInputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.nbest > self.beam:
            raise BadInputError(f"nbest={self.nbest} cannot exceed beam={self.beam}")
        if not 0 <= self.blank_gate < math.inf:
            raise BadInputError(f"blank_gate must be a finite number of at least 0, got {self.blank_gate!r}")
        if math.isnan(self.labels_per_second) or self.labels_per_second < 0:
            raise BadInputError(f"labels_per_second must not be negative, got {self.labels_per_second!r}")

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether the LM that is added, and the one that is subtracted, score the end."""
        return self.lm_eos, self.lm_eos if self.subtracted_eos is None else self.subtracted_eos


class Beam(NamedTuple):
    """K label sequences of each of B utterances; every field is (B, K). An empty place has path = −inf."""

    path: Tensor  # log Σ over alignments of what the search maximises
    asr: Tensor  # log Σ over alignments of P(alignment | x); differs from path when blank-aware
    lm: Tensor
    subtracted: Tensor
    phrases: Tensor
    length: Tensor
    hash: Tensor
    node: Tensor  # where the labels are: an index into the stream's history
    slot: Tensor  # where the networks' states are: an index into the pool

    def take(self, index: Tensor) -> Beam:
        return Beam(*(x.gather(1, index) for x in self))

    def join(self, other: Beam) -> Beam:
        return Beam(*(torch.cat(pair, 1) for pair in zip(self, other, strict=True)))


class Longer(NamedTuple):
    """The best labels after each of K sequences of B utterances; m of them are in use."""

    scores: Tensor  # (B, K, labels), fused
    labels: Tensor  # (m, labels)
    at: Tensor  # (B, K), which of the m rows a sequence is
    logp: Tensor  # (m, V)
    aware: Tensor | None  # (m,), what a label adds when blank-aware
    language: tuple[Tensor, ...]  # (m, V) of the LM, of what is subtracted and of the phrases


class Idle(list[Any]):
    """Buffers and recordings of `ilme.search.recorded` that no search holds at the moment. A copy of them is empty."""

    def __reduce__(self) -> tuple[type[Idle], tuple[()]]:
        return Idle, ()


class TransducerSearch:
    """A search over one model with one fusion. Call it on encoder outputs, or feed a stream chunk by chunk.

    Args:
        model: The transducer.
        fusion: What is added and subtracted, with which weights.
        options: How to search.
        idle: What searches that are recorded leave behind for the next; one for all searches over a model saves time.

    Attributes:
        records: Whether frames are replayed from CUDA graphs (`ilme.search.recorded`), which finds the same: on CUDA
            with Triton, where all networks are `capturable`.
    """

    def __init__(
        self,
        model: Transducer,
        fusion: Fusion | None = None,
        options: TransducerOptions | None = None,
        idle: Idle | None = None,
    ) -> None:
        if model.tokens.blank is None:
            raise BadInputError("this model's token inventory has no blank; it is not a transducer")
        self.model = model
        self.fusion = fusion or Fusion()
        self.options = options or TransducerOptions()
        self.weights = self.fusion.weights
        self.lm, self.subtracted, self.phrases = self.fusion.scorers(model)
        networks = (model, self.lm, self.subtracted, self.phrases)
        narrow = self.options.beam * (self.options.max_symbols + 1) <= WIDEST
        capturable = all(getattr(network, "capturable", False) for network in networks)
        self.records = kernels_run_on(model.device) and capturable and narrow
        self.idle = Idle() if idle is None else idle

    @torch.no_grad()
    def __call__(self, f: Tensor, lengths: Tensor, limits: Tensor | None = None) -> list[NBest]:
        """Acoustic terms (B, T, J) and their lengths (B,), as `model.encode` gives them, to one n-best list each.

        limits (B,) caps each utterance's labels.
        """
        stream = self.stream(len(f), limits)
        stream.feed(f, lengths)
        return stream.finish()

    def stream(self, batch: int, limits: Tensor | None = None) -> TransducerStream:
        """A new search over `batch` utterances whose frames will come in chunks; limits (B,) caps their labels."""
        if not (self.records and batch):
            return TransducerStream(self, batch, limits)
        from ilme.search.recorded import RecordedStream

        return RecordedStream(self, batch, limits)


class TransducerStream:
    """The state of a search between two chunks of frames."""

    def __init__(self, search: TransducerSearch, batch: int, limits: Tensor | None = None) -> None:
        self.search, self.options, self.weights = search, search.options, search.weights
        self.batch, self.device = batch, search.model.device
        with torch.no_grad():
            self._begin(limits)

    def _begin(self, limits: Tensor | None) -> None:
        search, model, B, K = self.search, self.search.model, self.batch, self.options.beam
        slots = self.slots
        self.frame = 0
        self.g = Lane(model.start, model.predict, B * slots)
        self.lm = Lane(search.lm.start, search.lm.score, B * slots, ragged=is_ragged(search.lm))
        self.subtracted = self._subtracted_lane(search.subtracted, B * slots)
        self.phrases = Lane(search.phrases.start, search.phrases.score, B * slots)
        dtype = torch.promote_types(model.join(None, self.g.output[:1]).dtype, torch.float32)
        self.guard, self.repeats = repetition_lane(self.options, len(model.tokens), B * slots, self.device)
        lanes = [self.g, self.lm, self.subtracted, self.phrases, *([] if self.repeats is None else [self.repeats])]
        self.pool = PrefixPool(lanes, B, slots, self.device)
        self.limits = None if limits is None else limits.to(self.device)[:, None]
        zeros = torch.zeros(B, K, dtype=dtype, device=self.device)
        path = torch.full_like(zeros, -torch.inf)
        path[:, 0] = 0
        ids = torch.zeros(B, K, dtype=torch.long, device=self.device)
        slot = self.pool.base.expand(B, K).clone()
        self.beam = Beam(path, path.clone(), zeros, zeros, zeros, zeros, ids + EMPTY, ids + NO_NODE, slot)
        self.history = History(self.width, self.device)

    @property
    def growths(self) -> int:
        """Times that a frame may add labels."""
        return self.options.max_symbols

    @property
    def width(self) -> int:
        """Sequences of an utterance that are added at once."""
        return self.options.beam

    @property
    def slots(self) -> int:
        """Label sequences that are kept of each utterance: the beam's, all that one frame may add, and a few."""
        return (self.growths + 4) * self.options.beam

    def _subtracted_lane(self, scorer: TokenScorer, slots: int) -> Outputs:
        """An internal LM of this very model shares its prediction network; any other scorer follows on its own."""
        blank = int(self.search.model.tokens.blank or 0)
        if isinstance(scorer, SharedPrediction) and scorer.host is self.search.model:
            return DerivedLane(self.g, scorer.rows_of, blank)
        return Lane(scorer.start, scorer.score, slots, blank)

    @torch.no_grad()
    def feed(self, f: Tensor, lengths: Tensor | None = None) -> None:
        """Searches on through acoustic terms (B, T, J), of which the first lengths (B,) frames are each utterance's."""
        self._check(f)
        active = torch.ones(self.batch, f.shape[1], dtype=torch.bool, device=self.device)
        if lengths is not None:
            active = torch.arange(f.shape[1], device=self.device) < lengths.to(self.device)[:, None]
        last = f.shape[1] if lengths is None else int(lengths.max()) if len(lengths) else 0
        gate = None
        if self.options.blank_gate and last and not f.is_cuda:
            gate = BlankGate(self.search.model, f[:, :last], self.options.blank_gate, self.options.shortlist)
        for t in range(last):
            self._advance(f[:, t], active[:, t], gate, t)

    def _check(self, f: Tensor) -> None:
        if f.dim() != 3 or len(f) != self.batch:
            raise BadInputError(f"expected acoustic terms of shape ({self.batch}, T, J), got {tuple(f.shape)}")

    def partial(self) -> list[Hypothesis]:
        """The best hypothesis of each utterance so far."""
        return [nbest[0] for nbest in self._read_out(self.beam, 1)]

    @torch.no_grad()
    def finish(self) -> list[NBest]:
        """The n-best lists, after the last frame."""
        return self._read_out(self._score_end(self.beam), self.options.nbest or self.options.beam)

    def total(self, beam: Beam) -> Tensor:
        """The fused score (B, K)."""
        return fuse(beam.path, beam.lm, beam.subtracted, beam.length, self.weights, beam.phrases)

    def _advance(self, f: Tensor, active: Tensor, gate: BlankGate | None, t: int) -> None:
        """One frame: f (B, J), the t-th of the gate's; an utterance that is not active (B,) keeps its beam."""
        open_, done = self.beam, None
        live = active[:, None]
        for symbols in range(self.options.max_symbols + 1):
            rows, logp, blank = self._join(f, open_, live, gate, t)
            closed = self._take_blank(open_, blank)
            done = closed if done is None else merge(done, closed)
            if symbols == self.options.max_symbols or not len(rows):
                break
            floor = self._floor(done)
            rows, logp = self._promising(open_, rows, logp, floor)
            if not len(rows):
                break
            open_ = self._expand(open_, rows, logp, blank, floor, live)
            if not bool((open_.path > -torch.inf).any()):
                break
        if done.path.shape[1] > self.options.beam:  # type: ignore[union-attr]
            done = self._best(done, self.options.beam)  # type: ignore[arg-type]
            self.pool.touch(done.slot)
        self.beam = done  # type: ignore[assignment]
        self.frame += 1

    def _promising(self, beam: Beam, rows: Tensor, logp: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
        """The rows with a label that may pass the floor, judged without the external LM: log P_T ≤ 0 only lowers it.

            score(y v) − score(y) − β ≤ log P(v | t, y) + κ b(v | y) − μ log P_S(v | y)
                                      ≤ max_v [log P + κ b] − μ min_v log P_S

        On most frames the second bound leaves none: no row of P_S, no LM and no sort over the vocabulary is needed.
        """
        slots = beam.slot.flatten()[rows]
        logp[:, self.search.model.tokens.blank] = -torch.inf  # blank has been read already
        needed = floor.flatten()[rows // beam.path.shape[1]] - self.total(beam).flatten()[rows] - self.weights.length
        needed = needed - ROUNDING * (1 + needed.abs())
        mu = self.weights.subtracted
        lifted = self._with_phrases(logp, slots)
        bound = lifted.amax(1)
        if mu:
            bound = bound - mu * self.subtracted.least_of(slots, self.pool.labels)
        keep = (bound >= needed).nonzero().squeeze(1)
        if mu and len(keep):
            rival = self.subtracted.read(slots[keep], self.pool.labels)
            upper = torch.add(lifted[keep], rival, alpha=-mu)
            upper[:, self.search.model.tokens.blank] = -torch.inf
            keep = keep[upper.amax(1) >= needed[keep]]
        if len(keep):  # the LM reads the whole beam at once: a few rows cost nearly as much as all of them
            self.lm.read(slots, self.pool.labels)
        return rows[keep], logp[keep]

    def _with_phrases(self, logp: Tensor, slots: Tensor) -> Tensor:
        """log P + κ b (m, V); the very same rows where no phrases are listed."""
        if not self.weights.phrases:
            return logp
        return torch.add(logp, self.phrases.read(slots, self.pool.labels), alpha=self.weights.phrases)

    def _join(
        self, f: Tensor, beam: Beam, live: Tensor, gate: BlankGate | None, t: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which m places (of B·K) may emit a label, their log P(· | t, y) (m, V), and log P(blank) (B, K) of all."""
        model = self.search.model
        rows = places((beam.path > -torch.inf) & live)
        utterances = rows // beam.path.shape[1]
        g = self.g.read(beam.slot.flatten()[rows], self.pool.labels)
        blank = torch.zeros_like(beam.path)
        if gate is not None:
            estimate = gate.log_blank(t, utterances, f[utterances], g)
            sure = estimate > -gate.threshold
            blank.view(-1)[rows[sure]] = estimate[sure].to(blank.dtype)
            rows, utterances, g = rows[~sure], utterances[~sure], g[~sure]
            if not len(rows):
                return rows, blank.new_zeros(0, len(model.tokens)), blank
        logp = log_softmax(model.join(f[utterances], g))
        blank.view(-1)[rows] = logp[:, model.tokens.blank].to(blank.dtype)
        return rows, logp, blank

    def _take_blank(self, beam: Beam, blank: Tensor) -> Beam:
        """y ends this frame: only the transducer speaks (Eq. 27), unless blank-aware."""
        scale = 1 + self.weights.lm if self.options.blank_aware else 1
        return beam._replace(path=beam.path + scale * blank, asr=beam.asr + blank)

    def _expand(self, beam: Beam, rows: Tensor, logp: Tensor, blank: Tensor, floor: Tensor, live: Tensor) -> Beam:
        """The K best sequences (B, K) one label longer whose score is above the floor (B, 1)."""
        longer = self._continue(beam, rows, logp, blank)
        scores, index = longer.scores.view(len(beam.path), -1).topk(min(self.options.beam, longer.scores[0].numel()))
        scores, index = _pad(scores, self.options.beam, -torch.inf), _pad(index, self.options.beam, 0)
        return self._children(beam, longer, index, (scores > floor) & live)

    def _continue(self, beam: Beam, rows: Tensor, logp: Tensor, blank: Tensor) -> Longer:
        """The best labels of each sequence of the beam that is in use: m rows of B·K places, log P (m, V)."""
        B, K = beam.path.shape
        slots = beam.slot.flatten()[rows]
        lm = self.lm.read(slots, self.pool.labels)
        subtracted = self.subtracted.read(slots, self.pool.labels)
        phrases = self.phrases.read(slots, self.pool.labels)
        gain = fuse(logp, lm, subtracted, 1.0, self.weights, phrases)
        gain[:, self.search.model.tokens.blank] = -torch.inf  # blank has been read already
        aware = self._blank_aware_label(blank).flatten()[rows] if self.options.blank_aware else None
        if aware is not None:
            gain = gain + aware[:, None]
        if self.guard is not None and self.repeats is not None:
            self.guard.forbid(gain[None], self.repeats.read(slots, self.pool.labels)[None])
        total = self.total(beam)
        if self.limits is not None:
            total = total.masked_fill(beam.length >= self.limits, -torch.inf)
        per_row = min(K, gain.shape[1])
        best, labels = gain.topk(per_row, dim=1)  # no sequence gives more than K of the K best
        everywhere = beam.path.new_full((B * K, per_row), -torch.inf)
        everywhere[rows] = total.flatten()[rows][:, None] + best
        compact = torch.zeros(B * K, dtype=torch.long, device=rows.device)
        compact[rows] = torch.arange(len(rows), device=rows.device)
        language = tuple(x.expand_as(gain) for x in (lm, subtracted, phrases))
        return Longer(everywhere.view(B, K, per_row), labels, compact.view(B, K), logp, aware, language)

    def _children(self, beam: Beam, longer: Longer, index: Tensor, valid: Tensor) -> Beam:
        """The sequences (B, W) that an index (B, W) into the scores (B, K · labels) names, where it is valid."""
        per_row = longer.scores.shape[2]
        parent = index // per_row
        at = longer.at.gather(1, parent)  # which of the m rows the parent is
        label = longer.labels[at, index % per_row]
        parents = beam.take(parent)
        logp_label = longer.logp[at, label]
        step = logp_label if longer.aware is None else logp_label + longer.aware[at]
        lm, subtracted, phrases = (x[at, label].masked_fill(~valid, 0) for x in longer.language)
        hashes = extend_hash(parents.hash, label)
        children = Beam(
            path=(parents.path + step).masked_fill(~valid, -torch.inf),
            asr=(parents.asr + logp_label).masked_fill(~valid, -torch.inf),
            lm=parents.lm + lm,
            subtracted=parents.subtracted + subtracted,
            phrases=parents.phrases + phrases,
            length=parents.length + 1,
            hash=hashes,
            node=self.history.add(parents.node, label, valid, self.frame),
            slot=parents.slot,
        )
        return children._replace(slot=self.pool.place(hashes, parents.slot, label, valid))

    def _blank_aware_label(self, blank: Tensor) -> Tensor:
        """λ ln(1 − p_blank)."""
        return self.weights.lm * torch.log(-torch.expm1(blank.clamp(max=-1e-7)))

    def _floor(self, done: Beam) -> Tensor:
        """The score (B, 1) that a sequence must exceed to have a chance: the K-th best of those that took blank."""
        K, total = self.options.beam, self.total(done)
        return total.amin(1, keepdim=True) if total.shape[1] == K else total.topk(K, dim=1).values[:, -1:]

    def _best(self, beam: Beam, count: int) -> Beam:
        return beam.take(self.total(beam).topk(min(count, beam.path.shape[1]), dim=1).indices)

    def _score_end(self, beam: Beam) -> Beam:
        """The end of the phrases, half of which counts nothing, and of the LMs where that is asked for."""
        slots, scored = beam.slot.flatten(), (*self.options.ends, True)
        for name, counts in zip(SCORERS, scored, strict=True):
            if counts:
                rows = self._language(name, slots)
                old = getattr(beam, name)
                beam = beam._replace(**{name: old + getattr(self.search, name).finish(rows).view_as(old)})
        return beam

    def _language(self, name: str, slots: Tensor) -> Tensor:
        """The rows of one of the scorers at these slots."""
        lane: Outputs = getattr(self, name)
        return lane.read(slots, self.pool.labels)

    def _trace(self, nodes: list[list[int]]) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Labels and their frames, for node numbers of each utterance."""
        return self.history.trace(nodes)

    def _read_out(self, beam: Beam, nbest: int) -> list[NBest]:
        total, path = self.total(beam).tolist(), beam.path.tolist()
        components = [x.tolist() for x in (beam.asr, beam.lm, beam.subtracted, beam.length, beam.phrases)]
        nodes = beam.node.tolist()
        order = [
            sorted((k for k in range(len(row)) if row[k] > -math.inf), key=lambda k: -total[b][k])[:nbest]
            for b, row in enumerate(path)
        ]
        traced = self._trace([[nodes[b][k] for k in row] for b, row in enumerate(order)])
        out: list[NBest] = []
        for b in range(self.batch):
            hypotheses = []
            for k, (labels, times) in zip(order[b], traced[b], strict=True):
                scores = Scores(*(float(x[b][k]) for x in components))
                hypotheses.append(Hypothesis(labels, total[b][k], scores, times))
            out.append(hypotheses)
        return out


def places(wanted: Tensor) -> Tensor:
    """Indices of the wanted places (B, K) among B·K."""
    return wanted.flatten().nonzero().squeeze(1)


def merge(done: Beam, closed: Beam) -> Beam:
    """Adds sequences that ended the frame to those already there; equal sequences become one (log-add)."""
    same = (done.hash[:, :, None] == closed.hash[:, None, :]) & (closed.path > -torch.inf)[:, None, :]
    same &= (done.path > -torch.inf)[:, :, None]

    def added(field: str) -> Tensor:
        theirs = getattr(closed, field)[:, None, :].expand(same.shape).masked_fill(~same, -torch.inf)
        return torch.logaddexp(getattr(done, field), theirs.logsumexp(-1))

    merged = done._replace(path=added("path"), asr=added("asr"))
    rest = closed._replace(path=closed.path.masked_fill(same.any(1), -torch.inf))
    return merged.join(rest)


def _pad(x: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]), value=value)
