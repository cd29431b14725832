"""`ilme transcribe`: what is printed and written, in which order, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ilme.cli import main
from ilme.recogniser.domain import load_domain
from ilme.recogniser.transcripts import render
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.transcribe import Job
from tests.checkpoints import write_wave
from tests.commands.conftest import Decoded


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audio")
    for seed, (name, seconds) in enumerate({"b": 0.9, "a": 0.3, "deep/c": 0.6}.items()):
        write_wave(folder / f"{name}.wav", seconds, seed)
    return folder


@pytest.fixture(scope="module")
def domain(decoded: Decoded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    (folder / "text.txt").write_text("the sea was calm\nthe whale swam\n" * 5)
    options = AdaptOptions(order=2, prune=(0,), beam=3)
    adapt(decoded.folder / "rnnt", [str(folder / "text.txt")], folder / "domain", options=options)
    return folder / "domain"


def test_transcripts_are_printed_in_the_order_given(decoded: Decoded, audio: Path, capsys) -> None:
    model = str(decoded.folder / "rnnt")
    recogniser = Job(model=model).load()
    files = [str(audio / name) for name in ("deep/c.wav", "b.wav", "a.wav")]
    assert main(["transcribe", "--model", model, *files, "--batch_size", "1"]) == 0
    assert capsys.readouterr().out == "".join(f"{f}: {recogniser.transcribe(f).text}\n" for f in files)
    assert main(["transcribe", "--model", model, files[0]]) == 0
    assert capsys.readouterr().out == recogniser.transcribe(files[0]).text + "\n", "one file needs no name"
    assert main(["transcribe", "--model", model, files[0], "--formats", "json", "vtt"]) == 0
    printed = capsys.readouterr().out
    data, rest = json.JSONDecoder().raw_decode(printed)
    assert data["source"] == files[0] and printed[rest:].strip().startswith("WEBVTT")


def test_a_broken_file_is_reported_and_the_others_go_on(decoded: Decoded, audio: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "broken.wav").write_bytes(b"no audio at all")
    files = [str(audio / "a.wav"), str(tmp_path / "broken.wav"), str(tmp_path / "none.wav"), str(audio / "b.wav")]
    out = tmp_path / "texts"
    arguments = ["transcribe", "--model", str(decoded.folder / "rnnt"), "--out", str(out), *files]
    for _ in range(2):  # the second run tries those again that failed, and nothing else
        assert main(arguments) == 1
        told = capsys.readouterr()
        assert [line.split(": ")[0] for line in told.err.splitlines() if line] == ["ilme transcribe"] * 2
        assert "broken.wav" in told.err and "none.wav" in told.err and "a.wav" not in told.out + told.err
        assert sorted(p.name for p in out.rglob("*.txt")) == ["a.txt", "b.txt"]


def test_a_domain_with_its_baseline(domain: Path, audio: Path, tmp_path: Path, capsys) -> None:
    arguments = ["transcribe", "--domain", str(domain), str(audio / "b.wav"), "--baseline", "true"]
    recogniser = load_domain(domain)
    fused, plain = (r.transcribe(audio / "b.wav") for r in (recogniser, recogniser.without_fusion()))
    assert fused.text != plain.text
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"without the domain: {plain.text}\n{fused.text}\n"
    assert main([*arguments, "--out", str(tmp_path), "--formats", "srt", "txt"]) == 0
    for suffix in ("srt", "txt"):
        assert (tmp_path / f"b.{suffix}").read_text() == render(fused, suffix)
        assert (tmp_path / f"b.baseline.{suffix}").read_text() == render(plain, suffix)


def test_other_settings_do_not_overwrite_unasked(decoded: Decoded, domain: Path, audio: Path, tmp_path, capsys) -> None:
    with_model = ["transcribe", "--model", str(decoded.folder / "rnnt"), str(audio), "--out", str(tmp_path)]
    with_domain = ["transcribe", "--domain", str(domain), str(audio), "--out", str(tmp_path)]
    assert main(with_model) == 0
    first = {p: p.read_text() for p in tmp_path.rglob("*.txt")}
    assert sorted(str(p.relative_to(tmp_path)) for p in first) == ["a.txt", "b.txt", "deep/c.txt"]
    assert main(with_domain) == 1 and "--overwrite" in capsys.readouterr().err
    assert {p: p.read_text() for p in tmp_path.rglob("*.txt")} == first
    assert main([*with_domain, "--overwrite", "true"]) == 0
    assert {p: p.read_text() for p in tmp_path.rglob("*.txt")} != first


def test_mistakes_are_explained(decoded: Decoded, audio: Path, tmp_path: Path, capsys) -> None:
    model = ["--model", str(decoded.folder / "rnnt")]
    for arguments, status, message in [
        ([str(audio)], 2, "--domain"),
        ([*model, str(audio), "--workers", "0"], 2, "--workers must be at least 1"),
        ([*model, str(audio), "--formats", "pdf"], 2, "'pdf' is not one of txt, json, srt, vtt"),
        ([*model, str(tmp_path)], 1, "holds no audio file"),
        ([*model, str(tmp_path / "*.ogg")], 1, "no file matches"),
        ([*model, str(audio), "--timestamps", "true"], 1, "takes no timestamps"),
        (["--domain", str(audio), str(audio)], 1, "is no domain folder"),
        ([*model, str(audio), "--batch_seconds", "0"], 2, "a batch needs seconds"),
        ([*model, str(audio), "--baseline"], 2, "name the domain folder with --domain"),
        (["--domain", "x", str(audio), "--language", "de"], 2, "--language was chosen when the domain folder was made"),
    ]:
        assert main(["transcribe", *arguments]) == status, arguments
        assert message in capsys.readouterr().err
