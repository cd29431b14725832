"""Label-synchronous beam search for attention decoders, batched over utterances and hypotheses.

    score(y) = Σ_{u=1}^{U+1} [log P(y_u | x, y_{<u}) + λ_T log P_T(y_u | y_{<u}) − μ log P_S(y_u | y_{<u})]
               + β |y| + κ B(y)

with y_{U+1} = <eos> scored by all (Eq. 33), unless the end is left to the model, or to it and one of the two LMs.
Hypotheses are ranked by score / (|y| + 1)^α. Every guard below (length normalisation, length reward, end margin,
repetition, longest output) applies to every fusion method alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.fusion import Fusion, fuse
from ilme.protocols import AttentionDecoder, LimitedAttention, SharedStep
from ilme.runtime.state import State, select
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.search.joint import JointDecoder
from ilme.search.repetition import RepetitionGuard

__all__ = ["AttentionOptions", "AttentionSearch"]

CHECK_EVERY = 8  # steps between two looks at the device, on CUDA, to see which utterances have ended
BLOCK = 256  # scores of which the largest is found first
RETIRE_SHARE = 8  # on CUDA utterances leave the batch when at least one in so many has ended

Rows = tuple[Tensor, Tensor, Tensor, Tensor]  # (n, V) of the model, the LM, what is subtracted, the phrases
States = tuple[State, State, State, State]  # of the same four, sequence first


@dataclass(frozen=True)
class AttentionOptions:
    """How to search. The same options apply to every fusion method.

    Attributes:
        beam: Open hypotheses kept at each step.
        nbest: Hypotheses returned for each utterance; 0 means as many as the beam.
        max_length: Most labels of a hypothesis; at that length only the end is left.
        length_normalisation: α: rank by score / (|y| + 1)^α; 0 ranks by the score itself.
        lm_eos: Whether the LM that is added scores the end too. If not, it has no say in where to end: for speech that
            is cut elsewhere than the sentences that the LM was trained on.
        subtracted_eos: Whether the LM that is subtracted scores the end too; None: as `lm_eos`.
        end_margin: The end is allowed only where the model's own log P(eos) is within this many nats of its best
            label's; inf always allows it. Keeps a search from ending a sentence that the audio continues.
        certain_end: Only the end is allowed where the model's own log P(eos) is more than this many nats above its best
            label's; inf never. Keeps an LM from going on after the speech has ended.
        max_repeats: Most times in a row that a run of up to `repeat_span` labels may stand; 0 does not count.
        repeat_span: Longest run of labels that is watched for repetition.
        repeat_ignores: Labels, such as punctuation, that the count passes over in a second look at the same sequence:
            `sorry, sorry. sorry` is then the same word three times.
        look_back: Most frames of the encoder that the attention may go back from where it last looked; 0 does not limit
            it. Keeps a search from reading the audio twice. For decoders that have one attention, as `ilme`'s AED.
        stop_margin: An utterance is finished when no open hypothesis is within this many nats of its best ended one,
            the latter's score brought to the same length.
        stop_after: An utterance is also finished when this many hypotheses have ended, at most `nbest`; 0 does not
            count. As openai-whisper stops: a decoder that falls into a loop is then left before the loop looks cheap.
        labels_per_second: Most labels for a second of audio, and a few to spare; inf does not count. A recogniser turns
            it into the `limits` of a search.
        ctc_weight: Share of the CTC layer's own score of each label and of the end, 0 to 1, in that of the model
            (`ilme.search.joint`); 0 leaves the layer out. For an AED of `ilme train` that kept it.
        plausible_length: Leave out hypotheses far shorter or longer than the one that the model itself likes best (see
            `ilme.search.length`).
        consensus: Temperature of the consensus that a recogniser takes of a list (see `ilme.search.consensus`); 0 takes
            the best hypothesis.
        joined: Whether a recogniser also searches without LMs, and takes the consensus of both lists.
    """

    beam: int = 25
    nbest: int = 0
    max_length: int = 200
    length_normalisation: float = 0.0
    lm_eos: bool = True
    subtracted_eos: bool | None = None
    end_margin: float = math.inf
    certain_end: float = math.inf
    max_repeats: int = 0
    repeat_span: int = 8
    repeat_ignores: tuple[int, ...] = ()
    look_back: int = 0
    stop_margin: float = 10.0
    stop_after: int = 0
    labels_per_second: float = math.inf
    ctc_weight: float = 0.0
    plausible_length: bool = False
    consensus: float = 0.0
    joined: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "repeat_ignores", tuple(self.repeat_ignores))
        leasts = {"beam": 1, "nbest": 0, "max_length": 1, "max_repeats": 0, "repeat_span": 1}
        for name, least in (leasts | {"look_back": 0, "stop_after": 0}).items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise BadInputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.nbest > self.beam:
            raise BadInputError(f"nbest={self.nbest} cannot exceed beam={self.beam}")
        if self.stop_after > (self.nbest or self.beam):
            raise BadInputError(
                f"stop_after={self.stop_after} hypotheses can never end where nbest={self.nbest or self.beam} are kept"
            )
        if self.repeat_ignores and not self.max_repeats:
            raise BadInputError("repeat_ignores changes how repetitions are counted: give max_repeats too")
        for name in ("length_normalisation", "end_margin", "certain_end", "stop_margin", "labels_per_second"):
            value = getattr(self, name)
            if math.isnan(value) or value < 0:
                raise BadInputError(f"{name} must not be negative, got {value!r}")
        if not 0 <= self.ctc_weight <= 1:
            raise BadInputError(f"ctc_weight must lie between 0 and 1, got {self.ctc_weight!r}")

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether the LM that is added, and the one that is subtracted, score the end."""
        return self.lm_eos, self.lm_eos if self.subtracted_eos is None else self.subtracted_eos


