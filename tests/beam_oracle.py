"""Beam searches as plainly as they can be written: one utterance, one hypothesis and one label at a time.

A beam is a dictionary of label tuples. Every network is run from its start for every sequence, in float64. What the
searches of `ilme.search` document is what stands here, so narrow beams can be compared too: brute force, which keeps
everything, cannot see pruning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from ilme.fusion import fuse
from tests.oracle import smooth

NEVER = -math.inf


@dataclass(frozen=True)
class Found:
    """One hypothesis and its unweighted components; `path` is what a transducer's search adds over alignments."""

    asr: float
    path: float
    lm: float = 0.0
    subtracted: float = 0.0
    phrases: float = 0.0
    times: tuple[int, ...] = ()


class Follower:
    """The rows of a scorer after any label sequence, kept by sequence, smoothed; None scores everything 0."""

    def __init__(self, scorer, size, share=0.0):
        self.scorer, self.share = scorer, share
        self.known = {} if scorer is None else {(): scorer.start(1)}
        self.nothing = [0.0] * size

    def rows(self, labels):
        if self.scorer is None:
            return self.nothing
        if labels not in self.known:
            self.rows(labels[:-1])
            self.known[labels] = self.scorer.score(torch.tensor([labels[-1]]), self.known[labels[:-1]][1])
        row = self.known[labels][0][0].tolist()
        return [smooth(p, v, self.scorer.tokens, self.share) for v, p in enumerate(row)]

    def end(self, labels):
        if self.scorer is None:
            return 0.0
        self.rows(labels)
        end = self.scorer.finish(self.known[labels][0])[0].item()
        return smooth(end, self.scorer.tokens.eos, self.scorer.tokens, self.share)


def repeats(labels, most, span, passed_over=()):
    """Whether the last label makes a run of up to `span` labels stand more than `most` times in a row."""
    if not most or labels[-1] in passed_over:
        return False
    heard = [label for label in labels if label not in passed_over]
    for size in range(1, span + 1):
        tail = heard[-size * (most + 1) :]
        if len(tail) == size * (most + 1) and tail == tail[:size] * (most + 1):
            return True
    return False


def log_add(a, b):
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def merge(beam, labels, found):
    """Adds alignments of a sequence to those that are there."""
    if labels in beam:
        there = beam[labels]
        found = replace(there, path=log_add(there.path, found.path), asr=log_add(there.asr, found.asr))
    beam[labels] = found


class Judge:
    """The scorers of a fusion, and how hypotheses compare with it."""

    def __init__(self, fusion, size, options):
        self.weights, self.options = fusion.weights, options
        self.lm = Follower(fusion.lm if fusion.weights.lm else None, size)
        share = fusion.weights.background
        self.subtracted = Follower(fusion.subtracted if fusion.weights.subtracted else None, size, share)
        self.phrases = Follower(fusion.phrases if fusion.weights.phrases else None, size)

    def longer(self, found, labels, v, asr, path=0.0, times=()):
        """The sequence `labels`, found so, with v after it."""
        return Found(
            asr,
            path,
            found.lm + self.lm.rows(labels)[v],
            found.subtracted + self.subtracted.rows(labels)[v],
            found.phrases + self.phrases.rows(labels)[v],
            times,
        )

    def ended(self, found, labels):
        """With the ends that count: the subtracted LM's as the external one's where nothing else is said; phrases'."""
        options = self.options
        also = options.lm_eos if options.subtracted_eos is None else options.subtracted_eos
        return replace(
            found,
            lm=found.lm + (self.lm.end(labels) if options.lm_eos else 0.0),
            subtracted=found.subtracted + (self.subtracted.end(labels) if also else 0.0),
            phrases=found.phrases + self.phrases.end(labels),
        )

    def fused(self, labels, found, own):
        return fuse(own, found.lm, found.subtracted, float(len(labels)), self.weights, found.phrases)

    def total(self, labels, found):
        return self.fused(labels, found, found.path)

    def best(self, beam, count):
        return dict(sorted(beam.items(), key=lambda item: -self.total(*item))[:count])

    def floor(self, beam):
        """The score of the last that a full beam holds."""
        totals = sorted((self.total(*item) for item in beam.items()), reverse=True)
        return totals[self.options.beam - 1] if len(totals) >= self.options.beam else NEVER

    def list(self, beam):
        """The n-best list of those that have ended."""
        beam = {y: self.ended(found, y) for y, found in beam.items()}
        most = self.options.nbest or self.options.beam
        return [(y, self.total(y, found), found) for y, found in self.best(beam, most).items()]

    def allows(self, labels):
        return not repeats(labels, self.options.max_repeats, self.options.repeat_span)


