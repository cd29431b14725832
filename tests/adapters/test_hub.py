"""Folders and hub ids of `transformers`: the adapter is found by the model's type, or the error says what is wrong."""

from __future__ import annotations

import pytest

from ilme.errors import BadInputError, CheckpointError
from ilme.recogniser.loading import load_model


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
