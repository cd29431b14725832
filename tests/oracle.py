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


def score_sequence(scorer, sequence, end=False):
    """log P(sequence) of a TokenScorer, one label at a time."""
    if scorer is None:
        return 0.0
    rows, state = scorer.start(1)
    total = 0.0
    for label in sequence:
        total += rows.expand(1, len(scorer.tokens))[0, label].item()
        rows, state = scorer.score(torch.tensor([label]), state)
    return total + (scorer.finish(rows)[0].item() if end else 0.0)


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


def transducer_best(model, f, lm=None, subtracted=None, weights=NO_FUSION, most=3, end=False, blank_aware=False):
    """All sequences as (score, labels, asr), best first."""
    labels = [i for i in range(len(model.tokens)) if i != model.tokens.blank]
    found = []
    for y in sequences(labels, most * len(f)):
        path, asr = transducer_sequence(model, f, y, weights, most, blank_aware)
        total = fuse(path, score_sequence(lm, y, end), score_sequence(subtracted, y, end), float(len(y)), weights)
        found.append((total, y, asr))
    return sorted(found, key=lambda item: -item[0])


def attention_best(model, memory, longest, lm=None, subtracted=None, weights=NO_FUSION, rank=lambda s, n: s, end=True):
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
        total = fuse(asr, score_sequence(lm, y, end), score_sequence(subtracted, y, end), float(len(y)), weights)
        found.append((rank(total, len(y)), y, asr))
    return sorted(found, key=lambda item: -item[0])
