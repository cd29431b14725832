"""Training batches out of Lhotse cuts: bucketed by length, augmented, tokenised, resumable, split over ranks.

Lhotse's `DynamicBucketingSampler` decides which utterances make a batch, and deals whole batches to the
ranks. An epoch holds every utterance once; only where the last few utterances are fewer than the ranks are
some repeated (their ids end in `_dup0`), since all ranks must take equally many steps.
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.data.audio import AudioError
from ilme.data.augment import AudioAugmentation, Augmenter, SpecAugment
from ilme.data.features import Frontend, FrontendConfig
from ilme.data.manifests import cuts_path, is_shar, open_cuts
from ilme.errors import BadInputError
from ilme.tokens import Tokenizer

__all__ = ["Batch", "BatchConfig", "Batches", "cut_text", "cut_waveform"]

_BABBLE_POOL = 2000  # utterances kept to make babble of, where the cuts are streamed


@dataclass(frozen=True)
class Batch:
    """B utterances, ready for a loss.

    Attributes:
        ids: Their names.
        features: (B, T', D), zero after each end.
        feature_lengths: (B,).
        labels: (B, U), 0 after each end.
        label_lengths: (B,).
        texts: What the labels say.
        seconds: Audio in the batch, without padding, after speed perturbation.
    """

    ids: list[str]
    features: Tensor
    feature_lengths: Tensor
    labels: Tensor
    label_lengths: Tensor
    texts: list[str]
    seconds: float

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Batch:
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in ("features", "feature_lengths", "labels", "label_lengths")
        }
        return replace(self, **moved)


@dataclass(frozen=True)
class BatchConfig:
    """How utterances become batches.

    Attributes:
        seconds: Audio in a batch at most, padding counted.
        utterances: Utterances in a batch at most; 0 means no limit.
        buckets: Groups of like length from which a batch is drawn.
        buffer: Utterances held to draw from; larger mixes better and takes more memory.
        shuffle: Whether each epoch has its own order.
        seed: Decides order and augmentation.
        shortest: Utterances of fewer seconds are left out.
        longest: Utterances of more seconds are left out.
        in_memory: Whether to hold the manifest (not the audio) in memory. Shar shards are always streamed.
        workers: Processes that load audio; 0 loads in this one.
        features: Where features are made: in the `workers`, or on the training `device`; `auto` takes the
            device if it is a GPU.
        audio: What is done to the audio.
        masks: What is done to the features; None does nothing.
    """

    seconds: float = 120.0
    utterances: int = 0
    buckets: int = 20
    buffer: int = 20_000
    shuffle: bool = True
    seed: int = 0
    shortest: float = 0.1
    longest: float = 30.0
    in_memory: bool = True
    workers: int = 0
    features: Literal["auto", "workers", "device"] = "auto"
    audio: AudioAugmentation = field(default_factory=AudioAugmentation)
    masks: SpecAugment | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "buckets", "buffer", "longest"):
            if not getattr(self, name) > 0:
                raise BadInputError(f"{name}={getattr(self, name)} must be positive")
        for name in ("utterances", "workers", "shortest"):
            if getattr(self, name) < 0:
                raise BadInputError(f"{name}={getattr(self, name)} must not be negative")
        if self.longest > self.seconds:
            raise BadInputError(
                f"longest={self.longest} exceeds seconds={self.seconds}: no batch holds such an utterance"
            )


class Batches:
    """Iterating gives one epoch, or what is left of it after a `break` or `load_state_dict`; then the next epoch."""

    def __init__(
        self,
        cuts: str | Path | Iterable[Any],
        tokenizer: Tokenizer,
        frontend: FrontendConfig | None = None,
        config: BatchConfig | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        normalise: Callable[[str], str] | None = None,
    ) -> None:
        """
        Args:
            cuts: A manifest, an import's folder, Shar shards, or Lhotse cuts.
            tokenizer: Makes labels of the transcripts.
            frontend: Makes features of the audio.
            config: Sizes, order and augmentation.
            rank: This process, of `world_size` that share each epoch.
            world_size: Processes that train together.
            device: Where batches are wanted.
            normalise: Applied to each transcript before the tokenizer.
        """
        if not 0 <= rank < world_size:
            raise BadInputError(f"rank={rank} must be at least 0 and below world_size={world_size}")
        self.config = config or BatchConfig()
        self.device = torch.device(device)
        self.epoch = 0
        self._done = 0  # batches of this epoch already given out
        self._rank, self._world_size = rank, world_size
        self._cuts = _Cuts(cuts, self.config, frontend or FrontendConfig())
        self._sampler = _sampler(self._cuts, self.config, rank, world_size)
        self._frontend = Frontend(frontend, self.device)
        self._on_device = self.config.features == "device" or (
            self.config.features == "auto" and self.device.type == "cuda"
        )
        self._loader = _Loader(
            tokenizer,
            None if self._on_device else Frontend(frontend),
            Augmenter(self.config.audio, self._frontend.config.rate, self.config.seed, self._cuts.babble),
            self._frontend.config.rate,
            normalise,
        )

    @property
    def left_out(self) -> dict[str, int]:
        """Utterances left out of the last epoch begun, by reason."""
        return dict(self._cuts.left_out)

    def __iter__(self) -> Iterator[Batch]:
        self._cuts.epoch = self._loader.epoch = self.epoch
        self._sampler.set_epoch(self.epoch)
        remaining: Any = torch.utils.data.DataLoader(
            self._loader,  # type: ignore[arg-type]
            sampler=_After(self._sampler, self._done),
            batch_size=None,
            num_workers=self.config.workers,
            pin_memory=self.device.type == "cuda",
        )
        for loaded in remaining:
            self._done += 1
            yield self._finish(loaded)
        self.epoch, self._done = self.epoch + 1, 0

    def _finish(self, loaded: _Loaded) -> Batch:
        """Features, if the workers made none, and masks."""
        if self._on_device:
            features, lengths = self._frontend.from_waveforms(loaded.signal, loaded.signal_lengths)
        else:
            features = loaded.signal.to(self.device, non_blocking=True)
            lengths = loaded.signal_lengths.to(self.device, non_blocking=True)
        if self.config.masks is not None:
            draw = zlib.crc32(f"{self.config.seed}/{self.epoch}/{loaded.ids}".encode())
            features = self.config.masks(features, lengths, draw)
        return Batch(
            loaded.ids,
            features,
            lengths,
            loaded.labels.to(self.device, non_blocking=True),
            loaded.label_lengths.to(self.device, non_blocking=True),
            loaded.texts,
            loaded.seconds,
        )

    def state_dict(self) -> dict[str, int]:
        """Where training stands: the batch that follows the last one given out."""
        return {
            "epoch": self.epoch,
            "batch": self._done,
            "seed": self.config.seed,
            "world_size": self._world_size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues where `state_dict` was taken, given the same cuts, config and number of ranks."""
        for name, here in (("seed", self.config.seed), ("world_size", self._world_size)):
            if state.get(name) != here:
                raise BadInputError(
                    f"the saved position has {name}={state.get(name)} and this run {name}={here}: the batches "
                    f"would differ. Use {name}={state.get(name)}, or start a new epoch."
                )
        self.epoch, self._done = int(state["epoch"]), int(state["batch"])


class _Cuts:
    """The cuts of an epoch, in its order, without those that are too short, too long or without text."""

    def __init__(self, source: Any, config: BatchConfig, frontend: FrontendConfig) -> None:
        self._shards = cuts_path(source) if isinstance(source, str | Path) and is_shar(cuts_path(source)) else None
        opened = open_cuts(source, seed=config.seed) if isinstance(source, str | Path) else source
        self._cuts = opened if self._shards or not config.in_memory else list(opened)
        self._config = config
        # Faster speech is shorter: keep what gives a feature vector at any speed.
        vector = frontend.shortest / frontend.rate * max(config.audio.speeds) + 0.01
        self._shortest = max(config.shortest, vector)
        self.epoch = 0
        self.left_out: dict[str, int] = {}
        if next(iter(self), None) is None:
            raise BadInputError(f"no utterance to train on; left out: {self.left_out or 'none, there are no cuts'}")
        pool = self._cuts if isinstance(self._cuts, list) else islice(self._cuts, _BABBLE_POOL)
        self.babble = [cut for cut in pool if self._problem(cut) is None] if config.audio.babble else []

    @property
    def sample_size(self) -> int:
        """How many cuts to look at for the spread of lengths; of shards few, since their audio is read along."""
        return 1000 if self._shards else 10_000

    def __iter__(self) -> Iterator[Any]:
        self.left_out = {}
        cuts = self._cuts
        if self._shards is not None and self._config.shuffle:
            cuts = open_cuts(self._shards, seed=self._config.seed + self.epoch)
        if self._config.shuffle and isinstance(cuts, list):
            cuts = random.Random(f"{self._config.seed}/{self.epoch}").sample(cuts, len(cuts))
        for cut in cuts:
            problem = self._problem(cut)
            if problem is None:
                yield cut
            else:
                self.left_out[problem] = self.left_out.get(problem, 0) + 1

    def _problem(self, cut: Any) -> str | None:
        if cut.duration < self._shortest:
            return "too short"
        if cut.duration > self._config.longest:
            return "too long"
        return None if cut_text(cut) else "without text"


def _sampler(cuts: _Cuts, config: BatchConfig, rank: int, world_size: int) -> Any:
    from lhotse.dataset.sampling import DynamicBucketingSampler

    lengths = sorted(cut.duration for cut in islice(cuts, cuts.sample_size))
    # Bucket borders at equal shares of the audio; few utterances make few buckets.
    count = max(1, min(config.buckets, len(lengths) // 2))
    borders: list[float] = []
    total, filled = sum(lengths), 0.0
    for length in lengths:
        filled += length
        if filled > total * (len(borders) + 1) / count and len(borders) < count - 1:
            borders.append(length)
    borders = sorted(set(borders)) or [lengths[-1] + 1.0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*buffer_size.*")
        return DynamicBucketingSampler(
            cuts,
            max_duration=config.seconds,
            max_cuts=config.utterances or None,
            duration_bins=borders,
            buffer_size=config.buffer,
            shuffle=config.shuffle,
            seed=config.seed,
            rank=rank,
            world_size=world_size,
        )


class _After:
    """A sampler without its first batches. Skipping reads no audio."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self._sampler, self._skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*buffer_size.*")
            yield from islice(iter(self._sampler), self._skip, None)


@dataclass
class _Loaded:
    """What a worker sends: waveforms (B, N) or features (B, T', D) as `signal`, and the labels."""

    ids: list[str]
    signal: Tensor
    signal_lengths: Tensor
    labels: Tensor
    label_lengths: Tensor
    texts: list[str]
    seconds: float

    def pin_memory(self) -> _Loaded:
        for name in ("signal", "signal_lengths", "labels", "label_lengths"):
            setattr(self, name, getattr(self, name).pin_memory())
        return self


class _Loader:
    """Loads the audio of a batch of cuts; runs in the worker processes."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        frontend: Frontend | None,
        augmenter: Augmenter,
        rate: int,
        normalise: Callable[[str], str] | None,
    ) -> None:
        self._tokenizer, self._frontend, self._augmenter = tokenizer, frontend, augmenter
        self._rate, self._normalise = rate, normalise
        self.epoch = 0

    def __getitem__(self, cuts: Any) -> _Loaded:
        ids, texts, waves = [], [], []
        for cut in cuts:
            text = cut_text(cut)
            ids.append(cut.id)
            texts.append(self._normalise(text) if self._normalise else text)
            waves.append(cut_waveform(cut, self._rate, lambda c: self._augmenter(c, self.epoch)))
        labels = [torch.tensor(self._tokenizer.encode(text), dtype=torch.long) for text in texts]
        signal = pad_sequence(waves, batch_first=True)
        lengths = torch.tensor([len(wave) for wave in waves])
        seconds = float(lengths.sum()) / self._rate
        if self._frontend is not None:
            signal, lengths = self._frontend.from_waveforms(signal, lengths)
        return _Loaded(
            ids,
            signal,
            lengths,
            pad_sequence(labels, batch_first=True),
            torch.tensor([len(row) for row in labels]),
            texts,
            seconds,
        )


def cut_text(cut: Any) -> str:
    """The transcript of a cut: the texts of its supervisions in the order of time."""
    spoken = sorted(cut.supervisions, key=lambda s: s.start)
    return " ".join(s.text.strip() for s in spoken if s.text and s.text.strip())


def cut_waveform(cut: Any, rate: int, change: Callable[[Any], Any] | None = None) -> Tensor:
    """Mono samples (N,) of a cut at `rate`, changed by `change` (an `Augmenter`) on the way."""
    if cut.sampling_rate != rate:
        cut = cut.resample(rate)
    if change is not None:
        cut = change(cut)
    from lhotse.audio.utils import AudioLoadingError, DurationMismatchError

    try:
        samples = torch.from_numpy(cut.load_audio())
    except (AudioLoadingError, DurationMismatchError, OSError, RuntimeError, ValueError) as error:
        raise AudioError(f"the audio of cut {cut.id} cannot be loaded: {error}") from error
    return samples.mean(0).float()
