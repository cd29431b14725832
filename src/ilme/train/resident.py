"""All audio of a small study on the GPU: int16 samples in memory, noise and features made there, batch by batch.

A hundred hours at 16 kHz are 11.5 GB. Nothing is read or decoded while training, so the device never waits
for the disk or the processors: an epoch takes as long as its matrix products.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ilme.data.augment import SpecAugment
from ilme.data.batches import Batch, cut_text, cut_waveform
from ilme.data.features import Frontend, FrontendConfig
from ilme.errors import BadInputError
from ilme.tokens import Tokenizer
from ilme.train.graphs import LABELS, rung
from ilme.train.sources import PlannedSource

__all__ = ["ResidentAudio", "ResidentNoise", "ResidentSource", "load_resident"]


@dataclass(frozen=True)
class ResidentNoise:
    """Noise that is added on the device. The default adds none.

    Attributes:
        babble: Probability that other utterances speak in the background.
        talkers: How many of them.
        white: Probability of white noise, where there is no babble.
        snr: Lowest and highest signal-to-noise ratio, in decibels.
    """

    babble: float = 0.0
    talkers: int = 3
    white: float = 0.0
    snr: tuple[float, float] = (0.0, 15.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "snr", tuple(self.snr))
        if not 0 <= self.babble <= 1 or not 0 <= self.white <= 1 or self.babble + self.white > 1:
            raise BadInputError(
                f"noise.babble={self.babble} and white={self.white} are probabilities that exclude each other"
            )
        if self.talkers < 1 or len(self.snr) != 2 or self.snr[0] > self.snr[1]:
            raise BadInputError(
                f"noise.talkers={self.talkers} must be ≥ 1 and snr={self.snr} a lowest and a highest value"
            )


@dataclass
class ResidentAudio:
    """Utterances one after another.

    Attributes:
        samples: int16 (total,), on the device that trains.
        starts: Where each utterance starts (n + 1,), int64 on the CPU; the last is the end of all.
        ids: Names.
        texts: Transcripts.
        rate: Samples a second.
    """

    samples: Tensor
    starts: Tensor
    ids: list[str]
    texts: list[str]
    rate: int = 16000

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.ids) + 1 or len(self.ids) != len(self.texts):
            raise BadInputError(
                f"{len(self.ids)} ids, {len(self.texts)} texts and {len(self.starts)} starts do not describe one corpus"
            )

    @classmethod
    def from_arrays(
        cls,
        arrays: Sequence[NDArray[np.int16]],
        ids: list[str],
        texts: list[str],
        rate: int = 16000,
        device: Any = "cpu",
    ) -> ResidentAudio:
        sizes = [0, *(len(a) for a in arrays)]
        flat = torch.from_numpy(np.concatenate([*arrays, np.zeros(0, np.int16)]))
        return cls(flat.to(device), torch.tensor(sizes).cumsum(0), ids, texts, rate)

    @property
    def hours(self) -> float:
        return len(self.samples) / self.rate / 3600

    def followed_by(self, other: ResidentAudio) -> ResidentAudio:
        """Both corpora as one."""
        if other.rate != self.rate:
            raise BadInputError(f"speech at {self.rate} and at {other.rate} samples a second is not one corpus")
        starts = torch.cat([self.starts, other.starts[1:] + len(self.samples)])
        samples = torch.cat([self.samples, other.samples])
        return ResidentAudio(samples, starts, self.ids + other.ids, self.texts + other.texts, self.rate)

    def gather(self, starts: Tensor, lengths: Tensor, width: int) -> Tensor:
        """Float waveforms (n, width) that begin at `starts`, silent after `lengths`; all on the device."""
        at = torch.arange(width, device=self.samples.device)
        index = (starts[:, None] + at).clamp_(max=len(self.samples) - 1)
        return self.samples[index].float().div_(32768.0) * (at < lengths[:, None])


def load_resident(cuts: Iterable[Any], rate: int = 16000, device: Any = "cpu", threads: int = 8) -> ResidentAudio:
    """Reads every cut that has text into memory, in parallel."""

    def read(cut: Any) -> NDArray[np.int16]:
        wave = cut_waveform(cut, rate)
        return (wave.clamp(-1.0, 32767 / 32768) * 32768).to(torch.int16).numpy()

    wanted = [cut for cut in cuts if cut_text(cut)]
    if not wanted:
        raise BadInputError("none of the cuts has text: there is nothing to train on")
    with ThreadPoolExecutor(threads) as pool:
        arrays = list(pool.map(read, wanted))
    return ResidentAudio.from_arrays(arrays, [c.id for c in wanted], [cut_text(c) for c in wanted], rate, device)


class ResidentSource(PlannedSource):
    """Batches of resident audio, with noise, features and masks made on its device.

    Args:
        audio: The corpus.
        tokenizer: Makes labels of the transcripts, once.
        frontend: How audio becomes features.
        seconds: Most audio in a batch, padding counted.
        noise: What is mixed in.
        masks: SpecAugment; None does nothing.
        longest: Longer utterances, in seconds, are left out.
        easy_first: Whether the first epoch goes from short utterances to long ones, and without noise.
        few_shapes: Whether batches are padded to the frames of a ladder (`ilme.train.graphs.rung`), and labels to
            multiples of eight. An utterance then counts with the frames that it is padded to, so that all batches of
            a length have as many rows. Libraries plan a convolution or a Fourier transform anew for each shape.
        options: `most`, `seed`, `rank`, `world_size`, `shuffle`.
    """

    def __init__(
        self,
        audio: ResidentAudio,
        tokenizer: Tokenizer,
        frontend: FrontendConfig | None = None,
        seconds: float = 600.0,
        noise: ResidentNoise | None = None,
        masks: SpecAugment | None = None,
        longest: float = 30.0,
        easy_first: bool = False,
        few_shapes: bool = False,
        **options: Any,
    ) -> None:
        self.audio, self.noise, self.masks = audio, noise or ResidentNoise(), masks
        self.device = audio.samples.device
        self._frontend = Frontend(frontend, self.device)
        config = self._frontend.config
        if audio.rate != config.rate:
            raise BadInputError(f"the audio has {audio.rate} samples a second, the frontend wants {config.rate}")
        sizes = audio.starts.diff()
        fit = (sizes >= config.shortest) & (sizes <= longest * audio.rate)
        self._items = fit.nonzero().flatten()
        self._sizes = sizes[self._items]
        self._starts = audio.starts[:-1][self._items]
        self._labels = [torch.tensor(tokenizer.encode(audio.texts[i]), dtype=torch.long) for i in self._items.tolist()]
        counted = self._sizes.double().numpy() / audio.rate
        self._few_shapes = few_shapes
        if few_shapes:
            counted = np.array([rung(T) for T in config.vectors(self._sizes).tolist()]) * config.seconds_per_vector
        super().__init__(counted, seconds, short_first=easy_first, **options)

    def load(self, indices: NDArray[Any]) -> Batch:
        chosen = torch.from_numpy(np.ascontiguousarray(indices))
        sizes = self._sizes[chosen]
        lengths = sizes.to(self.device, non_blocking=True)
        waves = self.audio.gather(self._starts[chosen].to(self.device), lengths, self._width(int(sizes.max())))
        draw = zlib.crc32(f"{self.seed}/{self.epoch}/{indices.tolist()}".encode())
        if not (self.short_first and self.epoch == 0):
            waves = self._mix(waves, lengths, torch.Generator(self.device).manual_seed(draw))
        features, vectors = self._frontend.from_waveforms(waves, lengths)
        if self.masks is not None:
            features = self.masks(features, vectors, draw)
        labels = [self._labels[int(i)] for i in indices]
        names = [self._items[int(i)].item() for i in indices]
        return Batch(
            [self.audio.ids[int(i)] for i in names],
            features,
            vectors,
            self._padded(labels).to(self.device, non_blocking=True),
            torch.tensor([len(y) for y in labels]).to(self.device, non_blocking=True),
            [self.audio.texts[int(i)] for i in names],
            float(sizes.sum()) / self.audio.rate,
        )

    def _width(self, samples: int) -> int:
        """Samples that a batch is padded to, given its longest utterance's."""
        if not self._few_shapes:
            return samples
        config = self._frontend.config
        return max(samples, config.samples(rung(config.vectors(samples))))

    def _padded(self, labels: list[Tensor]) -> Tensor:
        padded = pad_sequence(labels, batch_first=True)
        return pad(padded, (0, -padded.shape[1] % LABELS)) if self._few_shapes else padded

    def _mix(self, waves: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
        """x + n · √(P_x / (P_n 10^{SNR/10})), where a draw says so; P is the mean power within the utterance."""
        noise = self.noise
        if not noise.babble and not noise.white:
            return waves
        n, width = waves.shape
        inside = torch.arange(width, device=self.device) < lengths[:, None]
        kind = torch.rand(n, generator=generator, device=self.device)
        background = torch.zeros_like(waves)
        if noise.babble:
            for _ in range(noise.talkers):
                last = max(1, len(self.audio.samples) - width)
                starts = (torch.rand(n, generator=generator, device=self.device, dtype=torch.float64) * last).long()
                background += self.audio.gather(starts, lengths, width)
            background *= (kind < noise.babble)[:, None]
        if noise.white:
            white = torch.randn(n, width, generator=generator, device=self.device)
            background += white * ((kind >= noise.babble) & (kind < noise.babble + noise.white))[:, None]
        background *= inside
        low, high = noise.snr
        snr = low + (high - low) * torch.rand(n, generator=generator, device=self.device)
        power, other = (x.square().sum(1) / lengths for x in (waves, background))
        gain = (power / (other.clamp(min=1e-12) * 10 ** (snr / 10))).sqrt()
        return waves + background * gain[:, None]
