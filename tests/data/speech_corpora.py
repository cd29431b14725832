"""Small speech corpora in every layout, made of synthetic sound, for the tests beside this file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

WORDS = ["the", "cat", "sees", "a", "green", "house", "and", "an", "old", "river", "under", "small", "trees"]


@dataclass(frozen=True)
class Spoken:
    id: str
    speaker: str
    chapter: str
    text: str
    samples: np.ndarray
    rate: int = 16000

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def speech(seconds: float, seed: int, rate: int = 16000) -> np.ndarray:
    """Sound with the spectrum of a vowel and the rhythm of syllables."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    pitch = random.uniform(90, 220)
    voice = sum(np.sin(2 * np.pi * pitch * k * time + random.uniform(0, 6)) / k for k in range(1, 12))
    sound = 0.2 * voice * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * time)) + 0.01 * random.standard_normal(time.size)
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def utterances(
    count: int, speakers: int = 4, rate: int = 16000, seconds: tuple[float, float] = (1.0, 2.0)
) -> list[Spoken]:
    random = np.random.default_rng(7)
    made = []
    for i in range(count):
        speaker, chapter = str(100 + i % speakers), str(10 + i % (2 * speakers))
        text = " ".join(random.choice(WORDS, size=int(random.integers(2, 6))))
        sound = speech(random.uniform(*seconds), i, rate)
        made.append(Spoken(f"{speaker}-{chapter}-{i:04d}", speaker, chapter, text, sound, rate))
    return made


def write_librispeech(folder: Path, spoken: list[Spoken]) -> Path:
    for item in spoken:
        chapter = folder / "dev-tiny" / item.speaker / item.chapter
        chapter.mkdir(parents=True, exist_ok=True)
        soundfile.write(chapter / f"{item.id}.flac", item.samples, item.rate)
        with (chapter / f"{item.speaker}-{item.chapter}.trans.txt").open("a") as file:
            file.write(f"{item.id} {item.text}\n")
    return folder


def write_commonvoice(folder: Path, spoken: list[Spoken]) -> Path:
    (folder / "clips").mkdir(parents=True)
    header = "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tlocale\n"
    tables = dict.fromkeys(("train", "dev", "test"), header)
    for i, item in enumerate(spoken):
        soundfile.write(folder / "clips" / f"{item.id}.mp3", item.samples, item.rate, format="MP3")
        split = ("train", "train", "dev", "test")[i % 4]
        tables[split] += f"{item.speaker}\t{item.id}.mp3\t{item.text}\t2\t0\t\tother\t\ten\n"
    for name, table in tables.items():
        (folder / f"{name}.tsv").write_text(table, encoding="utf-8")
    return folder


def write_kaldi(folder: Path, spoken: list[Spoken], segments: bool = False) -> Path:
    folder.mkdir(parents=True)
    lines: dict[str, list[str]] = {name: [] for name in ("wav.scp", "text", "utt2spk", "segments")}
    if segments:
        soundfile.write(folder / "call.wav", np.concatenate([s.samples for s in spoken]), spoken[0].rate)
        lines["wav.scp"].append("call call.wav")
    start = 0.0
    for item in spoken:
        if segments:
            lines["segments"].append(f"{item.id} call {start:.6f} {start + item.seconds:.6f}")
            start += item.seconds
        else:
            soundfile.write(folder / f"{item.id}.wav", item.samples, item.rate)
            lines["wav.scp"].append(f"{item.id} {folder / item.id}.wav")
        lines["text"].append(f"{item.id} {item.text}")
        lines["utt2spk"].append(f"{item.id} {item.speaker}")
    for name, content in lines.items():
        if content:
            (folder / name).write_text("\n".join(content) + "\n", encoding="utf-8")
    return folder


def write_nemo(folder: Path, spoken: list[Spoken], extension: str = "opus") -> Path:
    (folder / "audio").mkdir(parents=True)
    with (folder / "manifest.jsonl").open("w", encoding="utf-8") as file:
        for i, item in enumerate(spoken):
            name = f"audio/{item.id}.{extension}"
            kind = {"format": "OGG", "subtype": "OPUS"} if extension == "opus" else {}
            soundfile.write(folder / name, item.samples, item.rate, **kind)
            row = {"audio_filepath": name, "duration": round(item.seconds, 3), "text": item.text}
            extra = {"speaker": item.speaker, "call": item.chapter, "split": "dev" if i % 4 == 0 else "train"}
            file.write(json.dumps({**row, **extra}) + "\n")
    return folder


def write_folder(folder: Path, spoken: list[Spoken]) -> Path:
    for item in spoken:
        place = folder / item.speaker
        place.mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{item.id}.ogg", item.samples, item.rate)
        (place / f"{item.id}.txt").write_text(item.text + "\n", encoding="utf-8")
    return folder
