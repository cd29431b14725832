"""A study on recorded speech: which utterances and texts it takes, how they travel, and every stage at tiny size."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from ilme.errors import BadInputError
from ilme.evaluation.results import Results
from ilme.models.checkpoint import load_checkpoint
from ilme.models.whisper_encoder import WhisperConfig, WhisperEncoder
from ilme.study.config import StudyConfig, read_config
from ilme.study.copies import copies
from ilme.study.corpora import CorpusPart, RecordingsPlan, find_file, rows_of, synthetic_study, training_rows
from ilme.study.export import gather
from ilme.study.recordings import _pieces
from ilme.study.shards import write_shard
from ilme.study.speech import resident_part, resident_shards
from ilme.study.stages import build_study
from ilme.study.texts import write_lines
from ilme.train.resident import ResidentAudio
from tests.models.test_whisper_encoder import _dims

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "configs" / "study" / "real-tiny.yaml"
SETS = {"target-dev": CorpusPart("x"), "target-test": CorpusPart("x")}
SENTENCE = "the a bank of river old house Mr. Smith went to sea 12 ships and came home again with gold"


def corpus(root: Path, name: str, splits: dict[str, int], rate: int, seed: int) -> None:
    """Noise as Opus, with sentences drawn from a few words."""
    draw, words = np.random.default_rng(seed), Random(seed)
    rows = []
    (root / name / "opus").mkdir(parents=True)
    for split, count in splits.items():
        for i in range(count):
            seconds = 0.9 + 0.02 * i
            file = f"opus/{split}-{i:03d}.opus"
            wave = (0.1 * draw.standard_normal(int(seconds * rate))).astype(np.float32)
            soundfile.write(root / name / file, wave, rate, format="OGG", subtype="OPUS")
            text = " ".join(words.choices(SENTENCE.split(), k=words.randint(3, 6))) + "."
            rows.append({"audio_filepath": file, "duration": seconds, "split": split, "text": text, "speaker": f"s{i}"})
            if name == "harper-valley-bank":
                rows[-1]["call"] = f"call-{i // 4}"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (root / name / "manifest.jsonl").write_text(lines, encoding="utf-8")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpora")
    corpus(root, "common-voice-en", {"train": 26, "dev": 5}, 16000, 1)
    corpus(root, "librispeech-dev-clean", {"tune": 4, "test": 5}, 16000, 2)
    corpus(root, "harper-valley-bank", {"train": 60, "dev": 4, "test": 4}, 8000, 3)
    (root / "text" / "novels").mkdir(parents=True)
    words = Random(4)
    vocabulary = SENTENCE.lower().replace("12", "").split()
    lines = [" ".join(words.choices(vocabulary, k=7)) for _ in range(400)]
    (root / "text" / "novels" / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = WhisperEncoder(WhisperConfig(layers=1, width=32, heads=2))
    whisper = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    torch.save({"dims": _dims(encoder), "model_state_dict": whisper}, root / "whisper.pt")
    spoken = [f"quick brown said {word}" for word in ("lamb", "dog", "fox")]
    waves = [np.full(20000, 7 * i, np.int16) for i in range(3)]
    write_shard(root / "small/speech/train/0000", ["a", "b", "c"], spoken, ["v"] * 3, waves)
    (root / "small/text").mkdir()
    write_lines(root / "small/text/spoken.txt", spoken)
    return root


def config_of(root: Path, **changes: Any) -> StudyConfig:
    values = {
        "recordings.roots": [str(root)],
        "recordings.whisper": "whisper.pt",
        "vocabulary": 40,
        "decoding.methods": ["BS", "DR", "ILME"],
        "rnnt.batch": 20,
        "aed.batch": 20,
        **changes,
    }
    return read_config(PLAN, values)


def test_parts_of_a_corpus(corpora: Path) -> None:
    plan = RecordingsPlan(roots=(str(corpora),))
    part = CorpusPart("common-voice-en", "train")
    rows = rows_of(plan, part, 1)
    assert len(rows) == 26 and all(row.text == row.text.lower() and "." not in row.text for row in rows)
    assert any("twelve" in row.text for row in rows) and any("mister" in row.text for row in rows)
    few = rows_of(plan, CorpusPart("common-voice-en", "train", 7), 1)
    assert few == rows_of(plan, CorpusPart("common-voice-en", "train", 7), 1)
    assert [row for row in rows if row in few] == few and len(few) == 7
    assert few != rows_of(plan, CorpusPart("common-voice-en", "train", 7), 2)
    short = rows_of(plan, CorpusPart("common-voice-en", "train", longest=1.0), 1)
    assert [row for row in rows if row.seconds <= 1.0] == short and 0 < len(short) < 26
    with pytest.raises(BadInputError, match="in split nobody"):
        rows_of(plan, CorpusPart("common-voice-en", "nobody"), 1)
    with pytest.raises(BadInputError, match=r"holds absent/manifest\.jsonl"):
        rows_of(plan, CorpusPart("absent"), 1)
    with pytest.raises(BadInputError, match=r"in split train of at most 0\.1 s"):
        rows_of(plan, CorpusPart("common-voice-en", "train", longest=0.1), 1)
    with pytest.raises(BadInputError, match=r"of 0\.5 to 0\.7 s; change recordings\.shortest"):
        training_rows(RecordingsPlan(roots=plan.roots, train=part, sets=SETS, longest=0.7), 1)


def test_a_target_without_sets_is_refused() -> None:
    with pytest.raises(BadInputError, match="no target-dev"):
        RecordingsPlan(roots=(), train=CorpusPart("x"))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30),
    st.integers(0, 20),
    st.integers(0, 1000),
)
def test_pieces_are_running_text(lines: list[tuple[int, bool]], longest: int, seed: int) -> None:
    """Every word that is kept, once and in order; nothing joined over a gap; longer than asked only as one line."""
    texts = [" ".join(f"w{i}" for _ in range(size)) for i, (size, _) in enumerate(lines)]
    gaps = [out for _, out in lines]
    pieces = _pieces(texts, gaps, longest, Random(seed))
    kept = [text for text, out in zip(texts, gaps, strict=True) if not out]
    assert " ".join(pieces).split() == " ".join(kept).split()
    for piece in pieces:
        numbers = sorted({int(word[1:]) for word in piece.split()})
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert not any(gaps[i] for i in numbers)
        assert len(piece.split()) <= longest or len(numbers) == 1


def test_copies_have_the_sizes_of_their_speeds() -> None:
    waves = [np.arange(n, dtype=np.int16) for n in (900, 450, 1800)]
    audio = ResidentAudio.from_arrays(waves, ["a", "b", "c"], ["x", "y", "z"])
    more = copies(audio, (0.9, 1.0), telephone=True)
    assert more.starts.diff().tolist() == [1000, 500, 2000, 900, 450, 1800, 900, 450, 1800]
    assert more.ids[:4] == ["a@0.9", "b@0.9", "c@0.9", "a@1"] and more.texts == ["x", "y", "z"] * 3
    assert len(more.samples) == more.starts[-1]
    assert torch.equal(more.samples[3500:6650], audio.samples)
    slow = more.samples[:1000].float()
    assert (slow[100:900] - 0.9 * torch.arange(100, 900)).abs().max() < 2


def test_joined_utterances_are_neighbours() -> None:
    waves = [np.full(n, i, dtype=np.int16) for i, n in enumerate((400, 700, 300, 900, 200, 5000, 100))]
    audio = ResidentAudio.from_arrays(waves, list("abcdefg"), list("tuvwxyz"))
    more = copies(audio, (1.0,), joined=0.1, seed=3)  # at most 1600 samples
    sizes, texts = more.starts.diff().tolist()[7:], more.texts[7:]
    assert sum(sizes) == len(audio.samples) and " ".join(texts) == "t u v w x y z"
    assert any(" " in text for text in texts)
    for size, text in zip(sizes, texts, strict=True):
        assert size <= 1600 or " " not in text
    assert torch.equal(more.samples[len(audio.samples) :], audio.samples)


def test_archives_are_a_root(corpora: Path, tmp_path: Path) -> None:
    config = config_of(corpora)
    archives = gather(config, tmp_path / "part", [0.08, 0.04])
    assert len(archives) > 2 and archives[0] == tmp_path / "part-1" / "recordings.zip"
    for archive in archives:
        zipfile.ZipFile(archive).extractall(tmp_path / "root")
    there = config_of(tmp_path / "root")
    assert build_study(there, tmp_path, "cpu").keys == build_study(config, tmp_path, "cpu").keys
    names = {row.audio for row in rows_of(there.recordings, there.recordings.train, 1)}
    assert all(find_file(there.recordings, f"common-voice-en/{name}").is_file() for name in names)
    with pytest.raises(BadInputError, match="more than an archive may have"):
        gather(config, tmp_path / "small", [0.0001])
    with pytest.raises(BadInputError, match="nothing to gather"):
        gather(read_config(ROOT / "configs/study/tiny.yaml"), tmp_path / "none", [1.0])


def test_text_and_speech(corpora: Path, tmp_path: Path) -> None:
    config = config_of(corpora)
    study = build_study(config, tmp_path, "cpu")
    study.run(until="speech")
    rows = rows_of(config.recordings, config.recordings.train, config.seed)
    audio = resident_part(study, "train", "cpu")
    assert audio.ids == [row.id for row in rows] and audio.texts == [row.text for row in rows]
    assert audio.hours * 3600 == pytest.approx(sum(row.seconds for row in rows), abs=0.1)
    calls = [(tmp_path / f"text/calls-{part}.txt").read_text().splitlines() for part in ("train", "held-out")]
    assert len(calls[0]) + len(calls[1]) == 60 and len(calls[1]) == 4  # one call of fifteen
    manifest = (tmp_path / "speech/calls-test/manifest.jsonl").read_text().splitlines()
    assert len(manifest) == 4 and Path(json.loads(manifest[0])["audio_filepath"]).is_file()


def test_text_that_is_tested_on_is_left_out(corpora: Path, tmp_path: Path) -> None:
    config = config_of(corpora)
    tested = "one two three four five six seven eight nine"
    root = tmp_path / "root"
    (root / "text" / "novels").mkdir(parents=True)
    lines = ["before it", f"said {tested}", "after it"] * 40
    (root / "text" / "novels" / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    (root / "librispeech-dev-clean").mkdir()
    row = {"audio_filepath": "a.opus", "duration": 2.0, "text": tested}
    texts = "".join(json.dumps(row | {"split": split}) + "\n" for split in ("tune", "test"))
    (root / "librispeech-dev-clean" / "manifest.jsonl").write_text(texts, encoding="utf-8")
    config = config_of(corpora, **{"recordings.roots": [str(root), str(corpora)], "text.held_out": 5})
    study = build_study(config, tmp_path / "out", "cpu")
    study.run(until="text")
    text = (tmp_path / "out/text/target-train.txt").read_text()
    assert "one two" not in text and "before it" in text
    assert study.facts("text")["target_excluded"] == 40


def test_synthetic_speech_comes_after_the_recordings(corpora: Path) -> None:
    config = config_of(corpora, **{"recordings.synthetic": "small"})
    folder = synthetic_study(config.recordings)
    assert folder == corpora / "small" and synthetic_study(config_of(corpora).recordings) is None
    spoken = resident_shards(folder / "speech/train", "cpu")
    recorded = ResidentAudio.from_arrays([np.arange(5, dtype=np.int16)], ["r"], ["recorded"])
    both = recorded.followed_by(spoken)
    assert both.ids == ["r", "a", "b", "c"] and both.texts[0] == "recorded"
    assert both.samples[both.starts[2] : both.starts[3]].tolist() == [7] * 20000
    assert both.starts[-1] == len(both.samples) == 60005
    absent = config_of(corpora, **{"recordings.synthetic": "absent"})
    with pytest.raises(BadInputError, match=r"holds absent/text/spoken\.txt"):
        synthetic_study(absent.recordings)
    with pytest.raises(BadInputError, match="not one corpus"):
        recorded.followed_by(replace(spoken, rate=8000))


@pytest.mark.slow
def test_every_stage(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning_fabric", reason="the study trains: pip install 'ilme[train]'")
    monkeypatch.chdir(ROOT)
    config = config_of(corpora, **{"recordings.synthetic": "small"})
    for name in build_study(config, tmp_path, "cpu").stages:  # a new study for each stage, as after a kill
        study = build_study(config, tmp_path, "cpu")
        study.run(until=name)
        assert study.done(name)
    for setting in ("cross", "calls"):
        results = Results.load(tmp_path / f"tables/{setting}.json")
        assert [s.name for s in results.systems] == [f"{m} {x}" for m in ("rnnt", "aed") for x in ("BS", "DR", "ILME")]
    assert (tmp_path / "text/source-train.txt").read_text().splitlines()[-1] == "quick brown said fox"
    loaded = load_checkpoint(tmp_path / "rnnt/model.safetensors")
    assert loaded.frontend.kind == "whisper" and loaded.model.encoder.whisper is not None


def test_the_plan_from_scratch_shares_all_but_its_networks(corpora: Path, tmp_path: Path) -> None:
    changes = {"recordings.roots": [str(corpora)]}
    real, scratch = (
        build_study(read_config(ROOT / f"configs/study/{name}.yaml", more), tmp_path, "cpu").keys
        for name, more in (("real", changes | {"recordings.whisper": "whisper.pt"}), ("real-scratch", changes))
    )
    shared = {"text", "speech", "tokenizer", "lm-source", "lm-target", "lm-calls", "ngrams"}
    assert {name for name in real if real[name] == scratch.get(name)} == shared