def assert_same(nbest, expected):
    """The list of a search is the list of one of these, component by component."""
    assert [h.tokens for h in nbest] == [labels for labels, _, _ in expected]
    assert [h.score for h in nbest] == pytest.approx([score for _, score, _ in expected], abs=1e-9)
    for hypothesis, (labels, _, parts) in zip(nbest, expected, strict=True):
        for name in ("asr", "lm", "subtracted", "phrases"):
            assert getattr(hypothesis.scores, name) == pytest.approx(getattr(parts, name), abs=1e-9)
        assert hypothesis.scores.length == len(labels)


# --- transducers ------------------------------------------------------------------------------------------------------


class Predictions:
    """The language terms of a transducer after any label sequence."""

    def __init__(self, model):
        self.model, self.known = model, {(): model.start(1)}

    def __call__(self, labels):
        if labels not in self.known:
            self(labels[:-1])
            self.known[labels] = self.model.predict(torch.tensor([labels[-1]]), self.known[labels[:-1]][1])
        return self.known[labels][0]


def transducer_beam(model, f, fusion, options, limit=math.inf):
    """The n-best list of one utterance, f (T, J), as (labels, score, Found), best first."""
    weights, blank, size = fusion.weights, model.tokens.blank, len(model.tokens)
    judge, prediction = Judge(fusion, size, options), Predictions(model)
    beam = {(): Found(0.0, 0.0)}
    for t in range(len(f)):
        done = {}
        open_ = beam
        for symbols in range(options.max_symbols + 1):
            rows = {y: model.join(f[t : t + 1], prediction(y))[0].double().log_softmax(-1).tolist() for y in open_}
            for y, found in open_.items():
                p = rows[y][blank]
                path = found.path + (1 + weights.lm if options.blank_aware else 1) * p
                merge(done, y, replace(found, path=path, asr=found.asr + p))
            if symbols == options.max_symbols:
                break
            longer = {}
            for y, found in open_.items():
                if len(y) >= limit:
                    continue
                aware = weights.lm * math.log(-math.expm1(rows[y][blank])) if options.blank_aware else 0.0
                for v in range(size):
                    if v != blank and judge.allows((*y, v)):
                        asr, path = found.asr + rows[y][v], found.path + rows[y][v] + aware
                        longer[(*y, v)] = judge.longer(found, y, v, asr, path, (*found.times, t))
            floor = judge.floor(done)
            open_ = {y: x for y, x in judge.best(longer, options.beam).items() if judge.total(y, x) > floor}
        beam = judge.best(done, options.beam)
    return judge.list(beam)


def tdt_beam(model, f, fusion, options, limit=math.inf):
    """The n-best list of one utterance, f (T, J), of a transducer with durations, as (labels, score, Found)."""
    weights, blank, size = fusion.weights, model.tokens.blank, len(model.tokens)
    judge, prediction = Judge(fusion, size, options), Predictions(model)
    durations, beams = model.durations, {0: {(): Found(0.0, 0.0)}}

    def arrive(there, new):
        for y, found in new.items():
            merge(there, y, found)
        return judge.best(there, options.beam)

    def longer(d, t, open_, units, wait):
        """The best that are one label longer and take this duration."""
        found = {}
        for y, parent in open_.items():
            aware = weights.lm * math.log(-math.expm1(units[y][blank])) if options.blank_aware else 0.0
            for v in range(size) if len(y) < limit else ():
                if v != blank and judge.allows((*y, v)):
                    p = wait[y][d] + units[y][v]
                    times = (*parent.times, t)
                    found[(*y, v)] = judge.longer(parent, y, v, parent.asr + p, parent.path + p + aware, times)
        return judge.best(found, options.beam)

    for t in range(len(f)):
        open_ = beams.pop(t, {})
        ahead = {t + n: beams.get(t + n, {}) for n in range(1, max(durations) + 1)}
        for symbols in range(options.max_symbols + 1):
            if not open_:
                break
            both = {y: model.join_durations(f[t : t + 1], prediction(y)) for y in open_}
            units = {y: x[0].double().log_softmax(-1).tolist() for y, (x, _) in both.items()}
            wait = {y: x[0].double().log_softmax(-1).tolist() for y, (_, x) in both.items()}
            for d, frames in enumerate(durations):
                closed = {}
                for y, found in open_.items():
                    p, aware = units[y][blank], weights.lm if options.blank_aware else 0.0
                    path, asr = found.path + wait[y][d] + (1 + aware) * p, found.asr + wait[y][d] + p
                    closed[y] = replace(found, path=path, asr=asr)
                if frames:  # blank takes time
                    ahead[t + frames] = arrive(ahead[t + frames], closed)
            if symbols == options.max_symbols:
                break
            for d, frames in enumerate(durations):
                if frames:
                    ahead[t + frames] = arrive(ahead[t + frames], longer(d, t, open_, units, wait))
            if 0 not in durations:
                break
            floor = min(map(judge.floor, ahead.values()))
            stays = longer(durations.index(0), t, open_, units, wait)
            open_ = {y: found for y, found in stays.items() if judge.total(y, found) > floor}
        beams = ahead
    everybody = {}
    for at in sorted(beams):
        for y, found in beams[at].items():
            merge(everybody, y, found)
    return judge.list(judge.best(everybody, options.beam))


