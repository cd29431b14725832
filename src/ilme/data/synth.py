"""Synthetic speech for a text domain: every sentence in a voice drawn from a seed.

The utterances are made in parts of fixed size, each by one process; a part's manifest appears only when all its audio
is there, so an interrupted run goes on where it stopped. What an utterance sounds like depends on the seed, on its
number and on nothing else: not on the number of processes, not on a restart.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ilme.data.audio import to_int16, write_audio
from ilme.data.espeak import ACCENTS, RATE_HZ, Voice, speak, variants
from ilme.data.neural_voice import NaturalVoice, draw_natural_voice, speak_naturally
from ilme.data.normalise import Profile, normalise, spoken
from ilme.data.tokenize import text_lines
from ilme.errors import BadInputError
from ilme.runtime.console import rich_console
from ilme.runtime.files import atomic_text, make_folder, write_json, write_json_lines
from ilme.runtime.processes import cores, ordered_map

__all__ = ["SynthOptions", "SynthReport", "draw_voice", "synthesise", "voice_names"]

PART = 100  # utterances made by one process in one go
_NEEDS_WORDS = re.compile(r"[\d&%@+=°$£€]")


@dataclass(frozen=True)
class SynthOptions:
    """How to speak a text.

    Attributes:
        seed: Another seed draws other voices.
        repeats: How often each sentence is spoken, each time in another voice.
        limit: Speak the first so many sentences only; None for all.
        accents: Languages to draw from.
        variants: Voice variants to draw from; None for all that sound like people.
        rate: Slowest and fastest, words a minute.
        pitch: Lowest and highest, 0–100.
        range: Least and greatest movement of the pitch, 0–100.
        natural: Share of the utterances that a neural voice speaks, not espeak-ng (`ilme.data.neural_voice`).
        sample_rate: Sample rate of the audio written, in Hz.
        format: Audio format; both lose nothing.
        transcript: Profile of the manifest's text.
        max_seconds: Longer utterances are rejected.
        workers: Processes; None for one per core. It does not change the result.
    """

    seed: int = 0
    repeats: int = 1
    limit: int | None = None
    accents: tuple[str, ...] = ACCENTS
    variants: tuple[str, ...] | None = None
    rate: tuple[int, int] = (140, 210)
    pitch: tuple[int, int] = (20, 80)
    range: tuple[int, int] = (30, 70)
    natural: float = 0.0
    sample_rate: int = 16_000
    format: Literal["flac", "wav"] = "flac"
    transcript: Profile = "spoken"
    max_seconds: float = 40.0
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (("rate", 80, 450), ("pitch", 0, 100), ("range", 0, 100)):
            value = getattr(self, name)
            if len(value) != 2 or not low <= value[0] <= value[1] <= high:
                raise BadInputError(f"{name} is a lower and an upper bound between {low} and {high}, got {value}")
        if self.limit is not None and self.limit < 0:
            raise BadInputError(f"limit must not be negative, got {self.limit}")
        if self.repeats < 1 or self.sample_rate < 1000 or self.max_seconds <= 0:
            raise BadInputError("repeats must be at least 1, sample_rate at least 1000, max_seconds more than 0")
        if not 0 <= self.natural <= 1:
            raise BadInputError(f"natural is a share of the utterances, from 0 to 1, got {self.natural}")
        if not self.accents or self.variants == ():
            raise BadInputError("there must be at least one accent and one variant to draw from")
        if self.format not in ("flac", "wav"):
            raise BadInputError(f"format must be flac or wav, got {self.format!r}")
        if self.workers is not None and self.workers < 1:
            raise BadInputError(f"workers must be at least 1, got {self.workers}")


@dataclass
class SynthReport:
    """What became of the sentences: spoken + rejected = sentences × repeats.

    Attributes:
        spoken: Utterances in manifest.jsonl.
        rejected: Utterances in rejected.jsonl: no sound, or too long.
        seconds: Length of all speech.
        parts_made: Parts made in this run; the others were there already.
        parts: All parts.
    """

    spoken: int = 0
    rejected: int = 0
    seconds: float = 0.0
    parts_made: int = 0
    parts: int = 0


@dataclass(frozen=True)
class _Part:
    """Utterances for one process: number of the first, and the sentences, one for each utterance."""

    number: int
    sentences: tuple[str, ...]


def voice_names(options: SynthOptions) -> tuple[str, ...]:
    """espeak-ng's variants to draw from; none where it is not asked to speak, and need not be installed."""
    return () if options.natural == 1 else tuple(options.variants or variants())


def draw_voice(options: SynthOptions, utterance: int, names: tuple[str, ...]) -> Voice | NaturalVoice:
    """The voice of an utterance: a function of the seed and its number."""
    draw = np.random.default_rng([options.seed, utterance])
    if options.natural and draw.random() < options.natural:
        return draw_natural_voice(draw)
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([options.seed, utterance])))
    return Voice(
        accent=options.accents[int(random.integers(len(options.accents)))],
        variant=names[int(random.integers(len(names)))],
        rate=int(random.integers(options.rate[0], options.rate[1] + 1)),
        pitch=int(random.integers(options.pitch[0], options.pitch[1] + 1)),
        range=int(random.integers(options.range[0], options.range[1] + 1)),
    )


