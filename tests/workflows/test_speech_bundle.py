"""The recordings that ship: whole, small, credited, and refused where they are not what was packed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ilme.errors import BadInputError, CheckpointError
from ilme.recogniser.domain import Domain
from ilme.workflows.speech_bundle import METHODS, SPEECH, read_speech_bundle, utterances_of

packed = pytest.mark.skipif(
    not (SPEECH / "speech.json").is_file(), reason="no recordings in this checkout; build them with: make bundle-speech"
)


@packed
def test_it_is_whole_light_and_credited(tmp_path: Path) -> None:
    bundle = read_speech_bundle()
    assert sum(path.stat().st_size for path in SPEECH.iterdir()) <= 12_000_000
    folders = bundle.unpack(tmp_path)
    assert list(folders) == [d.name for d in bundle.domains] == ["calls", "books"]
    for domain in bundle.domains:
        listed = utterances_of(folders[domain.name])
        assert len(listed) == 30 and all(u.seconds <= 12 and u.speaker and u.text for u in listed)
        assert sum(u.seconds for u in listed) == pytest.approx(
            sum(len(u.samples(16_000)) for u in listed) / 16_000, 0.01
        )
        card = Domain.read(folders[domain.name] / "domain")
        card.check_files(folders[domain.name] / "domain")
        assert card.model == bundle.model == "openai/whisper-tiny.en" and card.weights.subtracted > 0
        assert set(domain.dev_wer) == set(METHODS) and domain.sf.lm > 0 == domain.sf.subtracted
    credits = (SPEECH / "CREDITS.md").read_text(encoding="utf-8")
    assert all(word in credits for word in ("CC BY 4.0", "LibriSpeech", "HarperValleyBank", "changed", bundle.rule))


@packed
def test_what_is_unpacked_is_kept_and_what_is_damaged_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "speech"
    shutil.copytree(SPEECH, copy)
    kept = read_speech_bundle(copy).unpack(tmp_path / "out")["calls"] / "audio" / "manifest.jsonl"
    before = kept.stat().st_mtime_ns
    (copy / "calls.tar.xz").write_bytes(b"not what was packed")
    read_speech_bundle(copy).unpack(tmp_path / "out")
    assert kept.stat().st_mtime_ns == before
    with pytest.raises(CheckpointError, match=r"calls\.tar\.xz is damaged"):
        read_speech_bundle(copy).unpack(tmp_path / "elsewhere")


def test_a_folder_without_recordings_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="make bundle-speech"):
        read_speech_bundle(tmp_path)
    (tmp_path / "speech.json").write_text('{"format": "ilme-speech-bundle", "version": 99}')
    with pytest.raises(CheckpointError, match="version 99"):
        read_speech_bundle(tmp_path)
    (tmp_path / "speech.json").write_text(json.dumps({"format": "ilme-speech-bundle", "version": 1}))
    with pytest.raises(BadInputError, match="damaged: KeyError"):
        read_speech_bundle(tmp_path)
