"""Utterances out of manifests, Lhotse cuts and imported corpora."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ilme.data.importing import import_corpus
from ilme.data.utterances import in_memory, read_utterances
from ilme.errors import BadInputError
from tests.data.speech_corpora import utterances as spoken
from tests.data.speech_corpora import write_nemo


def test_manifests(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16000, dtype=np.float32), 16000)
    rows = [
        {"audio_filepath": "a.wav", "text": "hello", "speaker": 7, "duration": 1.0, "split": "dev"},
        {"audio_filepath": "a.wav", "text": "there", "id": "b", "duration": 0.5, "offset": 0.25, "split": "test"},
    ]
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    both = read_utterances(tmp_path)
    assert [(u.id, u.text, u.speaker) for u in both] == [("a", "hello", "7"), ("b", "there", "")]
    assert len(both[0].samples(16000)) == 16000 and len(both[1].samples(8000)) == 4000
    assert [u.id for u in read_utterances(path, split="test")] == ["b"]
    assert len(read_utterances(path, limit=1)) == 1
    with pytest.raises(BadInputError, match="no utterances of split 'x'"):
        read_utterances(path, split="x")
    path.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[0]) + "\n")
    with pytest.raises(BadInputError, match="'a' comes twice"):
        read_utterances(path)
    path.write_text(json.dumps(rows[0]) + '\n{"audio_filepath": "b.wav"}\n')
    with pytest.raises(BadInputError, match="line 2: not an utterance"):
        read_utterances(path)
    with pytest.raises(BadInputError):
        read_utterances(tmp_path / "absent")


def test_an_imported_corpus_keeps_its_splits(tmp_path: Path) -> None:
    source = write_nemo(tmp_path / "corpus", spoken(8))
    import_corpus(str(source), tmp_path / "cuts")
    parts = {split: {u.id for u in read_utterances(tmp_path / "cuts", split=split)} for split in ("dev", "train")}
    assert len(parts["dev"]) == 2 and len(parts["train"]) == 6
    assert parts["dev"] | parts["train"] == {u.id for u in read_utterances(tmp_path / "cuts")}


def test_lhotse_cuts(tmp_path: Path) -> None:
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

    soundfile.write(tmp_path / "a.wav", np.arange(16000, dtype=np.float32) / 16000, 16000)
    recording = Recording.from_file(tmp_path / "a.wav")
    cuts = [
        MonoCut(
            f"c{k}", start=0.25 * k, duration=0.5, channel=0, recording=recording,
            supervisions=[SupervisionSegment(f"s{k}", "a", 0, 0.5, text=f"word {k}", speaker="ann")],
        )
        for k in range(2)
    ]  # fmt: skip
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    utterances = read_utterances(tmp_path)
    assert [(u.id, u.text, u.speaker, u.seconds) for u in utterances] == [
        ("c0", "word 0", "ann", 0.5),
        ("c1", "word 1", "ann", 0.5),
    ]
    np.testing.assert_allclose(utterances[1].samples(16000), cuts[1].load_audio()[0], atol=1e-4)


def test_audio_in_memory_is_what_each_utterance_reads(tmp_path: Path) -> None:
    rows = []
    for i, (seconds, offset) in enumerate([(1.0, 0.0), (0.5, 0.25), (2.0, 0.0)]):
        samples = np.random.default_rng(i).uniform(-0.5, 0.5, 20000).astype(np.float32)
        soundfile.write(tmp_path / f"{i}.flac", samples, 8000)
        rows.append({"audio_filepath": f"{i}.flac", "text": f"{i}", "duration": seconds, "offset": offset})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    listed = read_utterances(tmp_path)
    read = in_memory(listed, 16000)
    assert [(u.id, u.text) for u in read] == [(u.id, u.text) for u in listed]
    for before, after in zip(listed, read, strict=True):
        assert np.array_equal(after.audio, before.samples(16000))
        assert np.array_equal(after.samples(16000), after.audio)  # nothing is cut off twice
