"""The table of models on docs/reference/models.md, row by row against the code."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

import ilme
from ilme import models
from ilme.errors import IlmeError
from ilme.fusion import FusionWeights
from ilme.lm.ngram import lm_tokens
from ilme.recogniser.loading import FORMATS, load_model
from ilme.recogniser.packing import pack_networks
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.state import select
from ilme.testing import numbered_tokens, tiny
from ilme.testing.contract import check_internal_lm, scorer_rows
from tests.adapters.tiny import Words, waves

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


def with_speech(kind: str, device: str) -> Any:
    from ilme.data.features import FrontendConfig

    model = tiny(kind).to(device)
    model.attach(None, FrontendConfig())
    return model


def transformer(name: str, device: str) -> Any:
    pytest.importorskip("transformers")
    from tests.adapters import tiny as adapters

    return getattr(adapters, name)(device=device)


def frames(device: str, write: str, *args: str) -> Any:
    """A tiny folder of a model that is searched frame by frame, loaded."""
    pytest.importorskip("transformers")
    from tests.adapters import frame_models

    with TemporaryDirectory() as folder:
        getattr(frame_models, write)(Path(folder), *args)
        return load_model(folder, device)


def ctc_head(device: str) -> Any:
    from ilme.data.features import FrontendConfig
    from ilme.models.ctc_head import CTCHead

    config = replace(models.preset("aed", "tiny"), ctc=True)
    network = models.build("aed", config, numbered_tokens(32, "attention")).eval().to(device)
    network.attach(None, FrontendConfig())
    return CTCHead(network)


MAKE: dict[str, Callable[[str], Any]] = {
    "rnnt": lambda device: with_speech("rnnt", device),
    "aed": lambda device: with_speech("aed", device),
    "ctc": ctc_head,
    "whisper": lambda device: transformer("tiny_whisper", device),
    "moonshine": lambda device: transformer("tiny_moonshine", device),
    "moonshine_streaming": lambda device: transformer("tiny_moonshine_streaming", device),
    "canary": lambda device: transformer("tiny_canary", device),
    "cohere_asr": lambda device: transformer("tiny_cohere_asr", device),
    "qwen3_asr": lambda device: transformer("tiny_qwen3_asr", device),
    "speech_to_text": lambda device: transformer("tiny_speech2text", device),
    "parakeet_ctc": lambda device: frames(device, "parakeet_ctc"),
    "parakeet_rnnt": lambda device: frames(device, "parakeet_transducer"),
    "parakeet_tdt": lambda device: frames(device, "parakeet_transducer", "TDT"),
    "nemotron_asr_streaming": lambda device: frames(device, "nemotron"),
    "wav2vec2": lambda device: frames(device, "wav2vec2"),
    "hubert": lambda device: frames(device, "wav2vec2", "Hubert"),
}
UNPACKED = (  # of which nothing that runs label by label is ours
    *("qwen3_asr", "parakeet_ctc", "wav2vec2", "hubert"),
    *("parakeet_rnnt", "parakeet_tdt", "nemotron_asr_streaming"),
)
ONNX = ("onnx-transducer", "onnx-nemo", "onnx-nemo-tdt", "onnx-attention")
STREAMED = {"rnnt": "forward encoders", "ctc": "forward encoders", "nemotron_asr_streaming": "in chunks"}


def test_the_table_has_every_kind():
    from ilme.adapters.hub import CLASSES
    from ilme.models import KINDS

    own = set(KINDS) - {"lm"}
    assert set(rows()) == own | set(CLASSES) | {"ctc", *ONNX}
    assert len(FORMATS) == 7, "a new format of models needs a row"
    assert all(row[name] == "yes" for row in rows().values() for name in ("adapt", "transcribe", "tune"))


@pytest.mark.parametrize("kind", list(MAKE))
def test_what_a_model_can_do(kind):
    row, model = rows()[kind], MAKE[kind]("cpu")
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


LABELS = [5, 9, 6, 9]


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "packed"),
    [(kind, packed) for kind in MAKE for packed in (False, True) if not (packed and kind in UNPACKED)],
)
def test_every_internal_lm_hears_nothing(kind, packed):
    """Each of them: the same rows before and after audio, alone and in a batch, in any order, and beside the model."""
    model, audio = MAKE[kind]("cpu"), waves(2)
    if packed:
        pack_networks(model, (), "float32")
    calibration = Recogniser(model, tokenizer=Words(200)).calibrate(audio, [LABELS, LABELS[::-1]])
    for how in ilme.internal_lm.available(model):
        torch.manual_seed(0)
        scorer = ilme.internal_lm(model, how, calibration=calibration)
        if hasattr(model, "step"):
            check_internal_lm(scorer, model, *model.features(audio), LABELS)
            continue
        before = scorer_rows(scorer, [LABELS])
        fused = {"subtracted": scorer, "weights": FusionWeights(subtracted=0.3)}
        assert all(Recogniser(model, tokenizer=Words(200), **fused).nbest(audio))
        assert torch.equal(scorer_rows(scorer, [LABELS]), before), how
        total = before.exp().sum(-1)
        assert (
            torch.allclose(total, torch.ones_like(total), atol=1e-3) and not before[..., model.tokens.blank].exp().any()
        )
        both = scorer_rows(scorer, [LABELS[::-1], LABELS])
        torch.testing.assert_close(both[1:], before, atol=1e-4, rtol=0, msg=how)
        _, state = scorer.score(torch.tensor(LABELS[:2]), scorer.start(2)[1])
        swap, label = torch.tensor([1, 0]), torch.tensor(LABELS[:1] * 2)
        swapped, straight = scorer.score(label, select(state, swap))[0], scorer.score(label, state)[0]
        torch.testing.assert_close(swapped, straight[swap], atol=1e-4, rtol=0, msg=how)


def adapter(kind: str) -> Any:
    """The adapter's class; None for models of our own."""
    from ilme.adapters.hub import CLASSES

    module, _, name = CLASSES.get(kind, "").partition(":")
    return getattr(import_module(module), name) if module else None


