"""Copies of the training recordings: at other speeds, as a telephone lets them through, and in longer utterances."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from ilme.data.speed import change_speed, low_pass
from ilme.train.resident import ResidentAudio

__all__ = ["copies"]

TELEPHONE = 0.5  # share of the band of 16 kHz audio that a telephone lets through


def copies(
    audio: ResidentAudio, speeds: Sequence[float], telephone: bool = False, joined: float = 0.0, seed: int = 0
) -> ResidentAudio:
    """The corpus at each speed, as a telephone lets it through, and in longer utterances: made where its samples lie.

    Utterances stand one after another, so all of them are filtered as one signal. The filter reaches a millisecond
    beyond an utterance's ends.
    """
    samples, starts = [], [torch.zeros(1, dtype=torch.long)]
    ids: list[str] = []
    texts = audio.texts * (len(speeds) + int(telephone))
    at = 0
    for speed in speeds:
        changed, ratio = change_speed(audio.samples, speed)
        samples.append(changed)
        ends = (audio.starts[1:] * ratio.numerator // ratio.denominator).clamp(max=len(changed))
        starts.append(ends + at)
        at += int(ends[-1])
        samples[-1] = changed[: int(ends[-1])]
        ids += [f"{name}@{speed:g}" for name in audio.ids]
    if telephone:
        samples.append(low_pass(audio.samples, TELEPHONE))
        starts.append(audio.starts[1:] + at)
        ids += [f"{name}@telephone" for name in audio.ids]
        at += len(audio.samples)
    if joined:
        groups = _groups(audio.starts.diff().tolist(), joined * audio.rate, Random(seed))
        samples.append(audio.samples)
        starts.append(audio.starts[[group.stop for group in groups]] + at)
        ids += [f"{audio.ids[group.start]}@{len(group)}" for group in groups]
        texts += [" ".join(audio.texts[i] for i in group) for group in groups]
    return ResidentAudio(torch.cat(samples), torch.cat(starts), ids, texts, audio.rate)


def _groups(sizes: Sequence[int], longest: float, draw: Random) -> list[range]:
    """Neighbours, as many as fit a length drawn from a third of the longest up to the longest."""
    groups: list[range] = []
    first, total, wanted = 0, 0, draw.uniform(longest / 3, longest)
    for i, size in enumerate(sizes):
        if i > first and total + size > wanted:
            groups.append(range(first, i))
            first, total, wanted = i, 0, draw.uniform(longest / 3, longest)
        total += size
    return [*groups, range(first, len(sizes))] if sizes else []
