"""Which sounds that nobody speaks give text: `python -m experiments.no_speech MODEL --json OUT`.

A recogniser that was trained on speech writes something for whatever it hears. Each sound lasts ten seconds; it is
given to the model as it is, and to voice activity, which decides in the service whether the model hears it at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from benchmarks.timing import publish
from scipy.signal import lfilter

from ilme.recogniser.loading import load_model
from ilme.recogniser.recogniser import Recogniser
from ilme.serve.turns import Turns
from ilme.serve.voice import RATE, VoiceActivity

SECONDS = 10
TIME = np.arange(SECONDS * RATE) / RATE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    recogniser = Recogniser(load_model(args.model))
    rows: dict[str, dict[str, int]] = {}
    examples: dict[str, str] = {}
    for name, sound in sounds():
        audio = np.clip(sound, -1, 1).astype(np.float32)
        text = recogniser.transcribe(audio).text
        row = rows.setdefault(name, {"sounds": 0, "text_without": 0, "taken_for_speech": 0, "turns": 0})
        row["sounds"] += 1
        row["text_without"] += bool(text)
        row["taken_for_speech"] += VoiceActivity().is_spoken(audio)
        row["turns"] += bool(Turns(VoiceActivity()).feed(audio))
        examples.setdefault(name, text)
    publish({"kinds": rows, "examples": examples}, args.json, seed=0)


def sounds() -> Iterator[tuple[str, np.ndarray]]:
    """Kinds of sounds, some of them in several loudnesses or tunes."""
    draw = np.random.default_rng(0)
    yield "silence", 0 * TIME
    for level in (0.001, 0.01, 0.1, 0.5):
        yield "white noise", level * draw.normal(size=len(TIME))
    for level in (0.02, 0.1, 0.3):
        yield "low noise", level * lfilter([1], [1, -0.95], draw.normal(size=len(TIME)))
    for level in (0.02, 0.1, 0.3):
        yield "breath", level * np.sin(np.pi * TIME / 3) ** 2 * lfilter([1], [1, -0.9], draw.normal(size=len(TIME)))
    for level in (0.02, 0.1, 0.3):
        yield "hum", level * sum(np.sin(2 * np.pi * f * TIME) for f in (50, 100, 150, 250))
    for pitch in (220.0, 261.6, 440.0):
        yield "chord", 0.1 * sum(np.sin(2 * np.pi * pitch * k * TIME) for k in (1, 1.25, 1.5, 2))
    yield "clicks", 0.4 * draw.normal(size=len(TIME)) * (TIME % 0.3 < 0.005)
    for seed in range(10):
        yield "tune", tune(seed)
    for seed in range(10, 20):
        yield "tune in noise", tune(seed) + 0.05 * draw.normal(size=len(TIME))


def tune(seed: int) -> np.ndarray:
    """Three plucked notes a second, of two octaves."""
    draw, out = np.random.default_rng(seed), np.zeros(len(TIME))
    for k in range(3 * SECONDS):
        start, pitch = k * RATE // 3, 220 * 2 ** (draw.integers(0, 24) / 12)
        since = TIME[: len(TIME) - start]
        out[start:] += 0.1 * np.exp(-3 * since) * sum(np.sin(2 * np.pi * pitch * h * since) / h for h in (1, 2, 3, 4))
    return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
