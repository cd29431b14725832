"""Adaptation end to end with a tiny random Whisper: folder, reload, transcription, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

transformers = pytest.importorskip("transformers")

from ilme.adapters import loading  # noqa: E402
from ilme.cli import main  # noqa: E402
from ilme.data.utterances import Utterance  # noqa: E402
from ilme.errors import BadInputError, CheckpointError  # noqa: E402
from ilme.fusion import FusionWeights  # noqa: E402
from ilme.lm.case_folding import FoldedInternal, FoldedScorer  # noqa: E402
from ilme.recogniser.domain import CARD, Domain, load  # noqa: E402
from ilme.workflows.adapt import (  # noqa: E402
    SAFE_INTERNAL,
    SAFE_WEIGHTS,
    AdaptOptions,
    adapt,
    train_domain_lm,
    unwritable,
)
from ilme.workflows.card import write_card  # noqa: E402
from tests.adapters.tiny import tiny_whisper, waves  # noqa: E402

OPTIONS = AdaptOptions(order=2, prune=(0,), beam=3, max_decodes=2, calibration=2, normaliser="none")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Every name is the same tiny model, and its words are its own."""
    model = tiny_whisper()
    monkeypatch.setattr(loading, "load_model", lambda *a, **k: model)
    monkeypatch.setattr(loading, "options_of", lambda *a, **k: {})
    return model


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "domain.txt"
    path.write_text("w5 w6 w7 w8\nw5 w6 w9\nw7 w8 w5 w6\nW5 w6 w7\n".replace("W5", "w5") * 5)
    return [str(path)]


def speech(texts):
    return [
        Utterance(str(i), text, wave, speaker=str(i % 2), seconds=len(wave) / 16_000)
        for i, (text, wave) in enumerate(zip(texts, waves(len(texts)), strict=True))
    ]


@pytest.fixture(autouse=True)
def no_recasing(monkeypatch):
    """The tiny tokenizer knows no capitals."""
    monkeypatch.setattr("ilme.data.written_style.needs_recasing", lambda lines: False)


def test_with_dev_the_folder_is_no_worse_than_no_fusion(tiny, text, tmp_path):
    plain = load_plain(tiny)
    heard = [plain.nbest([w])[0][0].text for w in waves(3)]
    dev = speech(["w5 w6 w7 " + heard[0], heard[1], "w5 w6"])
    adapted = adapt(tiny, "tiny", text, tmp_path / "out", dev=dev, options=OPTIONS)
    assert adapted.after.total.errors <= adapted.before.total.errors
    assert set(adapted.ranking) == {"removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned"}
    card = write_card(adapted, tmp_path / "out")
    assert "| before |" in card and (tmp_path / "out" / "card.md").read_text() == card
    again = load(tmp_path / "out")
    assert again.domain.weights == adapted.domain.weights
    texts = {u.id: again.transcribe(u.audio).text for u in dev}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}


def load_plain(model):
    from ilme.adapters.recognition import SEARCH, Recogniser

    from ilme.recogniser.domain import DomainRecogniser

    return DomainRecogniser(Domain("tiny"), Recogniser(model, options=SEARCH))


def test_no_gain_means_zero_weights_and_a_reason(tiny, text, tmp_path):
    plain = load_plain(tiny)
    recognised = [
        plain.recogniser.search(plain.recogniser.encode([w]), FusionWeights(), 3)[0][0].text for w in waves(2)
    ]
    adapted = adapt(tiny, "tiny", text, tmp_path / "out", dev=speech(recognised), options=OPTIONS)
    assert adapted.before.total.errors == 0, "the references are what the model says"
    assert adapted.domain.weights == FusionWeights() and adapted.domain.internal == ""
    assert "weights are zero" in adapted.domain.report["note"]
    assert "No weights made fewer errors" in write_card(adapted, tmp_path / "out")
    assert load(tmp_path / "out").transcribe(waves(1)[0]).text == recognised[0]


def test_without_dev_safe_weights_are_used_and_said_so(tiny, text, tmp_path):
    said = []
    adapted = adapt(tiny, "tiny", text, tmp_path / "out", options=OPTIONS, say=said.append)
    assert adapted.domain.weights == SAFE_WEIGHTS
    assert any("has not been measured" in line for line in said)
    assert any("weights learned on audiobooks, telephone calls and voice commands" in line for line in said)
    assert "weights learned on audiobooks" in write_card(adapted, tmp_path / "out").lower()
    transcript = load(tmp_path / "out").transcribe(waves(1)[0])
    assert transcript.segments[0].scores.lm != 0 and transcript.segments[0].scores.subtracted != 0
    with pytest.raises(BadInputError, match="needs speech"):
        adapt(tiny, "tiny", text, tmp_path, options=AdaptOptions(internal="mean-context", order=2, prune=(0,)))


def test_the_safe_weights_were_measured_and_made_no_domain_worse():
    """They are those of the results file, in which every domain has fewer errors with them than without any LM."""
    file = Path(__file__).parents[2] / "docs" / "results" / "data" / "safe-weights.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    measured = found["in the search"][f"{SAFE_INTERNAL}:{SAFE_WEIGHTS.lm}:{SAFE_WEIGHTS.subtracted}"]
    assert set(measured) == set(found["domains"]) and len(measured) >= 3
    for name, row in measured.items():
        assert row["share"] < 1 and row["WER"] < found["domains"][name]["WER without LM"]


