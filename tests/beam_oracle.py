"""Beam searches as plainly as they can be written: one utterance, one hypothesis and one label at a time.

A beam is a dictionary of label tuples. Every network is run from its start for every sequence, in float64. What the
searches of `ilme.search` document is what stands here, so narrow beams can be compared too: brute force, which keeps
everything, cannot see pruning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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


def _ended(found, labels, lm, subtracted, phrases, options):
    """With the ends that count: the subtracted LM's as the external one's where nothing else is said, the phrases'."""
    also = options.lm_eos if options.subtracted_eos is None else options.subtracted_eos
    return replace(
        found,
        lm=found.lm + (lm.end(labels) if options.lm_eos else 0.0),
        subtracted=found.subtracted + (subtracted.end(labels) if also else 0.0),
        phrases=found.phrases + phrases.end(labels),
    )


# --- transducers ------------------------------------------------------------------------------------------------------


def transducer_beam(model, f, fusion, options, limit=math.inf):
    """The n-best list of one utterance, f (T, J), as (labels, score, Found), best first."""
    weights, blank, size = fusion.weights, model.tokens.blank, len(model.tokens)
    lm = Follower(fusion.lm if weights.lm else None, size)
    subtracted = Follower(fusion.subtracted if weights.subtracted else None, size, weights.background)
    phrases = Follower(fusion.phrases if weights.phrases else None, size)
    predictions = {(): model.start(1)}

    def prediction(labels):
        if labels not in predictions:
            prediction(labels[:-1])
            predictions[labels] = model.predict(torch.tensor([labels[-1]]), predictions[labels[:-1]][1])
        return predictions[labels][0]

    def total(labels, found):
        return fuse(found.path, found.lm, found.subtracted, float(len(labels)), weights, found.phrases)

    def best(beam, count):
        return dict(sorted(beam.items(), key=lambda item: -total(*item))[:count])

    beam = {(): Found(0.0, 0.0)}
    for t in range(len(f)):
        done = {}
        open_ = beam
        for symbols in range(options.max_symbols + 1):
            rows = {y: model.join(f[t : t + 1], prediction(y))[0].double().log_softmax(-1).tolist() for y in open_}
            for y, found in open_.items():
                p = rows[y][blank]
                closed = replace(
                    found, path=found.path + (1 + weights.lm if options.blank_aware else 1) * p, asr=found.asr + p
                )
                if y in done:
                    there = done[y]
                    closed = replace(there, path=log_add(there.path, closed.path), asr=log_add(there.asr, closed.asr))
                done[y] = closed
            if symbols == options.max_symbols:
                break
            totals = sorted((total(y, found) for y, found in done.items()), reverse=True)
            floor = totals[options.beam - 1] if len(totals) >= options.beam else NEVER
            longer = {}
            for y, found in open_.items():
                if len(y) >= limit:
                    continue
                aware = weights.lm * math.log(-math.expm1(rows[y][blank])) if options.blank_aware else 0.0
                for v in range(size):
                    if v == blank or repeats((*y, v), options.max_repeats, options.repeat_span):
                        continue
                    longer[(*y, v)] = Found(
                        found.asr + rows[y][v],
                        found.path + rows[y][v] + aware,
                        found.lm + lm.rows(y)[v],
                        found.subtracted + subtracted.rows(y)[v],
                        found.phrases + phrases.rows(y)[v],
                        (*found.times, t),
                    )
            open_ = {y: found for y, found in best(longer, options.beam).items() if total(y, found) > floor}
        beam = best(done, options.beam)
    beam = {y: _ended(found, y, lm, subtracted, phrases, options) for y, found in beam.items()}
    return [(y, total(y, found), found) for y, found in best(beam, options.nbest or options.beam).items()]


