"""Parcels: which files are written and read, and what is none."""

from __future__ import annotations

import errno
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ilme.errors import BadInputError
from ilme.study.archive import pack, unpack
from ilme.study.runner import Stage, Study


def make_study(out: Path) -> Study:
    """Five stages, of which those of `results` are not done."""

    def work(study: Study) -> dict[str, Any]:
        return {}

    names = ("text", "lm-target", "rnnt", "ilm-rnnt", "tune-rnnt")
    study = Study([Stage(name, work) for name in names], out)
    study.run(until="ilm-rnnt")
    return study


def test_all_that_is_done_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(tmp_path / "study")
    capsys.readouterr()
    files = pack(study, tmp_path / "to")
    assert [file.name for file in files] == ["lm-target.tar", "rnnt.tar"] and not capsys.readouterr().err
    with tarfile.open(files[1]) as archive:
        assert {"ilm-rnnt/done.json", "rnnt/done.json"} <= set(archive.getnames())


def test_names_that_are_no_parcels_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(tmp_path / "study")
    with pytest.raises(BadInputError, match="no parcel 'rnntt'; this study has lm-target, rnnt, results"):
        pack(study, tmp_path / "to", ["lm-target", "rnntt"])
    with pytest.raises(BadInputError, match="no parcel 'text'"):  # a stage that stays behind
        pack(study, tmp_path / "to", ["text"])
    assert not (tmp_path / "to").exists()
    capsys.readouterr()
    assert [file.name for file in pack(study, tmp_path / "to", ["results", "rnnt"])] == ["rnnt.tar"]
    assert "results is not packed: tune-rnnt not done" in capsys.readouterr().err


def test_a_folder_or_one_parcel_is_unpacked(tmp_path: Path) -> None:
    files = pack(make_study(tmp_path / "study"), tmp_path / "to")
    assert unpack(tmp_path / "to", tmp_path / "all") == ["ilm-rnnt", "lm-target", "rnnt"]
    assert unpack(files[0], tmp_path / "some") == ["lm-target"]
    assert Study([Stage("lm-target", lambda study: {})], tmp_path / "some").done("lm-target")


def test_what_is_no_whole_parcel_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nowhere is neither a parcel nor a folder with parcels"):
        unpack(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="empty is neither"):
        unpack(tmp_path / "empty", tmp_path / "out")
    whole = pack(make_study(tmp_path / "study"), tmp_path / "to")[1]
    for size in (0, 700):
        (tmp_path / "part.tar").write_bytes(whole.read_bytes()[:size])
        with pytest.raises(BadInputError, match=r"part\.tar is not a whole parcel: .*once more"):
            unpack(tmp_path / "part.tar", tmp_path / "out")


def test_a_stage_that_was_not_unpacked_whole_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(make_study(tmp_path / "here"), tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "there")
    marks = sorted((tmp_path / "there").glob("*/done.json"))
    assert marks
    written = tarfile.TarFile.makefile

    def full(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.name.endswith(("begun.json", "done.json")):
            raise OSError(errno.ENOSPC, "No space left on device")
        written(archive, member, path)

    monkeypatch.setattr(tarfile.TarFile, "makefile", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        unpack(tmp_path / "packed", tmp_path / "there")
    assert str(tmp_path / "there") in str(caught.value.filename)
    assert len(sorted((tmp_path / "there").glob("*/done.json"))) < len(marks)
