"""Brute force: every label sequence, every alignment, every score, one at a time and without a beam."""

from __future__ import annotations

import itertools
import math

import torch

from ilme.fusion import FusionWeights, fuse

NO_FUSION = FusionWeights()


def sequences(labels, longest):
    for length in range(longest + 1):
        yield from itertools.product(labels, repeat=length)


def smooth(log_p, unit, tokens, share):
    """log [(1 − ε) P + ε / outcomes]: blank and sos are none; nothing is done to log 1."""
    nothing = {tokens.blank, tokens.sos} - {tokens.eos, None}
    if not share or log_p == 0:
        return log_p
    q = 0.0 if unit in nothing else 1.0 / (len(tokens) - len(nothing))
    p = (1 - share) * math.exp(log_p) + share * q
    return math.log(p) if p else -math.inf


def score_sequence(scorer, sequence, end=False, share=0.0):
    """log P(sequence) of a TokenScorer, one label at a time, smoothed by a share of the uniform distribution."""
    if scorer is None:
        return 0.0
    rows, state = scorer.start(1)
    total = 0.0
    for label in sequence:
        total += smooth(rows.expand(1, len(scorer.tokens))[0, label].item(), label, scorer.tokens, share)
        rows, state = scorer.score(torch.tensor([label]), state)
    return total + (smooth(scorer.finish(rows)[0].item(), scorer.tokens.eos, scorer.tokens, share) if end else 0.0)


def alignments(frames, labels, most):
    """How many labels each frame emits: every way to place `labels` labels on `frames` frames, `most` a frame."""
    if frames == 0:
        if labels == 0:
            yield ()
        return
    for here in range(min(labels, most) + 1):
        for rest in alignments(frames - 1, labels - here, most):
            yield (here, *rest)


def transducer_sequence(model, f, sequence, weights=NO_FUSION, most=3, blank_aware=False):
    """(path, asr): log-sums over all alignments of one sequence; f is (T, J)."""
    blank = model.tokens.blank
    g, state = model.start(1)
    rows = []
    for u in range(len(sequence) + 1):
        rows.append(torch.stack([model.join(f[t : t + 1], g)[0].double().log_softmax(-1) for t in range(len(f))]))
        if u < len(sequence):
            g, state = model.predict(torch.tensor([sequence[u]]), state)
    paths, asrs = [], []
    for emitted in alignments(len(f), len(sequence), most):
        u, path, asr = 0, 0.0, 0.0
        for t, count in enumerate(emitted):
            for _ in range(count):
                p, b = rows[u][t, sequence[u]].item(), rows[u][t, blank].item()
                asr += p
                path += p + (weights.lm * math.log(-math.expm1(b)) if blank_aware else 0.0)
                u += 1
            b = rows[u][t, blank].item()
            asr += b
            path += b * (1 + weights.lm if blank_aware else 1)
        paths.append(path)
        asrs.append(asr)
    return tuple(torch.tensor(x, dtype=torch.float64).logsumexp(0).item() for x in (paths, asrs))


def no_bonus(sequence):
    return 0.0


def transducer_best(
    model,
    f,
    lm=None,
    subtracted=None,
    weights=NO_FUSION,
    most=3,
    ends=(False, False),
    blank_aware=False,
    bonus=no_bonus,
):
    """All sequences as (score, labels, asr), best first.

    Args:
        ends: Whether each of the two LMs scores the end.
        bonus: That of a sequence's phrases.
    """
    labels = [i for i in range(len(model.tokens)) if i != model.tokens.blank]
    found = []
    for y in sequences(labels, most * len(f)):
        path, asr = transducer_sequence(model, f, y, weights, most, blank_aware)
        language = score_sequence(lm, y, ends[0]), score_sequence(subtracted, y, ends[1], weights.background)
        total = fuse(path, *language, float(len(y)), weights, bonus(y))
        found.append((total, y, asr))
    return sorted(found, key=lambda item: -item[0])


def tdt_alignments(frames, labels, durations, most, t=0, u=0, here=0):
    """Every way through the frames, as tuples of (frame, labels before, whether a label comes, place of the duration).

    A label may take any duration, blank all but 0; at most `most` labels come at one frame; reaching or passing the end
    is the end.
    """
    if t >= frames:
        if u == labels:
            yield ()
        return
    for d, go_on in enumerate(durations):
        if go_on:
            for rest in tdt_alignments(frames, labels, durations, most, t + go_on, u):
                yield ((t, u, False, d), *rest)
        if u < labels and here < most:
            for rest in tdt_alignments(frames, labels, durations, most, t + go_on, u + 1, 0 if go_on else here + 1):
                yield ((t, u, True, d), *rest)


