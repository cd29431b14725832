"""`ilme train` from files to a model that loads, with the shipped configs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from ilme.cli import main
from ilme.commands import train as commands
from ilme.commands.arguments import parse_arguments
from ilme.data.tokenfile import write_tokens
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.models.checkpoint import load_checkpoint
from ilme.recogniser.loading import load_model
from ilme.train.journal import read_metrics

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "train").glob("*.yaml"))
TEXTS = ["red green", "blue red", "green green blue", "red", "blue green red", "green blue"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six utterances of tones, one tone a word, with cuts, a tokenizer and token files."""
    folder = tmp_path_factory.mktemp("corpus")
    pitch = {"red": 300, "green": 700, "blue": 1500}
    cuts = []
    for i, text in enumerate(TEXTS):
        time = np.arange(3200) / 16000
        wave = np.concatenate([0.3 * np.sin(2 * np.pi * pitch[word] * time) for word in text.split()])
        soundfile.write(folder / f"{i}.wav", wave, 16000)
        recording = Recording.from_file(folder / f"{i}.wav")
        supervision = SupervisionSegment(f"s{i}", recording.id, 0, recording.duration, text=text)
        cuts.append(MonoCut(f"c{i}", 0, recording.duration, 0, recording=recording, supervisions=[supervision]))
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl.gz")
    tokenizer = SentencePieceTokenizer.train(TEXTS * 5, vocab_size=20)
    tokenizer.save(folder / "bpe.model")
    ids = [tokenizer.encode(text) for text in TEXTS]
    write_tokens(folder / "text.tok", ids, tokenizer.tokens, tokenizer.to_json())
    return folder


def train(kind: str, *words: str) -> int:
    return main(["train", kind, "preset=tiny", "loop.steps=4", "loop.log_every=2", "loop.evaluate_every=2",
                 "loop.save_every=2", "loop.tensorboard=false", *words])  # fmt: skip


def speech_words(corpus: Path, out: Path) -> list[str]:
    cuts = corpus / "cuts.jsonl.gz"
    return [f"out={out}", f"data.train={cuts}", f"data.held_out={cuts}", f"data.tokenizer={corpus / 'bpe.model'}",
            "data.batch.seconds=2", "data.batch.longest=2", "optimiser.warmup=2"]  # fmt: skip


