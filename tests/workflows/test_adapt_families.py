"""Models that others made, from a folder to a transcript: adapted with and without dev speech, and loaded again."""

from __future__ import annotations

import json

import pytest
import soundfile

pytest.importorskip("transformers", reason="needs the extra hf")

from ilme.cli import main
from ilme.recogniser.domain import load_domain
from ilme.recogniser.loading import load_model
from ilme.recogniser.recogniser import Recogniser
from ilme.workflows.adapt import AdaptOptions, adapt
from tests.adapters import frame_models
from tests.adapters.tiny import waves

WRITE = {
    "parakeet_ctc": frame_models.parakeet_ctc,
    "parakeet_rnnt": frame_models.parakeet_transducer,
    "parakeet_tdt": lambda folder: frame_models.parakeet_transducer(folder, "TDT"),
    "nemotron_asr_streaming": frame_models.nemotron,
    "wav2vec2": frame_models.wav2vec2,
    "hubert": lambda folder: frame_models.wav2vec2(folder, "Hubert"),
}
OPTIONS = AdaptOptions(order=2, prune=(0,), beam=3, max_decodes=2, calibration=2, normaliser="none")
TEXT = "the small dog sees a ball and the cat sees the dog\nall dogs see the ball and call the cat\n" * 4


def dev_set(folder, model):
    """Noises whose transcripts are nearly what the model hears."""
    plain = Recogniser(model)
    rows = []
    for i, samples in enumerate(waves(3)):
        soundfile.write(folder / f"{i}.wav", samples, 16_000)
        heard = plain.nbest([samples])[0][0].text
        rows.append(
            {"id": str(i), "audio_filepath": f"{i}.wav", "text": f"{heard} the dog", "duration": len(samples) / 16_000}
        )
    (folder / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder / "dev.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(WRITE))
def test_a_folder_is_adapted_and_transcribes(kind, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    WRITE[kind](folder)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    dev = dev_set(tmp_path, load_model(folder))
    adapted = adapt(str(folder), [str(text)], tmp_path / "domain", dev=str(dev), options=OPTIONS)
    assert adapted.domain.kind == kind
    more = adapted.after.total.errors - adapted.before.total.errors
    assert (more > 0) == (f"dev has {more} more errors" in adapted.domain.report.get("note", ""))
    assert set(adapted.ranking) >= {"removed"}
    again = load_domain(tmp_path / "domain")
    texts = {u.id: again.transcribe(tmp_path / f"{u.id}.wav").text for u in adapted.after.utterances}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}
    assert main(["transcribe", str(tmp_path / "0.wav"), "--domain", str(tmp_path / "domain")]) in (None, 0)
    assert texts["0"].strip() in capsys.readouterr().out
    safe = adapt(str(folder), [str(text)], tmp_path / "safe", options=OPTIONS)
    assert "cautious weights" in safe.domain.report["note"] and safe.domain.weights.lm > 0
    assert isinstance(load_domain(tmp_path / "safe").transcribe(tmp_path / "1.wav").text, str)
