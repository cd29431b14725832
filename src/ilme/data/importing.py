"""From a corpus as it comes to Lhotse cuts that training can trust.

Every utterance found is decoded once and checked. What passes becomes a cut; what does not is listed in
`rejected.jsonl` with its reason. accepted + rejected = found, always.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ilme.data.audio import AudioError, Samples, read_audio
from ilme.data.corpora import CorpusEntry, Layout, read_corpus
from ilme.data.manifests import ManifestWriter, file_name
from ilme.errors import BadInputError
from ilme.runtime.files import make_folder

__all__ = ["Checks", "ImportReport", "Rejected", "check_recording", "import_corpus"]


@dataclass(frozen=True)
class Checks:
    """What an utterance must be to be accepted.

    Attributes:
        shortest: Seconds of audio at least.
        longest: Seconds of audio at most; 0 means no limit.
        silence_db: Audio that is quieter than this even where it is loudest is silent: the level of its 20 ms frames,
            95th percentile, in decibels of full scale. A click does not make it loud.
        duration_error: Largest share by which a stated duration may differ from the file's.
        fastest: Letters a second at most: faster speech means that text and audio do not belong together.
    """

    shortest: float = 0.1
    longest: float = 0.0
    silence_db: float = -50.0
    duration_error: float = 0.05
    fastest: float = 30.0

    def __post_init__(self) -> None:
        for name in ("shortest", "longest", "duration_error"):
            if not getattr(self, name) >= 0:
                raise BadInputError(f"{name}={getattr(self, name)} must not be negative")
        if not self.fastest > 0:
            raise BadInputError(f"fastest={self.fastest} must be positive")


@dataclass(frozen=True)
class Rejected:
    """An utterance that was left out, and why: a line of rejected.jsonl."""

    id: str
    reason: str
    detail: str
    audio: str
    text: str


@dataclass(frozen=True)
class ImportReport:
    """What an import found and made."""

    source: str
    found: int
    accepted: int
    rejected: int
    seconds: float
    reasons: dict[str, int]
    splits: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def import_corpus(
    source: str,
    out: Path,
    layout: Layout = "auto",
    checks: Checks | None = None,
    *,
    strict: bool = False,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Reads, checks and writes a corpus.

    Writes `cuts.jsonl.gz`, one `cuts-SPLIT.jsonl.gz` per value of the field `split` where the corpus has one,
    `rejected.jsonl` and `import.json` into `out`.

    Args:
        source: Folder, manifest or Hugging Face name.
        out: Folder for the result; made if absent.
        layout: How the corpus is laid out.
        checks: What to reject.
        strict: Stop with an error at the first utterance that would be rejected.
        workers: Threads that decode audio.
        progress: Called with (done, found) from time to time.
    """
    checks = checks or Checks()
    make_folder(out)
    found = read_corpus(source, layout, staging=out / "audio")
    if not found:
        raise BadInputError(f"{source} names no utterance")
    seconds, reasons, splits = 0.0, Counter[str](), Counter[str]()
    with ManifestWriter(out) as files:
        files.open("cuts.jsonl.gz")
        files.open("rejected.jsonl")
        for done, outcome in enumerate(_checked(found, checks, workers), start=1):
            if isinstance(outcome, Rejected):
                if strict:
                    raise BadInputError(f"{outcome.id}: {outcome.reason}: {outcome.detail} (--strict stops here)")
                files.write("rejected.jsonl", asdict(outcome))
                reasons[outcome.reason] += 1
            else:
                files.write("cuts.jsonl.gz", outcome)
                seconds += outcome["duration"]
                split = (outcome["supervisions"][0].get("custom") or {}).get("split")
                if split is not None:
                    files.write(f"cuts-{file_name(split)}.jsonl.gz", outcome)
                    splits[split] += 1
            if progress is not None and (done % 100 == 0 or done == len(found)):
                progress(done, len(found))
        report = ImportReport(
            source=str(source),
            found=len(found),
            accepted=files.counts["cuts.jsonl.gz"],
            rejected=files.counts["rejected.jsonl"],
            seconds=round(seconds, 3),
            reasons=dict(reasons.most_common()),
            splits=dict(splits),
        )
        files.write("import.json", {**report.to_json(), "layout": layout, "checks": asdict(checks)})
    return report


def _checked(found: list[CorpusEntry], checks: Checks, workers: int) -> Iterator[dict[str, Any] | Rejected]:
    """The outcome of every utterance, in order. A file that several utterances share is decoded once."""
    names: set[str] = set()
    unique: list[CorpusEntry] = []
    for utterance in found:
        if utterance.id in names and utterance.problem is None:
            detail = "an earlier utterance has this id"
            utterance = replace(utterance, problem=("duplicate id", detail))
        names.add(utterance.id)
        unique.append(utterance)
    recordings = [list(group) for _, group in groupby(unique, key=lambda u: u.audio or u.id)]
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for outcomes in _in_order(pool, recordings, checks, window=8 * max(1, workers)):
            yield from outcomes


