"""A domain folder that `ilme adapt` wrote, ready to transcribe.

import ilme
ward = ilme.load("my-domain")
print(ward.transcribe("visit.flac").text)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.adapters.hf import RATE, TransformerAED
from ilme.adapters.recognition import SEARCH, AdaptedRecogniser
from ilme.adapters.whisper_timestamps import TimestampRules, stamped_segments
from ilme.data.audio import AudioSource, Samples, load_audio
from ilme.data.audio_stream import AudioStream
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.ilm.transformer import from_tensors
from ilme.lm.case_folding import FoldedScorer, Folds, fold_internal
from ilme.protocols import TokenScorer
from ilme.recogniser.transcripts import Segment, Transcript
from ilme.recogniser.windows import Window, is_silent, stream_windows
from ilme.search.attention import AttentionOptions
from ilme.search.hypothesis import Hypothesis, NBest

__all__ = ["Domain", "DomainRecogniser", "load"]

FORMAT, VERSION = "ilme-domain", 1
CARD, LM, INTERNAL = "domain.json", "lm.safetensors", "internal.safetensors"
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class Domain:
    """What a domain folder says about itself.

    Attributes:
        model: Hub id, folder or file of the model.
        model_options: Language, task, prompt and the like.
        weights: The fusion weights; all 0 if tuning found no gain.
        internal: Name of the internal LM's estimator; empty if none is subtracted.
        search: How to search.
        lm: The LM's file in the folder, or its name elsewhere; empty if none is used.
        style: How the LM reads the model's tokens: `fold` passes over case and punctuation, all else as they are.
        report: Dev results, text statistics, time, versions.
    """

    model: str
    model_options: dict[str, Any] = field(default_factory=dict)
    weights: FusionWeights = field(default_factory=FusionWeights)
    internal: str = ""
    search: AttentionOptions = SEARCH
    lm: str = LM
    style: str = "restore"
    report: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        data["search"] = {k: v for k, v in data["search"].items() if v != float("inf")}
        part = folder / f"{CARD}.part"
        part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(folder / CARD)

    @classmethod
    def read(cls, folder: Path) -> Domain:
        file = folder / CARD
        if not file.is_file():
            raise CheckpointError(f"{folder} is no domain folder: it has no {CARD}; `ilme adapt` writes one")
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{file} is not JSON: {error}") from error
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise CheckpointError(
                f"{file} has format {data.get('format')!r}, version {data.get('version')!r}; "
                f"this version of ilme reads {FORMAT} {VERSION}: run `ilme adapt` again"
            )
        try:
            return cls(
                model=data["model"],
                model_options=dict(data["model_options"]),
                weights=FusionWeights(**data["weights"]),
                internal=data["internal"],
                search=AttentionOptions(**data["search"]),
                lm=data["lm"],
                style=data.get("style", "restore"),  # folders written before there was a choice
                report=dict(data["report"]),
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged: {error!r}; run `ilme adapt` again") from error


class DomainRecogniser:
    """A model with the LM, the internal LM and the weights of one domain.

    Args:
        domain: Weights and search options.
        recogniser: Model and scorers.
    """

    def __init__(self, domain: Domain, recogniser: AdaptedRecogniser) -> None:
        self.domain = domain
        self.recogniser = recogniser

    @property
    def model(self) -> TransformerAED:
        return self.recogniser.model  # type: ignore[no-any-return]

    def transcribe(
        self,
        audio: AudioSource,
        *,
        rate: int | None = None,
        batch: int = 8,
        progress: Progress | None = None,
    ) -> Transcript:
        """What is said in a file or an array, however long.

        Long audio is cut at quiet places into windows that the model can take; silence gives no text. Of a file only
        the windows that are searched are in memory.

        Args:
            audio: A file, or samples (N,) or (channels, N).
            rate: Samples a second of an array; 16,000 if not given.
            batch: Windows that are searched at once.
            progress: Called with (seconds done, seconds in all).
        """
        blocks, seconds = _blocks(audio, rate)
        segments: list[Segment] = []
        for group in _groups(stream_windows(blocks, RATE, self.model.window), batch):
            segments += self._recognise(group)
            if progress is not None:
                progress(group[-1].end, seconds)
        source = str(audio) if isinstance(audio, str | Path) else ""
        return Transcript(tuple(segments), seconds, source)

    def nbest(self, audio: Sequence[Samples]) -> list[NBest]:
        """The n-best list of each waveform of 16 kHz that fits into one window."""
        encoded = self.recogniser.encode(audio)
        return self.recogniser.search(encoded, self.domain.weights, self.domain.search.beam)

    def _recognise(self, windows: Sequence[Window]) -> list[Segment]:
        heard = [i for i, w in enumerate(windows) if not is_silent(w.samples)]
        lists = self.nbest([windows[i].samples for i in heard]) if heard else []
        best = {i: nbest[0] for i, nbest in zip(heard, lists, strict=True) if nbest}
        segments: list[Segment] = []
        for i, window in enumerate(windows):
            segments += self._segments(window, best[i]) if i in best else [Segment(window.start, window.end, "")]
        return segments

    def _segments(self, window: Window, found: Hypothesis) -> list[Segment]:
        """The window's one segment; with time stamps those that the stamps make."""
        if not isinstance(self.model.rules, TimestampRules):
            return [Segment(window.start, window.end, found.text, found.score, found.scores)]
        length = window.end - window.start
        parts = stamped_segments(list(found.tokens), self.model.rules.first, length)
        return [
            Segment(window.start + a, window.start + b, self.model.tokenizer.decode(y), found.score, found.scores)
            for a, b, y in parts
        ]


