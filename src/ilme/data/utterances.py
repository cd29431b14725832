"""The utterances of a dev or test set: id, audio, transcript, speaker. From NeMo-style JSON lines or Lhotse cuts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ilme.data.audio import Samples, load_audio
from ilme.errors import BadInputError

__all__ = ["Reference", "Utterance", "in_memory", "read_utterances", "references_of", "unique_by_id"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class Reference:
    """One utterance of the test set.

    Attributes:
        text: Its transcript, as it came.
        speaker: Who spoke; empty if nobody said.
        seconds: How long it is; 0 if nobody said.
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
        speaker: Who spoke; empty if nobody said.
        seconds: How long it is; 0 if nobody said.
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
        if self.start or (self.seconds and len(samples) > (self.seconds + 0.5) * rate):
            begin = round(self.start * rate)
            samples = samples[begin : begin + round(self.seconds * rate)]
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
    if path.is_dir() and (path / "manifest.jsonl").is_file():
        path = path / "manifest.jsonl"
    if path.is_file() and path.suffix in (".jsonl", ".json") and "audio_filepath" in _first_line(path):
        rows: Iterable[tuple[Utterance, str]] = _from_nemo(path)
    else:
        rows = _from_cuts(path)
    chosen = [u for u, of in rows if not split or of == split]
    if not chosen:
        wanted = f" of split {split!r}" if split else ""
        raise BadInputError(f"{path} holds no utterances{wanted}")
    unique_by_id(((u.id, u) for u in chosen), str(path))
    return chosen[:limit] if limit else chosen


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line for line in lines if line.strip()), "")


def _from_nemo(path: Path) -> Iterator[tuple[Utterance, str]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                audio = Path(row["audio_filepath"])
                utterance = Utterance(
                    id=str(row.get("id") or audio.with_suffix("").as_posix()),
                    text=row["text"],
                    audio=audio if audio.is_absolute() else path.parent / audio,
                    speaker=str(row.get("speaker", "")),
                    seconds=float(row.get("duration", 0.0)),
                    start=float(row.get("offset", 0.0)),
                )
            except (ValueError, KeyError, TypeError) as error:
                raise BadInputError(f"{path}, line {number}: not an utterance ({error!r})") from error
            yield utterance, str(row.get("split", ""))


def _from_cuts(path: Path) -> Iterator[tuple[Utterance, str]]:
    from ilme.data.manifests import open_cuts

    for cut in open_cuts(path):
        spoken = cut.supervisions
        source = cut.recording.sources[0].source if cut.has_recording else ""
        on_disk = bool(source) and not cut.recording.transforms and Path(str(source)).is_file()
        yield (
            Utterance(
                id=cut.id,
                text=" ".join(s.text or "" for s in spoken).strip(),
                audio=Path(str(source)) if on_disk else cut.load_audio()[0],
                speaker=next((s.speaker for s in spoken if s.speaker), ""),
                seconds=float(cut.duration),
                start=float(cut.start) if on_disk else 0.0,
                rate=0 if on_disk else int(cut.sampling_rate),
            ),
            _split_of(cut),
        )


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
