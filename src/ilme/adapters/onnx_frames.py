"""The frames that an ONNX transducer's encoder reads: what its file says about them, and icefall's where it is silent.

Metadata of the encoder's file: sample_rate, num_mel_bins, frame_length and frame_shift (seconds), low_freq and
high_freq (Hz), snip_edges (0 or 1), least_frames. `ilme export onnx` writes all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ilme.data.audio import Samples
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError, CheckpointError

__all__ = ["FILTER_BANKS", "Frames", "number", "over_the_edges"]

# icefall's features: 80 Kaldi filter banks of 25 ms every 10 ms, neither stacked nor normalised.
FILTER_BANKS = FrontendConfig(stack=1, stride=1, normalisation="none")

# Name in the metadata: field of FrontendConfig, smallest and largest value. Whole numbers where the bounds are.
NUMBERS: dict[str, tuple[str, float, float]] = {
    "sample_rate": ("rate", 1000, 192_000),
    "num_mel_bins": ("mel_bins", 4, 512),
    "frame_length": ("window", 0.01, 0.2),
    "frame_shift": ("hop", 0.001, 0.2),
    "low_freq": ("lowest", 0.0, 96_000.0),
    "high_freq": ("highest", -96_000.0, 96_000.0),
}
MOST_FRAMES = 100  # of the shortest utterance


@dataclass(frozen=True)
class Frames:
    """How audio becomes an encoder's input.

    Attributes:
        banks: The Kaldi filter banks; stacking and normalisation, if there are any, are in the encoder.
        snip_edges: Frames lie wholly inside the utterance; otherwise they are centred on every hop and reach over its
            edges.
        least: Frames of the shortest utterance that the encoder takes; with `snip_edges` a shorter one is followed by
            silence.
    """

    banks: FrontendConfig = FILTER_BANKS
    snip_edges: bool = False
    least: int = 1

    @classmethod
    def read(cls, metadata: Mapping[str, str], path: Path) -> Frames:
        """From the metadata of the encoder's file, every number checked."""

        def given(name: str, default: Any, least: float, most: float) -> Any:
            return number(metadata[name], f"{path}: {name}", least, most) if name in metadata else default

        fields = {
            field: given(name, getattr(FILTER_BANKS, field), least, most)
            for name, (field, least, most) in NUMBERS.items()
        }
        try:
            banks = replace(FILTER_BANKS, **fields)
        except BadInputError as error:
            raise CheckpointError(f"{path}: {error}") from error
        return cls(banks, bool(given("snip_edges", 0, 0, 1)), given("least_frames", 1, 1, MOST_FRAMES))

    def metadata(self) -> dict[str, str]:
        """What `read` reads."""
        found = {name: str(getattr(self.banks, field)) for name, (field, _, _) in NUMBERS.items()}
        return {**found, "snip_edges": str(int(self.snip_edges)), "least_frames": str(self.least)}

    def prepare(self, samples: Samples) -> Samples:
        """Audio whose frames inside its edges are the encoder's."""
        if not self.snip_edges:
            return over_the_edges(samples, self.banks)
        missing = self.banks.samples(self.least) - len(samples)
        return np.pad(samples, (0, missing)) if missing > 0 else samples


def over_the_edges(samples: Samples, banks: FrontendConfig = FILTER_BANKS) -> Samples:
    """Mirrors both ends so that frames lie centred on every hop, as Kaldi does without `snip_edges`."""
    window, hop = banks.window_samples, banks.hop_samples
    frames = max((len(samples) + hop // 2) // hop, 1)
    left = max(window // 2 - hop // 2, 0)
    right = max((frames - 1) * hop + window - left - len(samples), 0)
    if len(samples) <= max(left, right):
        samples = np.pad(samples, (0, max(left, right) + 1 - len(samples)))
    return np.pad(samples, (left, right), mode="symmetric")


def number(text: str, what: str, least: float, most: float) -> float:
    """A number in a file's metadata, where any text may stand: whole if the bounds are."""
    whole = isinstance(least, int)
    plain = re.fullmatch("[0-9]{1,9}" if whole else r"-?[0-9]{1,9}(\.[0-9]{1,20})?", text)
    value = (int(text) if whole else float(text)) if plain else None
    if value is None or not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise CheckpointError(f"{what} must be a {kind} from {least} to {most}, found {text!r:.40}")
    return value
