"""The acoustic frontend: log-mel filterbank, stacked frames, normalisation.

Shapes: B utterances, N samples, T frames of 10 ms, T' stacked frames, M mel bins, K frames in a stack.

One code path serves files, arrays and padded batches, on CPU and GPU: everything is padded to a batch of
waveforms, and `Frontend.from_waveforms` does the rest. Frames lie wholly inside their utterance (Kaldi's
`snip_edges`), so padding, batching and cutting audio into chunks never change a frame. Whisper's own features, the
other kind, are scaled by the utterance's loudest value: padding does not change them, cutting does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.data.audio import AudioError, AudioSource, load_audio
from ilme.data.whisper_mel import WhisperMel
from ilme.errors import BadInputError

__all__ = ["Frontend", "FrontendConfig", "frame_mask", "global_statistics"]

Kind = Literal["kaldi", "whisper"]
Normalisation = Literal["none", "global", "utterance"]

FRAMES = 500  # of all rows of a batch, whose spectra are made at a time on a CPU


@dataclass(frozen=True)
class FrontendConfig:
    """How audio becomes features. It is stored with every model.

    Attributes:
        rate: Samples a second; other audio is resampled to it.
        mel_bins: Filters, M.
        window: Length of a frame, in seconds.
        hop: From one frame to the next, in seconds.
        lowest: Lower edge of the first filter, in Hz.
        highest: Upper edge of the last filter, in Hz; zero or negative counts down from half the rate.
        stack: Consecutive frames joined into one feature vector, K.
        stride: Frames from one feature vector to the next.
        normalisation: `none`; `global`: by the stored mean and istd; `utterance`: by the utterance's own mean
            and standard deviation, per mel bin.
        mean: For `global`: mean of each mel bin over the training data (M values).
        istd: For `global`: 1 / standard deviation of each mel bin (M values).
        kind: `kaldi`: natural logs, frames wholly inside the utterance; `whisper`: Whisper's own log-mels, frames
            centred on every hop, scaled by the utterance's loudest value (`lowest` and `highest` are not used).
    """

    rate: int = 16000
    mel_bins: int = 80
    window: float = 0.025
    hop: float = 0.010
    lowest: float = 20.0
    highest: float = -400.0
    stack: int = 3
    stride: int = 3
    normalisation: Normalisation = "utterance"
    mean: tuple[float, ...] = ()
    istd: tuple[float, ...] = ()
    kind: Kind = "kaldi"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "istd", tuple(self.istd))
        for name in ("rate", "mel_bins", "window", "hop", "stack", "stride"):
            if not getattr(self, name) > 0:
                raise BadInputError(f"{name}={getattr(self, name)} must be positive")
        if self.kind not in ("kaldi", "whisper"):
            raise BadInputError(f"kind={self.kind!r} must be kaldi or whisper")
        highest = self.highest if self.highest > 0 else self.rate / 2 + self.highest
        if self.kind == "kaldi" and not 0 <= self.lowest < highest <= self.rate / 2:
            raise BadInputError(
                f"lowest={self.lowest} and highest={self.highest} are no range up to {self.rate / 2:g} Hz"
            )
        if self.normalisation not in ("none", "global", "utterance"):
            raise BadInputError(f"normalisation={self.normalisation!r} must be none, global or utterance")
        for name in ("mean", "istd"):
            values = getattr(self, name)
            if values and len(values) != self.mel_bins:
                raise BadInputError(f"{name} has {len(values)} values; mel_bins={self.mel_bins} need as many")
            if not all(math.isfinite(v) for v in values):
                raise BadInputError(f"{name} holds a value that is not finite")
        if self.normalisation == "global" and bool(self.mean) != bool(self.istd):
            raise BadInputError("give both mean and istd, or neither until they are measured")

    @property
    def dimension(self) -> int:
        """Values in a feature vector: K · M."""
        return self.mel_bins * self.stack

    @property
    def window_samples(self) -> int:
        return math.floor(self.window * self.rate)

    @property
    def hop_samples(self) -> int:
        return math.floor(self.hop * self.rate)

    @property
    def shortest(self) -> int:
        """Samples that give one feature vector; fewer give none."""
        if self.kind == "whisper":
            return max(self.window_samples, self.stack * self.hop_samples)
        return self.window_samples + (self.stack - 1) * self.hop_samples

    @property
    def seconds_per_vector(self) -> float:
        """Time from one feature vector to the next."""
        return self.stride * self.hop_samples / self.rate

    def frames(self, samples: Any) -> Any:
        """T of N, for numbers and tensors: 1 + ⌊(N − window) / hop⌋, or 0 if not even one window fits.

        Whisper's are ⌊N / hop⌋, of an utterance of at least one window.
        """
        if self.kind == "whisper":
            return samples // self.hop_samples * (samples >= self.window_samples)
        return _positive((samples - self.window_samples) // self.hop_samples + 1)

    def vectors(self, samples: Any) -> Any:
        """T' of N, for numbers and tensors: 1 + ⌊(T − K) / stride⌋, or 0."""
        return _positive((self.frames(samples) - self.stack) // self.stride + 1)

    def samples(self, vectors: int) -> int:
        """N of T': the fewest samples that give so many feature vectors, or more."""
        frames = (vectors - 1) * self.stride + self.stack
        if self.kind == "whisper":
            return max(self.window_samples, frames * self.hop_samples)
        return self.window_samples + (frames - 1) * self.hop_samples

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FrontendConfig:
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            raise BadInputError(f"the frontend has no setting named {', '.join(sorted(unknown))}")
        return cls(**data)


class Frontend:
    """Audio to features; moves to a device with `to`, as a model does, but has no weights to train."""

    def __init__(self, config: FrontendConfig | None = None, device: torch.device | str = "cpu") -> None:
        self.config = config or FrontendConfig()
        if self.config.normalisation == "global" and not self.config.mean:
            raise BadInputError(
                "normalisation='global' needs mean and istd; ilme.data.features.global_statistics finds them"
            )
        self._filterbank = _filterbank(self.config)
        self._mean = torch.tensor(self.config.mean)
        self._istd = torch.tensor(self.config.istd)
        self.to(device)

    def to(self, device: torch.device | str) -> Frontend:
        self.device = torch.device(device)
        self._filterbank.to(self.device)
        self._mean, self._istd = self._mean.to(self.device), self._istd.to(self.device)
        return self

    def __call__(
        self,
        audio: Sequence[AudioSource] | Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        rate: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Features (B, T', K · M), zero after each utterance's end, and lengths T' (B,), on this device.

        Args:
            audio: Files and arrays in any mixture, or a padded batch (B, N) at the frontend's rate.
            lengths: Samples of each row of a padded batch; all of it when None.
            rate: Samples a second of the arrays in `audio`; the frontend's when None.

        A file or array that is unusable or too short for one feature vector is an `AudioError`. In a padded
        batch nothing is inspected (that would stall a GPU): a row too short gives length 0.
        """
        if isinstance(audio, Tensor) and audio.dim() == 2:
            if rate not in (None, self.config.rate):
                raise BadInputError(f"a padded batch must be at {self.config.rate} Hz, not {rate}; pass a list")
            if lengths is None:
                lengths = torch.full((audio.size(0),), audio.size(1))
            return self.from_waveforms(audio, torch.as_tensor(lengths))
        if lengths is not None:
            raise BadInputError("lengths belong to a padded batch (B, N); a list has its own")
        if isinstance(audio, str) or not isinstance(audio, Sequence):
            raise BadInputError(f"pass a list of audio or a batch (B, N), not one {type(audio).__name__}")
        rows = [self._load(item, rate) for item in audio]
        if not rows:
            raise BadInputError("no audio was given: the list is empty")
        batch = pad_sequence(rows, batch_first=True)
        return self.from_waveforms(batch, torch.tensor([len(row) for row in rows]))

    @torch.no_grad()
    def from_waveforms(self, waveforms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, T', K · M) and lengths (B,) of waveforms (B, N), float in [-1, 1] or int16."""
        waveforms = waveforms.to(self.device, non_blocking=True)
        lengths = lengths.to(self.device, non_blocking=True)
        if lengths.shape != waveforms.shape[:1]:
            raise BadInputError(f"{waveforms.size(0)} waveforms came with lengths {tuple(lengths.shape)}")
        if waveforms.size(1) < self.config.shortest:
            waveforms = torch.nn.functional.pad(waveforms, (0, self.config.shortest - waveforms.size(1)))
        if not waveforms.is_floating_point():
            waveforms = waveforms.float() / (torch.iinfo(waveforms.dtype).max + 1.0)
        with torch.autocast(self.device.type, enabled=False):
            waveforms = waveforms.float()
            if self.config.kind == "whisper":  # its frames reach beyond the utterance's end, into silence
                waveforms = waveforms * frame_mask(lengths, waveforms.size(1))
            mel = self._log_mels(waveforms.contiguous())
            mel = self._normalise(mel, self.config.frames(lengths))
        vectors = self.config.vectors(lengths)
        features = stack_frames(mel, self.config.stack, self.config.stride)
        return features * frame_mask(vectors, features.size(1))[..., None], vectors

    def _log_mels(self, waveforms: Tensor) -> Tensor:
        """(B, N) to (B, T, M). Kaldi's frames know nothing of each other: on a CPU a few of them are made at a time,
        since a long batch would take tens of megabytes for its spectra, and longer than what fits into a cache.
        """
        if self.config.kind == "whisper" or self.device.type != "cpu":
            return self._filterbank(waveforms)  # type: ignore[no-any-return]
        hop, window = self.config.hop_samples, self.config.window_samples
        frames, step = int(self.config.frames(waveforms.size(1))), max(1, FRAMES // max(1, len(waveforms)))
        starts = range(0, frames, step)
        pieces = [waveforms[:, a * hop : (min(a + step, frames) - 1) * hop + window] for a in starts]
        return torch.cat([self._filterbank(piece) for piece in pieces], 1)

    def _load(self, item: AudioSource, rate: int | None) -> Tensor:
        is_array = not hasattr(item, "__fspath__") and not isinstance(item, str)
        samples = load_audio(item, self.config.rate, source_rate=rate if is_array else None)
        if len(samples) < self.config.shortest:
            name = "an array" if is_array else str(item)
            found, needed = len(samples) / self.config.rate, self.config.shortest / self.config.rate
            raise AudioError(f"{name} lasts {found:.4f} s; a feature vector takes {needed:.4f} s", "too short")
        return torch.from_numpy(samples)

    def _normalise(self, mel: Tensor, frames: Tensor) -> Tensor:
        """(x − mean) · istd per mel bin of (B, T, M); `utterance` takes both over the row's own frames."""
        if self.config.normalisation == "global":
            return (mel - self._mean) * self._istd
        if self.config.normalisation == "none":
            return mel
        mask = frame_mask(frames, mel.size(1))[..., None]
        count = frames.clamp(min=1)[:, None, None]
        mean = (mel * mask).sum(1, keepdim=True) / count
        centred = (mel - mean) * mask
        variance = centred.square().sum(1, keepdim=True) / count
        return centred * (variance + 1e-5).rsqrt()


def _filterbank(config: FrontendConfig) -> torch.nn.Module:
    """Waveforms (B, N) to log-mels (B, T, M)."""
    if config.kind == "whisper":
        return WhisperMel(config.rate, config.mel_bins, config.window_samples, config.hop_samples)
    from lhotse.features.kaldi.layers import Wav2LogFilterBank

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*snip_edges.*")
        made: torch.nn.Module = Wav2LogFilterBank(
            sampling_rate=config.rate,
            frame_length=config.window,
            frame_shift=config.hop,
            snip_edges=True,
            low_freq=config.lowest,
            high_freq=config.highest,
            num_filters=config.mel_bins,
        )
    return made.eval()


def stack_frames(mel: Tensor, stack: int, stride: int) -> Tensor:
    """(B, T, M) to (B, T', stack · M): vector i joins frames i·stride … i·stride + stack − 1."""
    windows = mel.unfold(1, stack, stride)  # (B, T', M, stack)
    return windows.transpose(2, 3).flatten(2)


def frame_mask(lengths: Tensor, size: int) -> Tensor:
    """(B, size) booleans: True inside each row's length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def global_statistics(
    config: FrontendConfig,
    audio: Iterable[Sequence[AudioSource] | Tensor],
    device: torch.device | str = "cpu",
) -> FrontendConfig:
    """The config with normalisation `global`, its mean and istd measured on batches of audio.

    mean = Σ x / n, istd = 1 / √(Σ x² / n − mean²), per mel bin, over every frame.
    """
    plain = Frontend(replace(config, normalisation="none", stack=1, stride=1, mean=(), istd=()), device)
    count, total, squares = 0, torch.zeros(config.mel_bins).double(), torch.zeros(config.mel_bins).double()
    for batch in audio:
        mel, lengths = plain(batch)
        inside = mel[frame_mask(lengths, mel.size(1))].double().cpu()
        count += len(inside)
        total += inside.sum(0)
        squares += inside.square().sum(0)
    if count == 0:
        raise BadInputError("no frame to measure: give at least one utterance")
    mean = total / count
    istd = (squares / count - mean.square()).clamp(min=1e-5).rsqrt()
    return replace(config, normalisation="global", mean=tuple(mean.tolist()), istd=tuple(istd.tolist()))


def _positive(count: Any) -> Any:
    return count.clamp(min=0) if isinstance(count, Tensor) else max(count, 0)