def tdt_beam(model, f, fusion, options, limit=math.inf):
    """The n-best list of one utterance, f (T, J), of a transducer with durations, as (labels, score, Found)."""
    weights, blank, size = fusion.weights, model.tokens.blank, len(model.tokens)
    lm = Follower(fusion.lm if weights.lm else None, size)
    subtracted = Follower(fusion.subtracted if weights.subtracted else None, size, weights.background)
    phrases = Follower(fusion.phrases if weights.phrases else None, size)
    predictions = {(): model.start(1)}
    farthest = max(model.durations)

    def prediction(labels):
        if labels not in predictions:
            prediction(labels[:-1])
            predictions[labels] = model.predict(torch.tensor([labels[-1]]), predictions[labels[:-1]][1])
        return predictions[labels][0]

    def total(labels, found):
        return fuse(found.path, found.lm, found.subtracted, float(len(labels)), weights, found.phrases)

    def best(beam, count):
        return dict(sorted(beam.items(), key=lambda item: -total(*item))[:count])

    def arrive(there, new):
        for y, found in new.items():
            if y in there:
                old = there[y]
                found = replace(old, path=log_add(old.path, found.path), asr=log_add(old.asr, found.asr))
            there[y] = found
        return best(there, options.beam)

    beams = {0: {(): Found(0.0, 0.0)}}
    for t in range(len(f)):
        open_ = beams.pop(t, {})
        ahead = {t + n: beams.get(t + n, {}) for n in range(1, farthest + 1)}
        for symbols in range(options.max_symbols + 1):
            if not open_:
                break
            both = {y: model.join_durations(f[t : t + 1], prediction(y)) for y in open_}
            units = {y: x[0].double().log_softmax(-1).tolist() for y, (x, _) in both.items()}
            wait = {y: x[0].double().log_softmax(-1).tolist() for y, (_, x) in both.items()}
            for d, frames in enumerate(model.durations):
                if not frames:
                    continue
                closed = {}
                for y, found in open_.items():
                    p, aware = units[y][blank], weights.lm if options.blank_aware else 0.0
                    path, asr = found.path + wait[y][d] + (1 + aware) * p, found.asr + wait[y][d] + p
                    closed[y] = replace(found, path=path, asr=asr)
                ahead[t + frames] = arrive(ahead[t + frames], closed)
            if symbols == options.max_symbols:
                break

            def longer(d, open_=open_, units=units, wait=wait, t=t):
                found = {}
                for y, parent in open_.items():
                    if len(y) >= limit:
                        continue
                    aware = weights.lm * math.log(-math.expm1(units[y][blank])) if options.blank_aware else 0.0
                    for v in range(size):
                        if v == blank or repeats((*y, v), options.max_repeats, options.repeat_span):
                            continue
                        found[(*y, v)] = Found(
                            parent.asr + wait[y][d] + units[y][v],
                            parent.path + wait[y][d] + units[y][v] + aware,
                            parent.lm + lm.rows(y)[v],
                            parent.subtracted + subtracted.rows(y)[v],
                            times=(*parent.times, t),
                            phrases=parent.phrases + phrases.rows(y)[v],
                        )
                return best(found, options.beam)

            for d, frames in enumerate(model.durations):
                if frames:
                    ahead[t + frames] = arrive(ahead[t + frames], longer(d))
            if 0 not in model.durations:
                break
            floors = [
                sorted((total(*item) for item in beam.items()), reverse=True)[options.beam - 1]
                if len(beam) >= options.beam
                else NEVER
                for beam in ahead.values()
            ]
            stays = longer(model.durations.index(0))
            open_ = {y: found for y, found in stays.items() if total(y, found) > min(floors)}
        beams = ahead
    everybody = {}
    for at in sorted(beams):
        for y, found in beams[at].items():
            if y in everybody:
                old = everybody[y]
                found = replace(old, path=log_add(old.path, found.path), asr=log_add(old.asr, found.asr))
            everybody[y] = found
    beam = best(everybody, options.beam)
    beam = {y: _ended(found, y, lm, subtracted, phrases, options) for y, found in beam.items()}
    return [(y, total(y, found), found) for y, found in best(beam, options.nbest or options.beam).items()]


# --- CTC --------------------------------------------------------------------------------------------------------------


def ctc_beam(model, h, fusion, options, limit=math.inf):
    """The n-best list of one utterance, h (T, E), as (labels, score, Found), best first."""
    weights, blank, size = fusion.weights, model.tokens.blank, len(model.tokens)
    lm = Follower(fusion.lm if weights.lm else None, size)
    subtracted = Follower(fusion.subtracted if weights.subtracted else None, size, weights.background)
    phrases = Follower(fusion.phrases if weights.phrases else None, size)

    def add(sums, key, value):
        sums[key] = (
            value if sums.get(key, NEVER) == NEVER else log_add(sums[key], value) if value > NEVER else sums[key]
        )

    def total(labels, found):
        return fuse(found.asr, found.lm, found.subtracted, float(len(labels)), weights, found.phrases)

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
                if v == blank or repeats((*y, v), options.max_repeats, options.repeat_span):
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
            parts = [sum(s.rows(y[:u])[y[u]] for u in range(len(y))) for s in (lm, subtracted, phrases)]
            found[y] = Found(asr, asr, *parts, times[y])
        beam = dict(sorted(found.items(), key=lambda item: -total(*item))[: options.beam])
        sums = {key: value for key, value in new.items() if key[0] in beam}
    beam = {y: _ended(found, y, lm, subtracted, phrases, options) for y, found in beam.items()}
    ranked = sorted(beam.items(), key=lambda item: -total(*item))[: options.nbest or options.beam]
    return [(y, total(y, found), found) for y, found in ranked]


# --- attention decoders -----------------------------------------------------------------------------------------------


def attention_beam(model, memory, fusion, options, limit=math.inf):
    """The n-best list of the one utterance in `memory`, as (labels, score, Found), best first."""
    weights, eos, size = fusion.weights, model.tokens.eos, len(model.tokens)
    lm = Follower(fusion.lm if weights.lm else None, size)
    subtracted = Follower(fusion.subtracted if weights.subtracted else None, size, weights.background)
    phrases = Follower(fusion.phrases if weights.phrases else None, size)
    heard = {(): model.start(memory)}
    alpha, keep = options.length_normalisation, options.nbest or options.beam
    limit = min(limit, options.max_length)

    def rows_of(labels):
        if labels not in heard:
            rows_of(labels[:-1])
            heard[labels] = model.step(torch.tensor([labels[-1]]), heard[labels[:-1]][1], memory)
        return heard[labels][0][0].tolist()

    def total(labels, found):
        return fuse(found.asr, found.lm, found.subtracted, float(len(labels)), weights, found.phrases)

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
                end = _ended(found, y, lm, subtracted, phrases, options)
                end = replace(end, asr=end.asr + rows[eos])
                candidates.append((total(y, end), y, end, True))
            if step == limit or lead > options.certain_end:
                continue
            for v in range(size):
                if v == eos or forbidden((*y, v)):
                    continue
                more = Found(
                    found.asr + rows[v],
                    0.0,
                    found.lm + lm.rows(y)[v],
                    found.subtracted + subtracted.rows(y)[v],
                    found.phrases + phrases.rows(y)[v],
                )
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