def nbest_of(kind: str, device: str) -> list[tuple[str, list]]:
    """The n-best lists of a kind's tiny model with an LM, without and with each of its internal LMs, on a device."""
    model, audio = MAKE[kind](device), waves(3)
    torch.manual_seed(0)
    network = models.build("lm", models.preset("lm", "tiny"), lm_tokens(model.tokens)).eval().to(device)
    recogniser = partial(Recogniser, model, tokenizer=Words(200), lm=network)
    calibration = recogniser().calibrate(audio, [[3, 4, 5, 6], [4, 5, 6, 7, 8], [5, 6, 7]])
    found = []
    for how in ("", *ilme.internal_lm.available(model)):
        torch.manual_seed(0)
        internal = ilme.internal_lm(model, how, calibration=calibration) if how else None
        weights = FusionWeights(lm=0.3, subtracted=0.2 if how else 0.0, length=0.1)
        found.append((how, recogniser(subtracted=internal, weights=weights).nbest(audio)))
    return found


@pytest.mark.cuda
@pytest.mark.parametrize("kind", list(MAKE))
def test_a_model_gives_on_a_gpu_what_it_gives_on_a_cpu(kind):
    """Without and with each internal LM: the best scores of every utterance."""
    upstream = getattr(adapter(kind), "upstream", "")
    if upstream and not hasattr(pytest.importorskip("transformers"), upstream):
        pytest.skip(f"this release of transformers has no {upstream}")
    for (how, here), (_, there) in zip(nbest_of(kind, "cpu"), nbest_of(kind, "cuda"), strict=True):
        for ours, theirs in zip(here, there, strict=True):
            near = {"rel": 0.03} if how == "distilled" else {"abs": 2e-2}  # trained there on what was heard there
            assert ours and [h.score for h in theirs[:3]] == pytest.approx([h.score for h in ours[:3]], **near), how


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="needs the extra onnx")
@pytest.mark.parametrize("kind", ONNX)
def test_what_an_onnx_model_can_do(kind, request, tmp_path):
    if kind.startswith("onnx-nemo"):
        from tests.adapters.nemo_exports import write_nemo

        write_nemo(tmp_path, 5 if kind.endswith("tdt") else 0)
        model = load_model(tmp_path)
    elif kind == "onnx-transducer":
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
    defaults = {kind: ilme.internal_lm.default(make("cpu")) for kind, make in MAKE.items()}
    silent = ("whisper", "moonshine", "moonshine_streaming", "canary", "cohere_asr", "speech_to_text")
    ways = {"qwen3_asr": "zeroed"} | dict.fromkeys(silent, "silence")
    assert defaults == {kind: ways.get(kind, "removed") for kind in MAKE}
