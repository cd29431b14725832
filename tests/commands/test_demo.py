"""`ilme demo` on a few of the bundled recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from ilme.cli import main
from ilme.workflows.bundle import FOLDER
from ilme.workflows.whisper_weights import WeightsUnavailableError
from tests.workflows.speech_example import WORDS, tiny_everywhere, write_speech_bundle

bundled = pytest.mark.skipif(
    not (FOLDER / "bundle.json").is_file(), reason="no bundle in this checkout; build it with: make bundle"
)
QUICK = ["--model", "rnnt", "--method", "SF", "--beam", "2"]


@bundled
def test_decodes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *QUICK, "--utterances", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "decoding with rnnt SF" in out and "2 utterances in" in out
    assert (tmp_path / "report.html").is_file() and (tmp_path / "results.json").is_file()


@bundled
def test_without_weights_the_bundled_models_go_on_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(given: str, say: object) -> str:
        raise WeightsUnavailableError("no network")

    monkeypatch.setattr("ilme.workflows.whisper_weights.find_whisper", none)
    quick = ["--method", "SF", "--beam", "2", "--utterances", "2", "--out", str(tmp_path)]
    assert main(["demo", *quick]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "no real speech" in line] == [
        "no real speech, only the bundled models: no network"
    ]
    assert "decoding with aed SF" in out and (tmp_path / "report.html").is_file()
    assert main(["demo", "--model", "whisper", *quick]) == 1
    assert capsys.readouterr().err == "ilme demo: no network\n"


def test_both_acts_stand_in_one_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    with tiny_everywhere() as model:
        bundle = write_speech_bundle(tmp_path / "bundle", model)
        monkeypatch.setattr("ilme.workflows.speech_demo.read_speech_bundle", lambda: bundle)
        call = ["demo", "--whisper", "tiny", "--processes", "1", "--utterances", "2", "--out", str(tmp_path / "out")]
        assert main([*call, "--model", "whisper"]) == 0
    out = capsys.readouterr().out
    assert "decoding with Whisper tiny.en ILME + phrases, bank calls" in out and "4 utterances in" in out
    page = (tmp_path / "out" / "report.html").read_text()
    assert '"name":"bank calls"' in page and '"name":"audiobooks"' in page and "data:audio/ogg;base64" in page
    assert "audiobooks: whoever made books" in page  # the licence wants the credit with the recordings


def test_a_recording_before_and_after_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    text = tmp_path / "my.txt"
    text.write_text(WORDS * 5)
    monkeypatch.setattr("ilme.workflows.adapt.style_for", lambda host, style: "keep")
    monkeypatch.setattr("ilme.data.microphone.find_recorder", lambda: hum)
    with tiny_everywhere():
        call = ["demo", "--whisper", "tiny", "--text", str(text), "--out", str(tmp_path / "out")]
        assert main([*call, "--mic", "--seconds", "0.5"]) == 0
        heard = capsys.readouterr()
        assert "speak now, 0.5 seconds" in heard.err
        lines = heard.out.splitlines()
        assert lines[-3].startswith("Whisper:") and lines[-2].startswith("adapted:")
        assert f"{tmp_path / 'out' / 'domain'} is for `ilme transcribe --domain`" in lines[-1]
        assert main([*call, "--wav", str(tmp_path / "out" / "recording.wav")]) == 0
        assert capsys.readouterr().out.splitlines()[-3:-1] == lines[-3:-1]
        for wav, said in ((tmp_path / "no.wav", "there is no file"), (text, "cannot be read as audio")):
            assert main([*call, "--wav", str(wav)]) == 1
            told = capsys.readouterr().err.splitlines()
            assert len(told) == 1 and said in told[0]  # before anything that takes time


def hum(seconds: float, file: Path) -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, round(seconds * 16_000))
    soundfile.write(file, wave, 16_000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mic", "--wav", "a.wav"], "give one of them"),
        (["--text", "my.txt"], "name one with --wav, or record with --mic"),
    ],
)
def test_what_cannot_be_meant_is_a_mistake(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 2
    assert said in capsys.readouterr().err


def test_help_shows_fifteen_options_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("--")]) <= 15


def test_a_model_that_is_not_bundled_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "rnn"]) == 2
    assert "did you mean rnnt?" in capsys.readouterr().err
