"""What a benchmark of Whisper on a whole corpus needs beside the search: sets in memory, texts, scores of whole lists.

Audio is read once, in threads; the encoder runs once; texts are normalised in other processes while nothing is decoded;
and what a decode without some scorer lacks is filled in from whole sequences, hundreds at a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import normaliser
from ilme.fusion import FusionWeights
from ilme.ilm import Calibration
from ilme.ilm.transformer import TransformerInternalLM
from ilme.models.lstm_lm import LSTMLM
from ilme.recogniser.decoder import SearchDecoder
from ilme.recogniser.windows import cut_windows
from ilme.runtime.numerics import log_softmax
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete, finite
from ilme.tokens import Tokenizer

STARTED = time.monotonic()
RATE = 16_000
WINDOW = "#window"  # between an utterance's id and the number of its window
ROWS = 1 << 13  # rows of the output layer made at once


def note(text: str) -> None:
    print(f"{time.monotonic() - STARTED:.1f} s: {text}", file=sys.stderr, flush=True)


def sample(args: argparse.Namespace, split: str, count: int) -> list[Utterance]:
    utterances = read_utterances(args.speech, split=split)
    if not count or len(utterances) <= count:
        return utterances
    return [utterances[i] for i in sorted(random.Random(args.seed).sample(range(len(utterances)), count))]


def in_memory(utterances: Sequence[Utterance], threads: int) -> list[Utterance]:
    """The utterances with their audio read."""
    with ThreadPoolExecutor(threads) as pool:
        audio = list(pool.map(lambda u: u.samples(RATE), utterances))
    return [
        replace(u, audio=samples, start=0.0, rate=RATE, seconds=len(samples) / RATE)
        for u, samples in zip(utterances, audio, strict=True)
    ]


def windowed(utterances: Iterable[Utterance], seconds: float) -> list[Utterance]:
    """Utterances longer than the model takes at once as several, cut where they are quietest."""
    out = []
    for u in utterances:
        if u.seconds <= seconds:
            out.append(u)
            continue
        for i, window in enumerate(cut_windows(u.audio, RATE, seconds)):
            length = len(window.samples) / RATE
            out.append(replace(u, id=f"{u.id}{WINDOW}{i}", text="", audio=window.samples, seconds=length))
    return out


def joined(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts by utterance: those of an utterance's windows one after another."""
    out: dict[str, str] = {}
    for name in sorted(texts, key=lambda n: (n.partition(WINDOW)[0], int(n.partition(WINDOW)[2] or 0))):
        whole = name.partition(WINDOW)[0]
        out[whole] = f"{out[whole]} {texts[name]}" if whole in out else texts[name]
    return out


def _normalise(name: Any, text: str) -> str:
    return normaliser(name)(text)


class Texts:
    """Normalised texts, each made once, by processes that were started before any CUDA device was touched."""

    def __init__(self, name: str, workers: int) -> None:
        self.known: dict[str, str] = {}
        self._work = partial(_normalise, name)
        self._pool = multiprocessing.get_context("fork").Pool(workers or os.cpu_count() or 1)

    def __call__(self, texts: Iterable[str]) -> list[str]:
        texts = list(texts)
        new = list(dict.fromkeys(t for t in texts if t not in self.known))
        self.known.update(zip(new, self._pool.map(self._work, new, chunksize=32), strict=True))
        return [self.known[t] for t in texts]

    def lists(self, lists: Mapping[str, NBest]) -> dict[str, NBest]:
        """The same n-best lists with normalised texts."""
        made = iter(self([h.text for nbest in lists.values() for h in nbest]))
        return {i: [replace(h, text=next(made)) for h in nbest] for i, nbest in lists.items()}

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class WholeSequences(SequenceScorer):
    """`SequenceScorer` that lets a network read all labels of many sequences at once, where it can."""

    @torch.inference_mode()
    def __call__(self, sequences: Iterable[tuple[int, ...]]) -> list[float]:
        asked = [tuple(s) for s in sequences]
        if isinstance(self.scorer, LSTMLM | TransformerInternalLM):
            new = sorted({s for s in asked if s not in self.known}, key=len)
            for low in range(0, len(new), 256):
                part = new[low : low + 256]
                self.known.update(zip(part, whole_scores(self.scorer, part), strict=True))
        return super().__call__(asked)