class Open(NamedTuple):
    """K label sequences of each of B utterances that have not ended; a place not in use has asr = −inf."""

    asr: Tensor  # (B, K)
    lm: Tensor
    subtracted: Tensor
    phrases: Tensor
    labels: Tensor  # (B, K, U), the labels so far
    repeats: Tensor  # (B, K, ·), what the repetition guards remember

    def take(self, index: Tensor) -> Open:
        wide = index[:, :, None]
        return Open(
            *(x.gather(1, index) for x in self[:4]),
            *(x.gather(1, wide.expand(-1, -1, x.shape[2])) for x in self[4:]),
        )


class Ended(NamedTuple):
    """The best N ended sequences of each utterance; a place not in use has rank = −inf."""

    rank: Tensor  # (B, N)
    asr: Tensor
    lm: Tensor
    subtracted: Tensor
    phrases: Tensor
    length: Tensor
    labels: Tensor  # (B, N, U)


class AttentionSearch:
    """A search over one model with one fusion. Call it on what `model.encode` gives.

    Args:
        model: The attention decoder.
        fusion: What is added and subtracted, with which weights.
        options: How to search.
    """

    def __init__(
        self, model: AttentionDecoder, fusion: Fusion | None = None, options: AttentionOptions | None = None
    ) -> None:
        if model.tokens.eos is None:
            raise BadInputError("this model's token inventory has no eos; it cannot end a sentence")
        self.host = model
        self.options = options or AttentionOptions()
        self.joint = JointDecoder(model, self.options.ctc_weight) if self.options.ctc_weight else None
        self.model: AttentionDecoder = self.joint or model
        self.eos: int = model.tokens.eos
        self.fusion = fusion or Fusion()
        if self.options.look_back and not isinstance(model, LimitedAttention):
            raise BadInputError("look_back limits one attention that knows where it looked; this model has none, use 0")
        self.weights = self.fusion.weights
        self.lm, self.subtracted, self.phrases = self.fusion.scorers(model)
        self.guards = self._repetition_guards()
        self.shared = (
            self.subtracted if isinstance(self.subtracted, SharedStep) and self.subtracted.host is self.model else None
        )

    def _repetition_guards(self) -> list[RepetitionGuard]:
        o, size = self.options, len(self.model.tokens)
        looks: list[tuple[int, ...]] = [(), o.repeat_ignores] if o.repeat_ignores else [()]
        guards = [RepetitionGuard(o.max_repeats, o.repeat_span, size, ids, self.model.device) for ids in looks]
        return guards if o.max_repeats else []

    @torch.no_grad()
    def __call__(self, memory: State, limits: Tensor | None = None) -> list[NBest]:
        """The memory of B utterances to one n-best list each; limits (B,) caps each utterance's labels."""
        if self.options.look_back and isinstance(self.host, LimitedAttention):
            memory = self.host.looking_back(memory, self.options.look_back)
        if self.joint is not None:
            memory = self.joint.prepared(memory)
        rows, states = self._start(memory)
        B, K, N = len(rows[0]), self.options.beam, self.options.nbest or self.options.beam
        limit = torch.full((B,), self.options.max_length, device=rows[0].device)
        if limits is not None:
            limit = torch.minimum(limit, limits.to(limit.device))
        open_ = _only_empty(rows[0], K, self.guards)
        ended = _none_ended(rows[0], N)
        order = torch.arange(B, device=rows[0].device)  # which utterance each row of the batch is
        over = torch.zeros_like(order, dtype=torch.bool)
        results: dict[int, Ended] = {}

        for step in range(self.options.max_length + 1):
            places = K if step else 1  # sequences of each utterance that rows and states hold
            scores = self._candidates(open_, rows, step, limit)
            open_, ended, parents, labels = self._advance(open_, ended, rows, scores, step, over)
            over = over | self._over(open_, ended, step, limit)
            if self._may_look(over, step):
                finished = int(over.sum())
                if finished == len(over):
                    break
                if self._worth_retiring(over, finished):
                    self._retire(results, order, ended, over)
                    keep = (~over).nonzero().squeeze(1)
                    order, limit, over = order[keep], limit[keep], over[keep]
                    open_, ended = Open(*(x[keep] for x in open_)), Ended(*(x[keep] for x in ended))
                    memory, labels, parents = select(memory, keep), labels[keep], parents[keep]
                    states = self._keep_utterances(states, keep, places)
            rows, states = self._step(memory, states, places, parents, labels)
        self._retire(results, order, ended, torch.ones_like(order, dtype=torch.bool))
        return [self._read_out(results[b]) for b in range(B)]

    # --- the model and the scorers, moved on together ---------------------------------------------------------------

    def _start(self, memory: State) -> tuple[Rows, States]:
        asr, own = self.model.start(memory)
        scorers = (self.lm, self.subtracted, self.phrases)
        (lm, lm_state), (sub, sub_state), (phrases, place) = (s.start(len(asr)) for s in scorers)
        return (asr, lm, sub, phrases), (own, lm_state, sub_state, place)

    def _step(self, memory: State, states: States, places: int, parents: Tensor, labels: Tensor) -> tuple[Rows, States]:
        """Rows (B·K, V) of sequences one label longer: a parent (B, K) among its utterance's places, a label (B, K)."""
        index = (parents + torch.arange(len(parents), device=parents.device)[:, None] * places).flatten()
        own, lm, sub, place = (select(state, index) for state in states)
        flat = labels.flatten()
        lm_rows, lm = self.lm.score(flat, lm)
        phrases, place = self.phrases.score(flat, place)
        if self.shared is not None:
            (asr, own), (sub_rows, sub) = self.shared.step_both(flat, own, sub, memory)
        else:
            asr, own = self.model.step(flat, own, memory)
            sub_rows, sub = self.subtracted.score(flat, sub)
        return (asr, lm_rows, sub_rows, phrases), (own, lm, sub, place)

    @staticmethod
    def _keep_utterances(states: States, keep: Tensor, places: int) -> States:
        index = (keep[:, None] * places + torch.arange(places, device=keep.device)).flatten()
        model, lm, subtracted, phrases = (select(s, index) for s in states)
        return model, lm, subtracted, phrases

    # --- one step of the beam ---------------------------------------------------------------------------------------

    def _candidates(self, open_: Open, rows: Rows, step: int, limit: Tensor) -> Tensor:
        """The fused score (B, P, V) of every continuation; what a guard forbids is −inf. P is 1 at the first step."""
        B = len(open_.asr)
        asr = rows[0]
        gain = self._fused(rows, 1.0).view(B, -1, asr.shape[1])
        end = self._fused(self._ends(rows), 0.0).view(B, -1)
        total = self._fused(open_[:4], float(step))[:, : gain.shape[1]]
        going_on, ending = total.masked_fill((step >= limit)[:, None], -torch.inf), total
        if min(self.options.end_margin, self.options.certain_end) < math.inf:
            best = torch.maximum(_most(asr[:, : self.eos]), _most(asr[:, self.eos + 1 :]))
            lead = (asr[:, self.eos] - best).view_as(end)  # of the end over the best label, in nats
            ending = ending.masked_fill((lead < -self.options.end_margin) & (step < limit)[:, None], -torch.inf)
            going_on = going_on.masked_fill(lead > self.options.certain_end, -torch.inf)
        scores = going_on[:, :, None] + gain  # what forbids every label of a hypothesis costs nothing per label
        self._forbid_repeats(scores, open_)
        scores[:, :, self.eos] = ending + end
        return scores

    def _fused(self, parts: Rows, length: float) -> Tensor:
        """The fused score of what model, LM, subtracted LM and phrases say."""
        asr, lm, subtracted, phrases = parts
        return fuse(asr, lm, subtracted, length, self.weights, phrases)

    def _ends(self, rows: Rows) -> Rows:
        """The score of the end (n,), by the model, the LM, what is subtracted, and the phrases, which always end."""
        asr = rows[0][:, self.eos]
        scorers = zip((self.lm, self.subtracted, self.phrases), rows[1:], (*self.options.ends, True), strict=True)
        lm, subtracted, phrases = (s.finish(row) if scored else torch.zeros_like(asr) for s, row, scored in scorers)
        return asr, lm, subtracted, phrases

    def _advance(
        self, open_: Open, ended: Ended, rows: Rows, scores: Tensor, step: int, over: Tensor
    ) -> tuple[Open, Ended, Tensor, Tensor]:
        """Moves continuations that end, and are among the K best, to the ended; keeps the K best others open.

        An utterance that is over (B,) has its ended hypotheses already, however long others of its batch go on.
        """
        B, P, V = scores.shape
        K = self.options.beam
        best, parents, labels = best_pairs(scores, min(2 * K, P * V), two_stages=scores.is_cuda)
        is_end = labels == self.eos
        among_best = torch.arange(best.shape[1], device=best.device) < K
        ends = is_end & among_best & (best > -torch.inf) & ~over[:, None]
        if ends.is_cuda or bool(ends.any()):  # on CUDA looking would take longer
            ended = self._collect(open_, ended, rows, parents, best, ends, step)

        order = torch.where(is_end, -torch.inf, best).topk(min(K, best.shape[1]), dim=1)
        alive = order.values > -torch.inf
        parents, labels = (_pad(x.gather(1, order.indices), K) for x in (parents, labels))
        alive = _pad(alive, K)
        flat = (parents + torch.arange(B, device=parents.device)[:, None] * P).flatten()
        taken = open_.take(parents)
        lifted = [_pick(row, flat, labels) for row in rows]
        asr = (taken.asr + lifted[0]).masked_fill(~alive, -torch.inf)
        # in a place not in use only asr is −inf: a component of −inf there would make NaN of the sum
        lm, subtracted, phrases = (
            (old + new).masked_fill(~alive, 0) for old, new in zip(taken[1:4], lifted[1:], strict=True)
        )
        repeats = self._count_repeats(taken, labels)
        open_ = Open(asr, lm, subtracted, phrases, torch.cat([taken.labels, labels[:, :, None]], 2), repeats)
        return open_, ended, parents, labels

    def _collect(
        self,
        open_: Open,
        ended: Ended,
        rows: Rows,
        parents: Tensor,
        scores: Tensor,
        ends: Tensor,
        step: int,
    ) -> Ended:
        """The N best of those ended before and those that end now."""
        B, M = parents.shape
        P = len(rows[0]) // B
        flat = (parents + torch.arange(B, device=parents.device)[:, None] * P).flatten()
        finals = [end[flat] for end in self._ends(rows)]
        taken = open_.take(parents)
        parts = [old + new.view(B, M) for old, new in zip(taken[:4], finals, strict=True)]
        rank = (scores / (step + 1) ** self.options.length_normalisation).masked_fill(~ends, -torch.inf)
        longer = torch.nn.functional.pad(ended.labels, (0, step - ended.labels.shape[2]))
        lengths = torch.full_like(rank, step)
        both = [torch.cat(pair, 1) for pair in zip(ended[:6], (rank, *parts, lengths), strict=True)]
        order = both[0].topk(ended.rank.shape[1], dim=1).indices
        labels = torch.cat([longer, taken.labels], 1).gather(1, order[:, :, None].expand(-1, -1, step))
        rank, asr, lm, subtracted, phrases, length = (x.gather(1, order) for x in both)
        return Ended(rank, asr, lm, subtracted, phrases, length, labels)

    def _over(self, open_: Open, ended: Ended, step: int, limit: Tensor) -> Tensor:
        """Which utterances (B,) are finished: at their limit, or with all open hypotheses far behind the best ended.

        The best ended one is given the score that it would have at the open ones' length: a sum falls with each label,
        so with length normalisation a short hypothesis must not end the search for longer ones.
        """
        best_open = self._fused(open_[:4], float(step + 1)).amax(1)
        best_ended = ended.rank.amax(1) * math.pow(step + 2, self.options.length_normalisation)
        behind = best_open < best_ended - self.options.stop_margin
        over = (step >= limit) | behind | (best_open == -torch.inf)
        if self.options.stop_after:
            over |= (ended.rank > -torch.inf).sum(1) >= self.options.stop_after
        return over

    @staticmethod
    def _may_look(over: Tensor, step: int) -> bool:
        """Reading a flag waits for the device, so on CUDA it is done now and then only."""
        return not over.is_cuda or step % CHECK_EVERY == CHECK_EVERY - 1

    @staticmethod
    def _worth_retiring(over: Tensor, finished: int) -> bool:
        """Taking utterances out of the batch copies the others: on CUDA only for a good part of them."""
        return finished > 0 and (not over.is_cuda or finished * RETIRE_SHARE >= len(over))

    # --- repetition -------------------------------------------------------------------------------------------------

    def _remembered(self, memory: Tensor) -> tuple[Tensor, ...]:
        """The guards' memory (B, K, ·), guard by guard."""
        return memory.split([guard.width for guard in self.guards], dim=2)  # type: ignore[no-untyped-call, no-any-return]

    def _count_repeats(self, taken: Open, labels: Tensor) -> Tensor:
        """What the repetition guards remember after one more label (B, K)."""
        if not self.guards:
            return taken.repeats
        parts = zip(self.guards, self._remembered(taken.repeats), strict=True)
        return torch.cat([guard.advance(memory, labels) for guard, memory in parts], 2)

    def _forbid_repeats(self, scores: Tensor, open_: Open) -> None:
        """Writes −inf for every label that would be one repetition too many."""
        memories = self._remembered(open_.repeats[:, : scores.shape[1]]) if self.guards else ()
        for guard, memory in zip(self.guards, memories, strict=True):
            guard.forbid(scores, memory)

    # --- results ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _retire(results: dict[int, Ended], order: Tensor, ended: Ended, which: Tensor) -> None:
        """Takes the ended hypotheses of those utterances to the CPU, all at once."""
        chosen = which.nonzero().squeeze(1)
        found = Ended(*(x[chosen].cpu() for x in ended))
        for row, utterance in enumerate(order[chosen].tolist()):
            results[utterance] = Ended(*(x[row] for x in found))

    @staticmethod
    def _read_out(ended: Ended) -> NBest:
        rank, asr, lm, subtracted, phrases, lengths, labels = (x.tolist() for x in ended)
        return [
            Hypothesis(
                tokens=tuple(labels[k][: int(lengths[k])]),
                score=rank[k],
                scores=Scores(asr[k], lm[k], subtracted[k], float(lengths[k]), phrases[k]),
            )
            for k in range(len(rank))
            if rank[k] > -math.inf
        ]