def _in_order(
    pool: ThreadPoolExecutor, recordings: list[list[CorpusEntry]], checks: Checks, window: int
) -> Iterator[list[dict[str, Any] | Rejected]]:
    """Results in order with at most `window` recordings waiting, so that little is left to do at a stop."""
    waiting: list[Any] = []
    for recording in recordings:
        waiting.append(pool.submit(check_recording, recording, checks))
        if len(waiting) >= window:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def check_recording(utterances: list[CorpusEntry], checks: Checks) -> list[dict[str, Any] | Rejected]:
    """Cuts (as Lhotse's JSON) or rejections of the utterances of one audio file."""
    audio = utterances[0].audio
    failure: tuple[str, str] | None = None
    samples: Samples = np.zeros((1, 0), np.float32)
    rate = 1
    if any(u.problem is None and _plain_text(u) for u in utterances):
        try:
            if audio is None:
                raise AudioError("no audio file is named", "missing")
            samples, rate = read_audio(audio)
        except (AudioError, OSError) as error:
            failure = (error.reason if isinstance(error, AudioError) else "unreadable", str(error))
    outcomes: list[dict[str, Any] | Rejected] = []
    for utterance in utterances:
        problem = utterance.problem or _text_problem(utterance) or failure
        problem = problem or _audio_problem(utterance, samples, rate, checks)
        if problem is None:
            outcomes.append(_cut(utterance, samples, rate))
        else:
            text = _plain_text(utterance)
            text = text if len(text) <= 500 else text[:500] + "…"
            outcomes.append(Rejected(utterance.id, *problem, str(utterance.audio or ""), text))
    return outcomes


def _text_problem(utterance: CorpusEntry) -> tuple[str, str] | None:
    if utterance.text is None:
        return "text missing", "there is no transcript"
    if not any(character.isalnum() for character in utterance.text):
        return "text missing", f"the transcript {utterance.text[:40]!r} has no letter or digit"
    if "\x00" in utterance.text:
        return "bad encoding", "the transcript holds zero bytes: it is binary, or UTF-16 without its mark"
    return None


def _audio_problem(utterance: CorpusEntry, samples: Samples, rate: int, checks: Checks) -> tuple[str, str] | None:
    """Why these samples (channels, N) of the whole file are not the utterance's audio, or None."""
    part = _segment(utterance, samples, rate)
    seconds = part.shape[1] / rate
    whole, stated = samples.shape[1] / rate, utterance.duration
    if utterance.start < 0 or (not utterance.whole_file and stated is not None and stated <= 0):
        return "bad segment", f"it starts at {utterance.start} s and lasts {stated} s"
    if not utterance.whole_file and (utterance.start >= whole or utterance.start + (stated or 0) > whole * 1.05 + 0.05):
        return "bad segment", f"{utterance.start} s + {stated} s is past the end of the file at {whole:.3f} s"
    if not seconds >= max(checks.shortest, 1 / rate):
        return "too short", f"it lasts {seconds:.4f} s; at least {checks.shortest} s are needed"
    if checks.longest and seconds > checks.longest:
        return "too long", f"it lasts {seconds:.1f} s; at most {checks.longest} s are wanted"
    if utterance.whole_file and stated is not None and abs(stated - seconds) > checks.duration_error * seconds:
        return "wrong duration", f"{stated} s are stated and {seconds:.3f} s are there"
    if not np.isfinite(part).all():
        return "not finite", "some samples are NaN or infinite"
    level = _loud_level(part, rate)
    if level < checks.silence_db:
        return "silent", f"its loud parts are at {level:.1f} dB of full scale; speech is above {checks.silence_db:g} dB"
    letters = sum(character.isalnum() for character in utterance.text or "")
    if letters / seconds > checks.fastest:
        return (
            "too fast",
            f"{letters} letters in {seconds:.2f} s; at most {checks.fastest:g} a second are plausible",
        )
    return None


def _loud_level(samples: Samples, rate: int) -> float:
    """Level of the louder frames of (channels, N): 10 log₁₀ of the 95th percentile of their mean squares, in dB."""
    mono = samples.mean(0)
    size = min(max(1, rate // 50), mono.size)
    frames = mono[: mono.size // size * size].reshape(-1, size)
    power = float(np.quantile(np.square(frames).mean(1), 0.95))
    return 10 * math.log10(max(power, 1e-12))


def _segment(utterance: CorpusEntry, samples: Samples, rate: int) -> Samples:
    if utterance.whole_file:
        return samples
    start = max(0, round(utterance.start * rate))
    end = samples.shape[1] if utterance.duration is None else start + max(0, round(utterance.duration * rate))
    return samples[:, start:end]


def _cut(utterance: CorpusEntry, samples: Samples, rate: int) -> dict[str, Any]:
    """The cut in Lhotse's JSON form: MonoCut, or MultiCut where the file has several channels."""
    from lhotse import MonoCut, MultiCut, Recording, SupervisionSegment
    from lhotse.audio import AudioSource

    audio = utterance.audio
    if audio is None:
        raise BadInputError(f"{utterance.id} has no audio file")
    channels = list(range(len(samples)))
    part = _segment(utterance, samples, rate)
    duration = part.shape[1] / rate
    recording_id = utterance.id if utterance.whole_file else utterance.fields.get("recording", audio.stem)
    recording = Recording(
        id=recording_id,
        sources=[AudioSource(type="file", channels=channels, source=str(audio.resolve()))],
        sampling_rate=rate,
        num_samples=samples.shape[1],
        duration=samples.shape[1] / rate,
    )
    channel: int | list[int] = 0 if len(channels) == 1 else channels
    supervision = SupervisionSegment(
        id=utterance.id,
        recording_id=recording_id,
        start=0.0,
        duration=duration,
        channel=channel,
        text=_plain_text(utterance),
        speaker=utterance.speaker,
        custom=utterance.fields or None,
    )
    kind = MonoCut if len(channels) == 1 else MultiCut
    start = 0.0 if utterance.whole_file else round(utterance.start * rate) / rate
    cut = kind(utterance.id, start, duration, channel, [supervision], recording=recording)
    return dict(cut.to_dict())


def _plain_text(utterance: CorpusEntry) -> str:
    """The transcript on one line."""
    return " ".join((utterance.text or "").split())