def test_a_folded_domain_transcribes_as_it_was_measured(tiny, text, tmp_path):
    """The folder says fold, so that what is loaded scores as what was tuned did."""
    dev = speech(["w5 w6 w7", "w5 w6", "w7 w8 w5"])
    options = replace(OPTIONS, style="fold", internal="zeroed")
    adapted = adapt(tiny, "tiny", text, tmp_path / "out", dev=dev, options=options)
    again = load(tmp_path / "out")
    assert again.domain.style == "fold" and adapted.domain.report["text"]["style"] == "fold"
    assert {u.id: again.transcribe(u.audio).text for u in dev} == {u.id: u.hypothesis for u in adapted.after.utterances}
    safe = adapt(tiny, "tiny", text, tmp_path / "safe", options=options)
    assert safe.domain.weights == SAFE_WEIGHTS
    loaded = load(tmp_path / "safe").recogniser
    assert isinstance(loaded.lm, FoldedScorer) and isinstance(loaded.subtracted, FoldedInternal)
    with pytest.raises(BadInputError, match="style is one of restore, fold, keep"):
        AdaptOptions(style="lower")


def test_a_folder_from_before_styles_still_loads(tiny, text, tmp_path):
    adapt(tiny, "tiny", text, tmp_path, options=OPTIONS)
    card = json.loads((tmp_path / CARD).read_text())
    del card["style"]
    (tmp_path / CARD).write_text(json.dumps(card))
    assert load(tmp_path).domain.style == "restore"


def test_long_silent_and_empty_audio(tiny, text, tmp_path):
    adapt(tiny, "tiny", text, tmp_path / "out", options=OPTIONS)
    recogniser = load(tmp_path / "out")
    long = np.concatenate([waves(1)[0], np.zeros(40_000, np.float32), waves(2)[1]])
    seen = []
    transcript = recogniser.transcribe(long, progress=lambda done, total: seen.append(done / total))
    assert len(transcript.segments) > 3 and seen[-1] == 1.0
    assert any(s.text == "" for s in transcript.segments), "windows of silence hold no text"
    assert transcript.segments[-1].end == pytest.approx(len(long) / 16_000)
    assert recogniser.transcribe(np.zeros(16_000, np.float32)).text == ""
    with pytest.raises(BadInputError, match="no samples"):
        recogniser.transcribe(np.zeros(0, np.float32))


def test_a_training_text_without_a_model_language_is_refused(tiny, tmp_path, monkeypatch):
    path = tmp_path / "far.txt"
    path.write_text("мама мыла раму\n" * 5)
    monkeypatch.setattr(type(tiny.tokenizer), "encode", lambda self, line: [5] * len(line))
    with pytest.raises(BadInputError, match="language or script"):
        train_domain_lm(tiny, [str(path)], [], tmp_path / "lm.safetensors", OPTIONS, print)
    with pytest.raises(BadInputError, match="no text was given"):
        train_domain_lm(tiny, [], [], tmp_path / "lm.safetensors", OPTIONS, print)


def test_marks_that_are_suppressed_are_not_in_the_text(tiny):
    assert all(len(mark) == 1 and not mark.isalnum() for mark in unwritable(tiny))


def test_damaged_and_foreign_folders(tmp_path):
    with pytest.raises(CheckpointError, match="no domain folder"):
        load(tmp_path)
    (tmp_path / CARD).write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load(tmp_path)
    (tmp_path / CARD).write_text(json.dumps({"format": "ilme-domain", "version": 99}))
    with pytest.raises(CheckpointError, match="version 99"):
        load(tmp_path)


def test_the_commands(tiny, text, tmp_path, capsys):
    wave = tmp_path / "a.wav"
    soundfile.write(wave, waves(1)[0], 16_000)
    manifest = tmp_path / "dev.jsonl"
    row = {"audio_filepath": str(wave), "text": "w5 w6 w7", "duration": 0.9, "speaker": "s"}
    other = tmp_path / "b.wav"
    soundfile.write(other, waves(2)[1], 16_000)
    manifest.write_text(json.dumps(row) + "\n" + json.dumps(row | {"audio_filepath": str(other), "text": "w9"}) + "\n")
    options = ["--options.order=2", "--options.prune=[0]", "--options.beam=2", "--options.calibration=2"]
    options += ["--options.max_decodes=2", "--options.normaliser=none", "--options.internal=zeroed"]
    out = tmp_path / "dom"
    assert main(["adapt", "--model", "tiny", "--text", *text, "--dev", str(manifest), "--out", str(out), *options]) == 0
    assert "dev without LM" in capsys.readouterr().out
    (tmp_path / "broken.wav").write_bytes(b"no audio at all")
    files = [str(wave), str(tmp_path / "broken.wav")]
    status = main(["transcribe", "--domain", str(out), "--out", str(tmp_path / "texts"), *files])
    assert status == 1 and "broken.wav" in capsys.readouterr().err
    assert (tmp_path / "texts" / "a.txt").is_file()
    assert main(["transcribe", str(wave)]) == 1
    assert "--domain" in capsys.readouterr().err


def test_ilme_load_is_the_same_function():
    import ilme

    assert ilme.load is load
    assert torch.get_num_threads() >= 1


def test_hypotheses_that_drop_or_invent_stretches_are_left_out():
    from ilme.adapters.recognition import alike_in_length

    from ilme.search.hypothesis import Hypothesis, Scores

    def hypothesis(size, asr, score):
        return Hypothesis(tuple(range(size)), score, Scores(asr=asr, length=size))

    own, short, long, near = (
        hypothesis(*x) for x in [(20, -4.0, -1.0), (2, -3.0, -0.5), (60, -30.0, -0.6), (24, -8.0, -0.7)]
    )
    assert alike_in_length([short, long, near, own], 1.0) == [near, own]
    assert alike_in_length([], 1.0) == []