def tdt_sequence(model, f, sequence, weights=NO_FUSION, most=3, blank_aware=False):
    """(path, asr): log-sums over all alignments and durations of one sequence; f is (T, J)."""
    blank = model.tokens.blank
    g, state = model.start(1)
    units, durations = [], []
    for u in range(len(sequence) + 1):
        both = [model.join_durations(f[t : t + 1], g) for t in range(len(f))]
        units.append([x[0].double().log_softmax(-1).tolist() for x, _ in both])
        durations.append([x[0].double().log_softmax(-1).tolist() for _, x in both])
        if u < len(sequence):
            g, state = model.predict(torch.tensor([sequence[u]]), state)
    paths, asrs = [], []
    for alignment in tdt_alignments(len(f), len(sequence), model.durations, most):
        path, asr = 0.0, 0.0
        for t, u, label, d in alignment:
            b = units[u][t][blank]
            p = units[u][t][sequence[u]] if label else b
            asr += p + durations[u][t][d]
            path += p + durations[u][t][d]
            if blank_aware:
                path += weights.lm * (math.log(-math.expm1(b)) if label else b)
        paths.append(path)
        asrs.append(asr)
    sums = (torch.tensor(x, dtype=torch.float64) for x in (paths, asrs))
    return tuple(x.logsumexp(0).item() if len(x) else -math.inf for x in sums)


def tdt_best(
    model,
    f,
    longest,
    lm=None,
    subtracted=None,
    weights=NO_FUSION,
    most=3,
    ends=(False, False),
    blank_aware=False,
    bonus=no_bonus,
):
    """All sequences of up to `longest` labels as (score, labels, asr), best first; the rest as `transducer_best`."""
    labels = [i for i in range(len(model.tokens)) if i != model.tokens.blank]
    found = []
    for y in sequences(labels, longest):
        path, asr = tdt_sequence(model, f, y, weights, most, blank_aware)
        language = score_sequence(lm, y, ends[0]), score_sequence(subtracted, y, ends[1], weights.background)
        if path > -math.inf:
            found.append((fuse(path, *language, float(len(y)), weights, bonus(y)), y, asr))
    return sorted(found, key=lambda item: -item[0])


def collapsed(alignment, blank):
    """What a CTC alignment says: equal neighbours are one, blanks are nothing."""
    return tuple(v for v, _ in itertools.groupby(alignment) if v != blank)


def ctc_best(model, h, lm=None, subtracted=None, weights=NO_FUSION, ends=(False, False), bonus=no_bonus):
    """All sequences that any alignment of h (T, E) says, as (score, labels, asr), best first."""
    blank, rows = model.tokens.blank, model.emit(h).double().log_softmax(-1).tolist()
    sums = {}
    for alignment in itertools.product(range(len(model.tokens)), repeat=len(rows)):
        y = collapsed(alignment, blank)
        sums.setdefault(y, []).append(sum(row[v] for row, v in zip(rows, alignment, strict=True)))
    found = []
    for y, paths in sums.items():
        asr = torch.tensor(paths, dtype=torch.float64).logsumexp(0).item()
        language = score_sequence(lm, y, ends[0]), score_sequence(subtracted, y, ends[1], weights.background)
        found.append((fuse(asr, *language, float(len(y)), weights, bonus(y)), y, asr))
    return sorted(found, key=lambda item: -item[0])


def attention_best(
    model,
    memory,
    longest,
    lm=None,
    subtracted=None,
    weights=NO_FUSION,
    rank=lambda s, n: s,
    ends=(True, True),
    bonus=no_bonus,
):
    """All sequences up to `longest` labels as (rank, labels, asr), best first; the model always scores the end."""
    eos = model.tokens.eos
    found = []
    for y in sequences([i for i in range(len(model.tokens)) if i != eos], longest):
        rows, state = model.start(memory)
        asr = 0.0
        for label in y:
            asr += rows[0, label].item()
            rows, state = model.step(torch.tensor([label]), state, memory)
        asr += rows[0, eos].item()
        language = score_sequence(lm, y, ends[0]), score_sequence(subtracted, y, ends[1], weights.background)
        total = fuse(asr, *language, float(len(y)), weights, bonus(y))
        found.append((rank(total, len(y)), y, asr))
    return sorted(found, key=lambda item: -item[0])
