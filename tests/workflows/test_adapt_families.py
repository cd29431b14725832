"""Models that others made, from a folder to a transcript: adapted with and without dev speech, and loaded again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import soundfile

pytest.importorskip("transformers", reason="needs the extra hf")

from ilme.adapters.families import FAMILIES
from ilme.cli import main
from ilme.errors import BadInputError
from ilme.ilm import internal_lm
from ilme.recogniser.domain import load_domain
from ilme.recogniser.loading import load_model
from ilme.recogniser.recogniser import Recogniser
from ilme.workflows.adapt import AdaptOptions, adapt
from tests.adapters import attention_folders, frame_models
from tests.adapters.tiny import waves

WRITE = {
    "parakeet_ctc": frame_models.parakeet_ctc,
    "parakeet_rnnt": frame_models.parakeet_transducer,
    "parakeet_tdt": lambda folder: frame_models.parakeet_transducer(folder, "TDT"),
    "nemotron_asr_streaming": frame_models.nemotron,
    "wav2vec2": frame_models.wav2vec2,
    "hubert": lambda folder: frame_models.wav2vec2(folder, "Hubert"),
    **attention_folders.WRITE,
}
OPTIONS = AdaptOptions(order=2, prune=(0,), beam=3, max_decodes=2, calibration=2, normaliser="none")
WORDS = "w5 w6 w7 w8\nw5 w6 w9\nw7 w8 w5 w6\n" * 5
TEXT = "the small dog sees a ball and the cat sees the dog\nall dogs see the ball and call the cat\n" * 4


def dev_set(folder, model, also):
    """Noises whose transcripts are nearly what the model hears: a word more."""
    plain = Recogniser(model)
    rows = []
    for i, samples in enumerate(waves(3)):
        soundfile.write(folder / f"{i}.wav", samples, 16_000)
        heard = plain.nbest([samples])[0][0].text
        said, seconds = f"{heard} {also}".strip(), len(samples) / 16_000
        rows.append({"id": str(i), "audio_filepath": f"{i}.wav", "text": said, "duration": seconds})
    (folder / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder / "dev.jsonl"


def test_every_family_of_transformers_is_here():
    assert set(WRITE) == {family.kind for family in FAMILIES if family.adapter}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITE, "turbo"])
def test_a_folder_is_adapted_and_transcribes(name, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    (WRITE | {"turbo": attention_folders.turbo})[name](folder)
    kind, language = ("whisper", {"language": "de"}) if name == "turbo" else (name, {})
    spelled = kind not in attention_folders.WRITE
    options = OPTIONS if spelled else replace(OPTIONS, style="keep")  # the words are w0, w1, …
    text = tmp_path / "text.txt"
    text.write_text(TEXT if spelled else WORDS)
    model = load_model(folder, **language)
    dev = dev_set(tmp_path, model, "the dog" if spelled else "w5")
    adapted = adapt(
        str(folder), [str(text)], tmp_path / "domain", dev=str(dev), options=options, model_options=language
    )
    assert adapted.domain.kind == kind
    more = adapted.after.total.errors - adapted.before.total.errors
    assert (more > 0) == (f"dev has {more} more errors" in adapted.domain.report.get("note", ""))
    silent = {"learned"} if kind == "speech_to_text" else set()  # of the two it would learn from, it hears one
    assert set(adapted.ranking) == set(internal_lm.available(model)) - silent
    again = load_domain(tmp_path / "domain")
    texts = {u.id: again.transcribe(tmp_path / f"{u.id}.wav").text for u in adapted.after.utterances}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}
    assert main(["transcribe", str(tmp_path / "0.wav"), "--domain", str(tmp_path / "domain")]) in (None, 0)
    assert texts["0"].strip() in capsys.readouterr().out
    safe = adapt(str(folder), [str(text)], tmp_path / "safe", options=options)
    assert "no dev speech" in safe.domain.report["note"] and safe.domain.weights.lm > 0
    assert isinstance(load_domain(tmp_path / "safe").transcribe(tmp_path / "1.wav").text, str)


@pytest.mark.parametrize("dev", [True, False])
def test_a_model_that_is_to_tell_the_language_is_not_adapted(dev, tmp_path):
    """Refused before the text is read: what is subtracted would be of another language."""
    (tmp_path / "model").mkdir()
    attention_folders.turbo(tmp_path / "model")
    text, auto = tmp_path / "text.txt", {"language": "auto"}
    text.write_text(WORDS)
    given = str(dev_set(tmp_path, load_model(tmp_path / "model"), "w5")) if dev else ()
    with pytest.raises(BadInputError, match="text is of one language"):
        adapt(str(tmp_path / "model"), [str(text)], tmp_path / "domain", dev=given, model_options=auto)
    assert not (tmp_path / "domain").exists()
