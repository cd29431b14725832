"""The table of models on docs/reference/models.md, row by row against the code."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import ilme
from ilme.errors import IlmeError
from ilme.recogniser.loading import FORMATS, load_model
from ilme.recogniser.packing import pack_networks
from ilme.testing import numbered_tokens, tiny

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
COLUMNS = ["kind", "adapt", "transcribe", "tune", "stream", "int8", "GPU", "internal LMs"]


def rows() -> dict[str, dict[str, str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    first = cells.index(COLUMNS)
    found = {}
    for row in cells[first + 2 :]:
        if len(row) != len(COLUMNS):
            break
        found[row[0].strip("`")] = dict(zip(COLUMNS, row, strict=True))
    return found


def with_speech(kind: str) -> Any:
    from ilme.data.features import FrontendConfig

    model = tiny(kind)
    model.attach(None, FrontendConfig())
    return model


def transformer(name: str) -> Any:
    pytest.importorskip("transformers")
    from tests.adapters import tiny as adapters

    return getattr(adapters, name)()


def frames(write: str, *args: str) -> Any:
    """A tiny folder of a model that is searched frame by frame, loaded."""
    pytest.importorskip("transformers")
    from tests.adapters import frame_models

    with TemporaryDirectory() as folder:
        getattr(frame_models, write)(Path(folder), *args)
        return load_model(folder)


def ctc_head() -> Any:
    from ilme import models
    from ilme.data.features import FrontendConfig
    from ilme.models.ctc_head import CTCHead

    config = replace(models.preset("aed", "tiny"), ctc=True)
    network = models.build("aed", config, numbered_tokens(32, "attention")).eval()
    network.attach(None, FrontendConfig())
    return CTCHead(network)


MAKE: dict[str, Callable[[], Any]] = {
    "rnnt": lambda: with_speech("rnnt"),
    "aed": lambda: with_speech("aed"),
    "ctc": ctc_head,
    "whisper": lambda: transformer("tiny_whisper"),
    "moonshine": lambda: transformer("tiny_moonshine"),
    "moonshine_streaming": lambda: transformer("tiny_moonshine_streaming"),
    "canary": lambda: transformer("tiny_canary"),
    "cohere_asr": lambda: transformer("tiny_cohere_asr"),
    "qwen3_asr": lambda: transformer("tiny_qwen3_asr"),
    "speech_to_text": lambda: transformer("tiny_speech2text"),
    "parakeet_ctc": lambda: frames("parakeet_ctc"),
    "parakeet_rnnt": lambda: frames("parakeet_transducer"),
    "parakeet_tdt": lambda: frames("parakeet_transducer", "TDT"),
    "nemotron_asr_streaming": lambda: frames("nemotron"),
    "wav2vec2": lambda: frames("wav2vec2"),
    "hubert": lambda: frames("wav2vec2", "Hubert"),
}
UNPACKED = (  # of which nothing that runs label by label is ours
    *("qwen3_asr", "parakeet_ctc", "wav2vec2", "hubert"),
    *("parakeet_rnnt", "parakeet_tdt", "nemotron_asr_streaming"),
)
STREAMED = {"rnnt": "forward encoders", "ctc": "forward encoders", "nemotron_asr_streaming": "in chunks"}


def test_the_table_has_every_kind():
    from ilme.adapters.hub import CLASSES
    from ilme.models import KINDS

    own = set(KINDS) - {"lm"}
    assert set(rows()) == own | set(CLASSES) | {"ctc", "onnx-transducer", "onnx-attention"}
    assert len(FORMATS) == 7, "a new format of models needs a row"
    assert all(row[name] == "yes" for row in rows().values() for name in ("adapt", "transcribe", "tune"))


@pytest.mark.parametrize("kind", list(MAKE))
def test_what_a_model_can_do(kind):
    row, model = rows()[kind], MAKE[kind]()
    assert model.kind == kind
    assert row["internal LMs"].split(", ") == list(ilme.internal_lm.available(model))
    if kind in UNPACKED:
        with pytest.raises(IlmeError, match="not packed"):
            pack_networks(model, (), "int8")
    else:
        pack_networks(model, (), "int8")  # no error: it can
    assert row["int8"] == ("no" if kind in UNPACKED else "yes") and row["GPU"] == "yes"
    assert row["stream"] == STREAMED.get(kind, "no")
    assert hasattr(model, "stream") == (row["stream"] == "in chunks")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs the extra onnx")
@pytest.mark.parametrize("kind", ["onnx-transducer", "onnx-attention"])
def test_what_an_onnx_model_can_do(kind, request):
    if kind == "onnx-transducer":
        from ilme.adapters.onnx_transducer import OnnxTransducer

        model = OnnxTransducer.from_folder(request.getfixturevalue("exported_transducer")[0])
    else:
        from ilme.adapters.onnx_attention import OnnxAttention

        model = OnnxAttention.from_folder(request.getfixturevalue("exported_whisper")[0])
    row = rows()[kind]
    assert model.kind == kind and row["int8"] == "its files" and row["GPU"] == "no" and row["stream"] == "no"
    assert row["internal LMs"].split(", ") == list(ilme.internal_lm.available(model))
    with pytest.raises(IlmeError, match="not packed"):
        pack_networks(model, (), "int8")


def test_what_stands_for_nothing_said_is_each_familys_own():
    defaults = {kind: ilme.internal_lm.default(make()) for kind, make in MAKE.items()}
    silent = ("whisper", "moonshine", "moonshine_streaming", "canary", "cohere_asr", "speech_to_text")
    ways = {"qwen3_asr": "zeroed"} | dict.fromkeys(silent, "silence")
    assert defaults == {kind: ways.get(kind, "removed") for kind in MAKE}