def _only_empty(rows: Tensor, K: int, guards: list[RepetitionGuard]) -> Open:
    B = len(rows)
    zeros = rows.new_zeros(B, K)
    asr = torch.full_like(zeros, -torch.inf)
    asr[:, 0] = 0
    ids = torch.zeros(B, K, 0, dtype=torch.long, device=rows.device)
    return Open(asr, zeros, zeros, zeros, ids, torch.cat([ids, *(guard.start(B, K) for guard in guards)], 2))


def _none_ended(rows: Tensor, N: int) -> Ended:
    B = len(rows)
    zeros = rows.new_zeros(B, N)
    labels = torch.zeros(B, N, 0, dtype=torch.long, device=rows.device)
    return Ended(torch.full_like(zeros, -torch.inf), zeros, zeros, zeros, zeros, zeros, labels)


def best_pairs(scores: Tensor, count: int, two_stages: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The best of all continuations (B, P, V) of each utterance: scores, parents and labels, (B, count) each.

    In two stages the best of each hypothesis are found first, then the best of those: on CUDA many rows of V take less
    time than few of P·V.
    """
    B, _, V = scores.shape
    if not two_stages:
        best, index = _largest(scores.view(B, -1), count)
        return best, index // V, index % V
    each = min(count, V)
    values, labels = scores.topk(each, dim=2)
    best, index = values.flatten(1).topk(count, dim=1)
    return best, index // each, labels.flatten(1).gather(1, index)


def _largest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` of each row (B, N), and where they stand.

    Of long rows only the `count` blocks with the largest maxima are looked through: what is in no such block is no
    larger than each of their maxima. Finding maxima takes a tenth of the time that `topk` takes for as many numbers.
    """
    B, N = rows.shape
    blocks = N // BLOCK
    if blocks < 4 * count:
        return tuple(rows.topk(count, dim=1))  # type: ignore[return-value]
    whole = rows[:, : blocks * BLOCK].view(B, blocks, BLOCK)
    chosen = whole.amax(2).topk(count, dim=1).indices
    places = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    if N % BLOCK:
        places = torch.cat([places, torch.arange(blocks * BLOCK, N).expand(B, -1)], 1)
    best, at = rows.gather(1, places).topk(count, dim=1)
    return best, places.gather(1, at)


def _most(rows: Tensor) -> Tensor:
    """The largest of each row (n, ·), −inf where it is empty."""
    return rows.amax(1) if rows.shape[1] else rows.new_full((len(rows),), -torch.inf)


def _pick(rows: Tensor, places: Tensor, labels: Tensor) -> Tensor:
    """rows[place, label] (B, K) for each of B·K places; rows may be (·, 1), the same for every label."""
    if rows.shape[1] == 1:
        return rows[places, 0].view_as(labels)
    return rows[places, labels.flatten()].view_as(labels)


def _pad(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))
