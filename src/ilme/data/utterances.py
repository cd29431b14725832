"""The utterances of a dev or test set: id, audio, transcript, speaker. From NeMo-style JSON lines or Lhotse cuts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ilme.data.audio import AudioError, Samples, audio_info, load_audio
from ilme.data.manifests import CheckedCuts, cuts_path, is_shar, number, open_cuts, plain_text, read_json_lines
from ilme.errors import BadInputError, IlmeError

__all__ = ["Reference", "Utterance", "in_memory", "read_utterances", "references_of", "unique_by_id"]

SHORTEST = 0.025  # seconds of an utterance: one frame of features
SLACK = 0.5  # seconds by which a manifest and a file may differ: durations are rounded, codecs pad
Value = TypeVar("Value")
Row = tuple[int, "Utterance", str]  # line number, utterance, split


@dataclass(frozen=True)
class Reference:
    """One utterance of the test set.

    Attributes:
        text: Its transcript, as it came.
        speaker: Who spoke; empty if it is not known.
        seconds: How long it is; 0 if it is not known.
        audio: Where the recording is; empty if nowhere.
    """

    text: str
    speaker: str = ""
    seconds: float = 0.0
    audio: str = ""


@dataclass(frozen=True)
class Utterance:
    """One utterance.

    Attributes:
        id: Its name, unlike any other in the set.
        text: Its transcript.
        audio: The recording: a file, or an array of samples.
        speaker: Who spoke; empty if it is not known.
        seconds: How long it is; 0 if it is not known.
        start: Where it begins in the file, in seconds.
        rate: Samples a second, where the audio is an array; 0 if it is at the rate that will be asked for.
    """

    id: str
    text: str
    audio: Any
    speaker: str = ""
    seconds: float = 0.0
    start: float = 0.0
    rate: int = 0

    def samples(self, rate: int) -> Samples:
        """Its audio (N,) at `rate`."""
        samples = load_audio(self.audio, rate, source_rate=self.rate or None)
        if self.start or (self.seconds and len(samples) > (self.seconds + SLACK) * rate):
            begin = round(self.start * rate)
            samples = samples[begin : begin + round(self.seconds * rate) if self.seconds else None]
        if not len(samples):
            raise AudioError(f"{self.id}: {self.audio} ends before {self.start:.2f} s", "empty")
        return samples

    def reference(self) -> Reference:
        audio = str(self.audio) if isinstance(self.audio, str | Path) else ""
        return Reference(self.text, self.speaker, self.seconds, audio)


def in_memory(utterances: Sequence[Utterance], rate: int) -> list[Utterance]:
    """The same utterances with their audio read, in threads, and brought to `rate`."""
    with ThreadPoolExecutor() as pool:
        waves = list(pool.map(lambda u: u.samples(rate), utterances))
    return [replace(u, audio=wave, start=0.0, rate=rate) for u, wave in zip(utterances, waves, strict=True)]


def references_of(utterances: Sequence[Utterance]) -> dict[str, Reference]:
    return {u.id: u.reference() for u in utterances}


def read_utterances(path: Path, *, split: str = "", limit: int = 0) -> list[Utterance]:
    """The utterances of a manifest, in its order.

    Args:
        path: NeMo-style JSON lines (`audio_filepath`, `text`, optional `id`, `speaker`, `duration`, `split`), or Lhotse
            cuts, or a folder that holds `manifest.jsonl` or `cuts.jsonl.gz`.
        split: Only utterances whose `split` is this.
        limit: At most this many; 0 takes all.
    """
    path = Path(path)
    if limit < 0:
        raise BadInputError(f"limit must be at least 0, not {limit}")
    path = _manifest(path)
    chosen = [row for row in _rows(path) if not split or row[2] == split]
    if not chosen:
        wanted = f" of split {split!r}" if split else ""
        raise BadInputError(f"{path} holds no utterances{wanted}")
    unique_by_id(((u.id, u) for _, u, _ in chosen), str(path))
    chosen = chosen[:limit] if limit else chosen
    _check_recordings(path, chosen)
    return [utterance for _, utterance, _ in chosen]


def _manifest(path: Path) -> Path:
    if os.path.isfile(path / "manifest.jsonl"):  # noqa: PTH113  (unlike Path.is_file, False for a name that is too long)
        return path / "manifest.jsonl"
    try:
        return cuts_path(path)
    except BadInputError as error:
        raise BadInputError(
            f"there is no manifest at {path}: name JSON lines of utterances (manifest.jsonl), Lhotse cuts "
            "(cuts.jsonl.gz), a folder with one of them, or Shar shards"
        ) from error


def _rows(path: Path) -> Iterator[Row]:
    """By what the first line is: an utterance, or a cut."""
    if not is_shar(path):
        _, first = next(read_json_lines(path), (0, {"audio_filepath": ""}))
        if "audio_filepath" in first:
            return _from_nemo(path)
        if "supervisions" not in first and "type" not in first:
            raise BadInputError(
                f"{path} begins with a line that is neither an utterance (audio_filepath, text) nor a Lhotse cut; its "
                f"fields are {', '.join(map(ascii, list(first)[:8])) or 'none'}"
            )
    return _from_cuts(path)


def _from_nemo(path: Path) -> Iterator[Row]:
    for line, row in read_json_lines(path):
        try:
            audio = Path(plain_text(row, "audio_filepath"))
            if not audio.name:
                raise BadInputError("audio_filepath is missing or empty")
            if not isinstance(row.get("text"), str):
                raise BadInputError(f"text must be a text, not {row.get('text')!r:.60}")
            if row.get("duration") is not None and number(row, "duration") < SHORTEST:
                raise BadInputError(f"duration must be at least {SHORTEST} s, not {row['duration']}")
            utterance = Utterance(
                id=plain_text(row, "id") or audio.with_suffix("").as_posix(),
                text=plain_text(row, "text"),
                audio=audio if audio.is_absolute() else path.parent / audio,
                speaker=plain_text(row, "speaker"),
                seconds=number(row, "duration"),
                start=number(row, "offset"),
            )
            split = plain_text(row, "split")
        except BadInputError as error:
            raise BadInputError(f"{path}, line {line}: not an utterance: {error}") from error
        yield line, utterance, split


def _from_cuts(path: Path) -> Iterator[Row]:
    cuts = enumerate(open_cuts(path), 1) if is_shar(path) else CheckedCuts(path).numbered()
    for line, cut in cuts:
        try:
            utterance = _utterance(cut)
        except Exception as error:  # of Lhotse, which reads the audio here
            why = " ".join(str(error).split())[:300]
            raise BadInputError(f"{path}, line {line}: the cut {cut.id} cannot be used: {why}") from error
        yield line, utterance, _split_of(cut)


def _utterance(cut: Any) -> Utterance:
    spoken = cut.supervisions
    sources = cut.recording.sources if cut.has_recording else []
    on_disk = len(sources) == 1 and sources[0].type == "file" and not cut.recording.transforms
    return Utterance(
        id=cut.id,
        text=" ".join(s.text or "" for s in spoken).strip(),
        audio=Path(str(sources[0].source)) if on_disk else cut.load_audio()[0],
        speaker=next((s.speaker for s in spoken if s.speaker), ""),
        seconds=float(cut.duration),
        start=float(cut.start) if on_disk else 0.0,
        rate=0 if on_disk else int(cut.sampling_rate),
    )


def _check_recordings(path: Path, rows: Sequence[Row]) -> None:
    """Every recording can be opened, and is as long as its utterances say: found now, not after hours of work."""
    lengths: dict[Path, float] = {}
    for line, utterance, _ in rows:
        if not isinstance(utterance.audio, Path):
            continue
        try:
            if utterance.audio not in lengths:
                lengths[utterance.audio] = audio_info(utterance.audio).seconds
            _check_span(utterance, lengths[utterance.audio])
        except IlmeError as error:
            raise BadInputError(f"{path}, line {line}: {error}") from error


def _check_span(utterance: Utterance, length: float) -> None:
    end = utterance.start + utterance.seconds
    if utterance.start > length - SHORTEST or end > length + SLACK:
        asked = f"from {utterance.start:g} s" + (f" to {end:g} s" if utterance.seconds else "")
        raise BadInputError(f"{utterance.id} is {asked}, and {utterance.audio} ends after {length:g} s")


def _split_of(cut: Any) -> str:
    """Where `ilme data import` keeps it: with the supervision; a manifest of others may have it with the cut."""
    kept = [cut.custom, *(s.custom for s in cut.supervisions)]
    return next((str(custom["split"]) for custom in kept if custom and "split" in custom), "")


def unique_by_id(pairs: Iterable[tuple[str, Value]], what: str) -> dict[str, Value]:
    """A dict of the pairs; an id that comes twice is an error, never a silent replacement."""
    out: dict[str, Value] = {}
    for key, value in pairs:
        if key in out:
            raise BadInputError(f"the id {key!r} comes twice in {what}; every utterance needs an id of its own")
        out[key] = value
    return out