def synthesise(
    text: list[str], out: str | os.PathLike[str], options: SynthOptions | None = None, progress: bool = False
) -> SynthReport:
    """Speaks the lines of text files into the folder `out`: audio/, manifest.jsonl (NeMo style), rejected.jsonl.

    Args:
        text: Files and globs, one sentence to a line.
        out: The folder; a run that was interrupted goes on there.
        options: How.
        progress: Show a progress bar on stderr.
    """
    options = options or SynthOptions()
    folder = Path(out)
    _claim(folder, options, _text_hash(text, options))
    names = voice_names(options)
    report = SynthReport()
    waiting = [part for part in _parts(text, options) if _count(report, folder, part)]
    report.parts_made = len(waiting)
    with _Bar(progress, report.parts, report.parts - len(waiting)) as step:
        workers = min(options.workers or cores(), max(len(waiting), 1))
        for _ in ordered_map(_Maker(folder, options, names), waiting, workers):
            step()
    _join(folder, report)
    return report


def _count(report: SynthReport, folder: Path, part: _Part) -> bool:
    """Counts a part; says whether it is still to be made."""
    report.parts += 1
    return not _part_path(folder, part.number).exists()


def _part_path(folder: Path, number: int) -> Path:
    return folder / "parts" / f"{number:06}.jsonl"


def _sentences(text: list[str], options: SynthOptions) -> Iterator[str]:
    return itertools.islice(text_lines(text), options.limit)


def _text_hash(text: list[str], options: SynthOptions) -> str:
    digest, lines = sha256(), 0
    for line in _sentences(text, options):
        digest.update(line.encode("utf-8", "replace") + b"\n")
        lines += 1
    if not lines:
        raise BadInputError(f"there is nothing to speak in {', '.join(text)}")
    return digest.hexdigest()


def _claim(folder: Path, options: SynthOptions, text_hash: str) -> None:
    """Writes what the folder holds, or checks that it holds the same."""
    wanted = {"text": text_hash, **{k: v for k, v in asdict(options).items() if k != "workers"}}
    if not options.natural:
        del wanted["natural"]  # which older folders have not
    wanted = json.loads(json.dumps(wanted))
    path = folder / "synth.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
        if differing:
            raise BadInputError(
                f"{folder} already holds speech made with another {', '.join(differing)}; choose another folder"
            )
    write_json(path, wanted, indent=2)


def _parts(text: list[str], options: SynthOptions) -> Iterator[_Part]:
    """Sentences in the order of the text, each `repeats` times in a row, PART at a time."""
    spoken_lines = itertools.chain.from_iterable(
        itertools.repeat(s, options.repeats) for s in _sentences(text, options)
    )
    for number in itertools.count():
        chunk = tuple(itertools.islice(spoken_lines, PART))
        if not chunk:
            return
        yield _Part(number, chunk)


@dataclass(frozen=True)
class _Maker:
    """Makes one part."""

    folder: Path
    options: SynthOptions
    names: tuple[str, ...]

    def __call__(self, part: _Part) -> None:
        entries = []
        audio = self.folder / "audio" / f"{part.number:06}"
        make_folder(audio)
        for i, sentence in enumerate(part.sentences):
            number = part.number * PART + i
            voice = draw_voice(self.options, number, self.names)
            entries.append(self._utterance(sentence, voice, audio / f"{number:09}.{self.options.format}"))
        write_json_lines(_part_path(self.folder, part.number), entries)

    def _utterance(self, sentence: str, voice: Voice | NaturalVoice, path: Path) -> dict[str, Any]:
        transcript = normalise(sentence, self.options.transcript)
        # Where digits and symbols could be read in two ways, what is said is what the spoken profile writes.
        said = spoken(sentence) if _NEEDS_WORDS.search(sentence) else sentence
        if isinstance(voice, NaturalVoice):
            samples = _resampled(speak_naturally(said, voice) * 32768, voice.rate, self.options.sample_rate)
            manner = {"pace": voice.pace, "pitch": voice.pitch}
        else:
            samples = _resampled(speak(said, voice), RATE_HZ, self.options.sample_rate)
            manner = {"rate": voice.rate, "pitch": voice.pitch, "range": voice.range}
        seconds = len(samples) / self.options.sample_rate
        reason = None
        if not transcript or not samples.any():
            reason = "no sound"
        elif seconds > self.options.max_seconds:
            reason = f"{seconds:.1f} s is more than {self.options.max_seconds:g} s"
        if reason is not None:
            return {"text": sentence, "voice": voice.name, "rejected": reason}
        write_audio(path, samples, self.options.sample_rate, subtype="PCM_16", format=self.options.format.upper())
        return {
            "audio_filepath": path.relative_to(self.folder).as_posix(),
            "duration": round(seconds, 4),
            "text": transcript,
            "speaker": voice.name,
            **manner,
        }


def _resampled(samples: NDArray[Any], source_rate: int, rate: int) -> NDArray[np.int16]:
    """To another rate, from numbers of the size of int16 samples."""
    changed = samples.astype(np.float32)
    if rate != source_rate and len(samples):
        from scipy.signal import resample_poly

        divisor = int(np.gcd(rate, source_rate))
        changed = resample_poly(changed, rate // divisor, source_rate // divisor)
    return to_int16(changed)


class _Bar:
    """A progress bar over parts, or nothing."""

    def __init__(self, shown: bool, total: int, done: int) -> None:
        from rich.progress import Progress

        self._progress = Progress(console=rich_console(stderr=True), disable=not shown)
        self._task = self._progress.add_task("speaking", total=total, completed=done)

    def __enter__(self) -> Any:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _join(folder: Path, report: SynthReport) -> None:
    """Writes the manifests from those of the parts."""
    with atomic_text(folder / "manifest.jsonl") as manifest, atomic_text(folder / "rejected.jsonl") as rejected:
        for number in range(report.parts):
            for line in _part_path(folder, number).read_text(encoding="utf-8").splitlines(keepends=True):
                entry = json.loads(line)
                if "rejected" in entry:
                    report.rejected += 1
                    rejected.write(line)
                else:
                    report.spoken += 1
                    report.seconds += entry["duration"]
                    manifest.write(line)