# --- CTC --------------------------------------------------------------------------------------------------------------


def ctc_beam(model, h, fusion, options, limit=math.inf):
    """The n-best list of one utterance, h (T, E), as (labels, score, Found), best first."""
    blank, size = model.tokens.blank, len(model.tokens)
    judge = Judge(fusion, size, options)

    def add(sums, key, value):
        sums[key] = (
            value if sums.get(key, NEVER) == NEVER else log_add(sums[key], value) if value > NEVER else sums[key]
        )

    beam = {(): Found(0.0, 0.0)}
    sums = {((), "blank"): 0.0}  # (labels, what the alignments end in) to the log-sum over them
    for t, row in enumerate(model.emit(h).double().log_softmax(-1).tolist()):
        new, times = {}, {}
        for y, found in beam.items():
            in_blank, in_label = sums.get((y, "blank"), NEVER), sums.get((y, "label"), NEVER)
            times[y] = found.times
            for before in (in_blank, in_label):
                add(new, (y, "blank"), before + row[blank])
            if y:
                add(new, (y, "label"), in_label + row[y[-1]])
        for y, found in beam.items():
            if len(y) >= limit:
                continue
            for v in range(size):
                if v == blank or not judge.allows((*y, v)):
                    continue
                add(new, ((*y, v), "label"), sums.get((y, "blank"), NEVER) + row[v])
                if not y or v != y[-1]:
                    add(new, ((*y, v), "label"), sums.get((y, "label"), NEVER) + row[v])
                times.setdefault((*y, v), (*found.times, t))
        found = {}
        for y in times:
            ways = [new.get((y, end), NEVER) for end in ("blank", "label")]
            if max(ways) == NEVER:
                continue
            asr = max(ways) if min(ways) == NEVER else log_add(*ways)
            scorers = (judge.lm, judge.subtracted, judge.phrases)
            parts = [sum(s.rows(y[:u])[y[u]] for u in range(len(y))) for s in scorers]
            found[y] = Found(asr, asr, *parts, times[y])
        beam = judge.best(found, options.beam)
        sums = {key: value for key, value in new.items() if key[0] in beam}
    return judge.list(beam)


# --- attention decoders -----------------------------------------------------------------------------------------------


def attention_beam(model, memory, fusion, options, limit=math.inf):
    """The n-best list of the one utterance in `memory`, as (labels, score, Found), best first."""
    eos, size = model.tokens.eos, len(model.tokens)
    judge = Judge(fusion, size, options)
    heard = {(): model.start(memory)}
    alpha, keep = options.length_normalisation, options.nbest or options.beam
    limit = min(limit, options.max_length)

    def rows_of(labels):
        if labels not in heard:
            rows_of(labels[:-1])
            heard[labels] = model.step(torch.tensor([labels[-1]]), heard[labels[:-1]][1], memory)
        return heard[labels][0][0].tolist()

    def total(labels, found):
        return judge.fused(labels, found, found.asr)

    def forbidden(labels):
        looks = [(), options.repeat_ignores] if options.repeat_ignores else [()]
        return any(repeats(labels, options.max_repeats, options.repeat_span, ignored) for ignored in looks)

    open_ = {(): Found(0.0, 0.0)}
    ended = {}
    for step in range(limit + 1):
        candidates = []  # (score, labels, Found, whether it ends)
        for y, found in open_.items():
            rows = rows_of(y)
            lead = rows[eos] - max(p for v, p in enumerate(rows) if v != eos)
            if lead >= -options.end_margin or step == limit:
                end = judge.ended(found, y)
                end = replace(end, asr=end.asr + rows[eos])
                candidates.append((total(y, end), y, end, True))
            if step == limit or lead > options.certain_end:
                continue
            for v in range(size):
                if v == eos or forbidden((*y, v)):
                    continue
                more = judge.longer(found, y, v, found.asr + rows[v])
                candidates.append((total((*y, v), more), (*y, v), more, False))
        candidates.sort(key=lambda c: -c[0])
        for score, y, found, ends in candidates[: options.beam]:
            if ends:
                ended[y] = (score / (len(y) + 1) ** alpha, found)
        ended = dict(sorted(ended.items(), key=lambda item: -item[1][0])[:keep])
        open_ = {y: found for _, y, found, ends in [c for c in candidates if not c[3]][: options.beam]}
        if not open_ or (options.stop_after and len(ended) >= options.stop_after):
            break
        if ended:  # the best ended one, as it would score at the length that the open ones would end with
            to_beat = max(rank for rank, _ in ended.values()) * (step + 2) ** alpha
            if max(total(y, found) for y, found in open_.items()) < to_beat - options.stop_margin:
                break
    return [(y, rank, found) for y, (rank, found) in ended.items()]
