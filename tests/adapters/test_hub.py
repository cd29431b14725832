"""Folders and hub ids of `transformers`: the adapter is found by the model's type, or the error says what is wrong."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")

from ilme.errors import BadInputError, CheckpointError, IlmeError
from ilme.recogniser.loading import load_model
from tests.adapters import attention_folders, frame_models


def test_models_of_an_unknown_kind(tmp_path):
    folder = tmp_path / "bert"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_model(str(folder))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInputError, match=r"type 'bert'.*moonshine.*speech_to_text.*whisper"):
        load_model(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        load_model(str(folder))
    (folder / "config.json").write_text('{"model_type": "moonshine"}')
    with pytest.raises(BadInputError, match="Moonshine takes no language; it takes max_labels"):
        load_model(str(folder), language="de")


DAMAGES = {
    "absent": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "a list": lambda path: path.write_text("[]"),
}
FOLDERS = {
    "parakeet_ctc": lambda folder: frame_models.parakeet_ctc(folder),
    "parakeet_tdt": lambda folder: frame_models.parakeet_transducer(folder, "TDT"),
    "nemotron": lambda folder: frame_models.nemotron(folder),
    "wav2vec2": lambda folder: frame_models.wav2vec2(folder),
    **{kind: write for kind, write in attention_folders.WRITE.items() if kind != "whisper"},  # tests/attacks has it
}
NEEDED = ("config.json", "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(FOLDERS))
def test_a_damaged_folder_is_refused_with_a_sentence(kind, tmp_path):
    """Whichever file is damaged: an error of this package, or, where the file was not needed, the same model."""
    whole = tmp_path / "whole"
    whole.mkdir()
    FOLDERS[kind](whole)
    for name in sorted(p.name for p in whole.iterdir()):
        for damage, change in DAMAGES.items():
            folder = tmp_path / "copy"
            shutil.copytree(whole, folder)
            change(folder / name)
            try:
                load_model(folder)
            except IlmeError as error:
                assert 20 < len(str(error)) < 600 and "\n" not in str(error), (name, damage, str(error))
            else:
                assert name not in NEEDED, (name, damage)
            shutil.rmtree(folder)


def test_a_folder_of_two_models_is_refused(tmp_path):
    """The config of one and the weights of the other."""
    for name in ("parakeet_ctc", "wav2vec2"):
        (tmp_path / name).mkdir()
        FOLDERS[name](tmp_path / name)
    shutil.copy(tmp_path / "wav2vec2" / "model.safetensors", tmp_path / "parakeet_ctc" / "model.safetensors")
    with pytest.raises(IlmeError, match=r"is not whole|but the weights beside it"):
        load_model(tmp_path / "parakeet_ctc")


def test_numbers_that_are_no_shares_are_refused(tmp_path):
    FOLDERS["parakeet_ctc"](tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["encoder_config"]["dropout"] = -3
    file.write_text(json.dumps(config))
    with pytest.raises(IlmeError, match=r"dropout=-3 must be a share from 0 to 1"):
        load_model(tmp_path)


def test_weights_in_pytorchs_own_file_are_not_read(tmp_path):
    FOLDERS["wav2vec2"](tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"in pytorch_model\.bin, which can run code .* call save_pretrained"):
        load_model(tmp_path)