def whole_scores(scorer: LSTMLM | TransformerInternalLM, sequences: Sequence[tuple[int, ...]]) -> list[float]:
    """log P(y) = Σ_u log P(y_u | y_{<u}) + log P(end | y) of each sequence."""
    labels, inside = (x.to(scorer.device) for x in padded_labels(sequences, scorer.tokens.eos or 0))
    step = max(1, ROWS // labels.shape[1])
    totals = [
        label_scores(scorer, labels[i : i + step]).masked_fill(~inside[i : i + step], 0).double().sum(1)
        for i in range(0, len(labels), step)
    ]
    return torch.cat(totals).tolist()


def padded_labels(sequences: Sequence[tuple[int, ...]], eos: int) -> tuple[Tensor, Tensor]:
    """The sequences with their ends (n, U), and where each still goes on or ends (n, U)."""
    longest = max(map(len, sequences)) + 1
    labels = torch.full((len(sequences), longest), eos)
    for row, y in zip(labels, sequences, strict=True):
        row[: len(y)] = torch.tensor(y, dtype=torch.long)
    lengths = torch.tensor([len(y) + 1 for y in sequences])
    return labels, torch.arange(longest) < lengths[:, None]


def label_scores(scorer: LSTMLM | TransformerInternalLM, labels: Tensor) -> Tensor:
    """log P of each label after those before it (n, U)."""
    if isinstance(scorer, LSTMLM):
        read = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=scorer.sos)
        rows = log_softmax(scorer.output(scorer(read)))
    else:
        logits = scorer.host.teacher_forced(labels[:, :-1], scorer.context).float()
        logits[:, :1] += scorer._allowed_first
        logits[:, 1:] += scorer._allowed
        rows = logits.log_softmax(-1)
    return rows.gather(2, labels[:, :, None]).squeeze(2)


class ListDecoder:
    """Decodes a set for the tuner: normalised texts, every component score, lists without fusion given beforehand.

    Args:
        decoder: Model, scorers and encoded batches.
        texts: The normaliser.
        plain: Lists of the same search without fusion, with the model's own texts.
        scorers: `lm` and `subtracted`, which score what a decode did not; they remember what they have scored.
    """

    def __init__(
        self,
        decoder: SearchDecoder,
        texts: Texts,
        plain: Mapping[str, NBest] | None = None,
        **scorers: SequenceScorer,
    ) -> None:
        self.decoder, self.texts, self.plain, self.scorers = decoder, texts, plain, scorers

    def search(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        """The lists as the search gives them."""
        lists: dict[str, NBest] = {}
        for batch, encoded in self.decoder.encoded():
            found = self.decoder.recogniser.search(encoded, weights, beam)
            lists |= {u.id: nbest for u, nbest in zip(batch, found, strict=True)}
        return lists

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        known = self.plain if weights == FusionWeights() else None
        lists = known if known is not None else self.search(weights, beam)
        missing = {name: s for name, s in self.scorers.items() if not getattr(weights, name)}
        return self.texts.lists(finite(complete(lists, **missing)))


def punctuation(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids whose text has neither letter nor digit: what `AttentionOptions.repeat_ignores` can pass over."""
    texts = ((i, tokenizer.decode([i]).strip()) for i in range(len(tokenizer.tokens)))
    return tuple(i for i, t in texts if t and "\ufffd" not in t and not any(c.isalnum() for c in t))


def calibration_of(decoder: SearchDecoder, lists: Mapping[str, NBest], count: int) -> Calibration:
    """`count` utterances, evenly over all lengths, with the model's own transcripts of them."""
    every = max(1, len(decoder.ids) // count)
    chosen = [u for batch in decoder.batches for u in batch][every - 1 :: every][:count]
    labels = [lists[u.id][0].tokens for u in chosen]
    return decoder.recogniser.calibrate((u.samples(RATE) for u in chosen), labels)