def test_trains_an_rnnt_and_resumes_it(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = speech_words(corpus, tmp_path)
    assert train("rnnt", *words, "loop.ilm_every=2") == 0
    assert "4 steps" in capsys.readouterr().out
    loaded = load_checkpoint(tmp_path, "rnnt")
    assert loaded.tokenizer.tokens.blank == 0 and loaded.frontend.dimension == 240
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [r["step"] for r in rows if "ilm_ppl" in r] == [2, 4]
    assert json.loads((tmp_path / "config.json").read_text())["loop"]["steps"] == 4
    assert train("rnnt", *words) == 1
    assert "add --resume" in capsys.readouterr().err
    assert train("rnnt", *words, "--resume", "loop.steps=6") == 0
    assert "6 steps" in capsys.readouterr().out


def test_trains_a_factorised_transducer_with_its_internal_lm(corpus: Path, tmp_path: Path) -> None:
    assert train("rnnt", *speech_words(corpus, tmp_path), "--hat", "rnnt.ilmt=0.3") == 0
    assert load_checkpoint(tmp_path, "rnnt").model.config.hat
    assert all("ilm_loss" in row for row in read_metrics(tmp_path / "metrics.jsonl") if "rate" in row)


def test_trains_a_tdt_and_a_ctc(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("rnnt", *speech_words(corpus, tmp_path / "tdt"), "--tdt", "model.ctc=true", "rnnt.ctc=0.3") == 0
    assert load_checkpoint(tmp_path / "tdt", "rnnt").model.durations == (0, 1, 2, 3, 4)
    losses = [row["loss"] for row in read_metrics(tmp_path / "tdt" / "metrics.jsonl") if "rate" in row]
    assert losses and all(np.isfinite(losses))
    words = speech_words(corpus, tmp_path / "ctc")
    assert train("rnnt", *words, "rnnt.ctc_only=true") == 2
    assert "give rnnt.ctc a weight" in capsys.readouterr().err
    assert train("rnnt", *words, "rnnt.ctc_only=true", "rnnt.ctc=1", "model.ctc=true") == 0
    assert load_model(tmp_path / "ctc", head="ctc").kind == "ctc"


def test_a_tdt_starts_from_an_rnnts_joint_network(corpus: Path, tmp_path: Path) -> None:
    assert train("rnnt", *speech_words(corpus, tmp_path / "first")) == 0
    parts = ["encoder.*", "encoder_head.*", "predictor.*", "prediction_head.*", "output.*"]
    more = [f"warm_start.model={tmp_path / 'first'}", f"warm_start.parts={json.dumps(parts)}"]
    assert train("rnnt", *speech_words(corpus, tmp_path / "tdt"), "--tdt", *more, 'optimiser.frozen=["encoder.*"]') == 0
    first, tdt = (load_checkpoint(tmp_path / name, "rnnt").model for name in ("first", "tdt"))
    assert all(torch.equal(a, b) for a, b in zip(first.encoder.parameters(), tdt.encoder.parameters(), strict=True))
    moved = (first.output.weight - tdt.output.weight).abs().max()
    assert 0 < moved < 0.1 < first.output.weight.abs().max(), "trained on from there"


def test_trains_an_aed_on_resident_audio_from_another_models_encoder(corpus: Path, tmp_path: Path) -> None:
    words = ["data.resident=true", "data.noise.white=1.0", "model.ctc=true", "aed.ctc=0.3", "aed.sampling=0.5"]
    words += ["data.easy_first=true", "aed.flat=2"]
    assert train("aed", *speech_words(corpus, tmp_path / "first"), *words) == 0
    more = [
        f"warm_start.model={tmp_path / 'first'}",
        'warm_start.parts=["encoder.*"]',
        'optimiser.frozen=["encoder.*"]',
    ]
    assert train("aed", *speech_words(corpus, tmp_path / "second"), *words, *more, "loop.recompute=[decoder]") == 0
    first, second = (load_checkpoint(tmp_path / name, "aed").model for name in ("first", "second"))
    same = [(a == b).all() for a, b in zip(first.encoder.parameters(), second.encoder.parameters(), strict=True)]
    assert all(same) and (first.output.weight != second.output.weight).any()


@pytest.mark.slow
def test_trains_an_aed_around_an_lm_and_replaces_it(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"data.train={corpus / 'text.tok'}"
    for name, hidden in (("lm", 16), ("other", 24)):
        assert train("lm", f"out={tmp_path / name}", text, f"model.hidden={hidden}") == 0
    lm, words = tmp_path / "lm", speech_words(corpus, tmp_path / "cold")
    assert train("aed", *words, "--fusion", "cold") == 2
    assert "give both, or none" in capsys.readouterr().err
    assert train("aed", *words, "--fusion", "cold", "--lm", str(lm)) == 0
    inner, given = load_checkpoint(tmp_path / "cold", "aed").model.lm, load_checkpoint(lm, "lm").model
    assert all(torch.equal(a, b) for a, b in zip(inner.parameters(), given.parameters(), strict=True))
    assert train("aed", *words, "--fusion", "cold", "--lm", str(lm), "--resume", "loop.steps=6") == 0
    assert main(["lm", "replace", str(tmp_path / "cold"), str(tmp_path / "other"), str(tmp_path / "made")]) == 0
    made = load_checkpoint(tmp_path / "made", "aed")
    assert made.model.config.fusion.lm.hidden == 24 and made.tokenizer is not None and made.frontend is not None


@pytest.mark.parametrize("loss", ["ce", "nce"])
def test_trains_a_language_model(corpus: Path, tmp_path: Path, loss: str) -> None:
    text = corpus / "text.tok"
    words = [f"out={tmp_path}", f"data.train={text}", f"data.held_out={text}", "data.tokens=40"]
    assert train("lm", *words, f"lm.loss={loss}", "lm.noise_samples=8") == 0
    loaded = load_checkpoint(tmp_path, "lm")
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("red blue")) == "red blue"


def test_says_what_is_missing(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("rnnt", f"out={tmp_path}") == train("aed", "data.train=x", f"out={tmp_path}") == 2
    assert capsys.readouterr().err.count("--data.train and the word pieces with --data.tokenizer") == 2
    assert train("lm", f"out={tmp_path}") == 2
    assert "name the text with --data.train" in capsys.readouterr().err
    assert train("lm", "data.train=x", "loop.steps=0") == 2
    assert "loop.steps must be at least 1" in capsys.readouterr().err
    assert train("lm", f"out={tmp_path}", "data.train=nowhere.tok") == 1
    assert "no token file at nowhere.tok" in capsys.readouterr().err
    assert train("rnnt", *speech_words(corpus, tmp_path), "frontend.stack=2") == 1
    assert "set model.encoder.features=160" in capsys.readouterr().err


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_understood(config: Path) -> None:
    kind = config.stem.split("-")[0]
    options = parse_arguments(f"train {kind}", getattr(commands, f"train_{kind}"), [f"--config={config}"])
    assert options["preset"] == config.stem.split("-")[1]
    assert options["loop"].average > 0