def _blocks(audio: AudioSource, rate: int | None) -> tuple[Iterable[Samples], float]:
    """The audio at 16 kHz, block by block, and how many seconds it lasts."""
    if isinstance(audio, str | Path) and rate is None:
        stream = AudioStream(audio, RATE)
        return stream, stream.seconds
    samples = load_audio(audio, RATE, source_rate=rate)
    return [samples], len(samples) / RATE


def _groups(windows: Iterator[Window], size: int) -> Iterator[Sequence[Window]]:
    if size < 1:
        raise BadInputError(f"batch must be at least 1, got {size}")
    while group := list(islice(windows, size)):
        yield group


def load(
    folder: str | Path, *, model: str = "", device: str = "cpu", pack: bool = True, timestamps: bool = False
) -> DomainRecogniser:
    """Loads a domain folder.

    Args:
        folder: What `ilme adapt` wrote.
        model: Where the model is now, if it has moved.
        device: Where everything runs.
        pack: On the CPU, arrange the decoder's weights once: faster, the same results to rounding.
        timestamps: Let Whisper write time stamps, so that segments are as long as sentences, not as windows.
    """
    from ilme.adapters.loading import load_attention_model
    from ilme.recogniser.loading import load_scorer

    folder = Path(folder)
    domain = Domain.read(folder)
    options = domain.model_options | ({"timestamps": True} if timestamps else {})
    host = load_attention_model(model or domain.model, device, **options)
    lm: TokenScorer | None = None
    internal: TokenScorer | None = None
    if domain.weights.lm:
        file = folder / domain.lm
        lm = load_scorer(str(file if file.exists() else domain.lm), host.tokens, device)
    if domain.weights.subtracted:
        internal = from_tensors(host, domain.internal, read_tensors(folder / INTERNAL))
    if domain.style == "fold":
        folds = Folds(host.tokens, host.device)
        lm = None if lm is None else FoldedScorer(lm, folds)
        internal = None if internal is None else fold_internal(internal, folds)
    if pack and host.device.type == "cpu":
        host.pack()
    return DomainRecogniser(domain, AdaptedRecogniser(host, lm=lm, subtracted=internal, options=domain.search))


def read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; run `ilme adapt` again") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({k: v.detach().to("cpu", torch.float32).contiguous() for k, v in tensors.items()}, path)
