"""`ilme data import`, `show`, `split` and `shard`, from a corpus with one bad file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ilme.cli import main
from tests.data.speech_corpora import utterances, write_nemo


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    spoken = utterances(40, speakers=10, seconds=(1.0, 1.4))
    write_nemo(folder, spoken, extension="wav")
    (folder / "audio" / f"{spoken[-1].id}.wav").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def corpus(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported")
    assert main(["data", "import", str(source), str(out)]) == 0
    return out


def test_import_says_what_it_kept(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "import", str(source), str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["found"], report["accepted"], report["reasons"]) == (40, 39, {"zero bytes": 1})
    assert main(["data", "import", str(source), str(tmp_path / "out"), "--checks.shortest", "1.1"]) == 0
    assert "too short" in capsys.readouterr().out
    assert main(["data", "import", str(source), str(tmp_path / "strict"), "--strict"]) == 1
    assert "zero bytes" in capsys.readouterr().err


def test_show_prints_and_draws(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(corpus), "--json", "--picture", str(tmp_path / "c.png")]) == 0
    assert json.loads(capsys.readouterr().out)["utterances"] == 39
    assert (tmp_path / "c.png").is_file()
    assert main(["data", "show", str(corpus)]) == 0
    shown = capsys.readouterr().out
    assert "speakers    10" in shown
    assert "left out at import: 1 zero bytes" in shown


def test_split_by_what_is_asked(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "parts")
    assert main(["data", "split", str(corpus), out, "--shares", "train:0.7", "test:0.3"]) == 0
    assert "train" in capsys.readouterr().out
    assert main(["data", "split", str(corpus), out, "--by", "call", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["parts"]) == 3
    for share in ("train", "train:", "train:much", ":0.5"):
        assert main(["data", "split", str(corpus), out, "--shares", share]) == 2
        assert "is not NAME:SHARE" in capsys.readouterr().err


def test_shards_hold_the_corpus(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "shard", str(corpus), str(tmp_path / "shar"), "--size", "20"]) == 0
    assert "2 shards" in capsys.readouterr().out
    assert main(["data", "show", str(tmp_path / "shar"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["utterances"] == 39
