"""Tiny untrained checkpoints of ours, with tokenizer and frontend, and small sets of noise: used by many tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch

from ilme import models
from ilme.data.features import FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.models.checkpoint import save_model

RATE = 16_000
TEXTS = ["the whale swam", "the sea was calm", "a whale of a time", "the captain saw the sea"] * 3
ROLES = {"rnnt": "transducer", "aed": "attention", "lm": "lm"}


def write_checkpoints(folder: Path, kinds: Sequence[str] = ("rnnt", "aed", "lm"), texts: Sequence[str] = TEXTS) -> Path:
    """A folder for each kind, all over one tokenizer; returns the folder."""
    tokenizer = SentencePieceTokenizer.train(list(texts), 32)
    torch.manual_seed(0)
    for kind in kinds:
        own = tokenizer.for_role(ROLES[kind])  # type: ignore[arg-type]
        model = models.build(kind, models.preset(kind, "tiny"), own.tokens)
        for parameter in model.parameters():  # small random weights decide nothing; larger ones do
            parameter.data.mul_(2.0)
        save_model(folder / kind, model, own, FrontendConfig() if kind != "lm" else None)
    return folder


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    """Samples (N,) that are not silent."""
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)


def write_wave(file: Path, seconds: float, seed: int = 0) -> Path:
    """Noise as a file, in folders that may not be there yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(file, noise(seconds, seed), RATE)
    return file


def write_set(folder: Path, name: str, texts: Sequence[str], seed: int = 0) -> Path:
    """A manifest and its audio: utterances NAME0, NAME1, … of three speakers."""
    generator = np.random.default_rng([seed, len(name)])
    rows = []
    for k, text in enumerate(texts):
        samples = generator.normal(0, 0.1, 9000 + 700 * k).astype(np.float32)
        soundfile.write(folder / f"{name}{k}.wav", samples, RATE)
        duration = len(samples) / RATE
        rows.append({"audio_filepath": f"{name}{k}.wav", "text": text, "speaker": f"s{k % 3}", "duration": duration})
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / f"{name}.jsonl"
