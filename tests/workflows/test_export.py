"""An exported RNN-T is the network: equal terms, equal search, and a folder that is whole or not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import ilme
from ilme.adapters.onnx_transducer import BpeTokenizer, OnnxTransducer
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import Fusion, FusionWeights
from ilme.models.checkpoint import load_checkpoint
from ilme.models.encoder import EncoderConfig
from ilme.models.rnnt import RNNT
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import check_transducer, tiny
from ilme.tokens import Tokens
from ilme.workflows.export import export_onnx
from tests.adapters.tiny import waves
from tests.checkpoints import write_checkpoints

BOTH_WAYS = EncoderConfig(hidden=24, layers=2, bidirectional=True, time_reduction=2, reduce_after=1, dropout=0.0)


def network(prediction: str, seed: int = 0, hat: bool = False) -> RNNT:
    config = replace(tiny("rnnt").config, prediction=prediction, encoder=BOTH_WAYS, hat=hat)
    torch.manual_seed(seed)
    model = RNNT(config, tiny("rnnt").tokens)
    for parameter in model.parameters():
        parameter.data.mul_(2.0)  # small random weights decide nothing
    model.attach(None, FrontendConfig())
    return model.eval()


@pytest.fixture(scope="module", params=["lstm", "stateless", "hat"])
def pair(request, tmp_path_factory) -> tuple[RNNT, OnnxTransducer]:
    """A network, and what was loaded from its folder."""
    hat = request.param == "hat"
    model = network("lstm" if hat else request.param, hat=hat)
    folder = tmp_path_factory.mktemp("exported") / request.param
    assert export_onnx(model, folder) < 1e-4
    return model, ilme.load_model(folder)


@torch.no_grad()
def test_terms_and_logits_are_the_networks(pair):
    model, exported = pair
    audio = [*waves(3), waves(1)[0][:50]]  # the last one is shorter than a frame
    f, lengths = exported.encode(*exported.features(audio))
    ours, frames = model.encode(*model.features(audio))
    assert lengths.tolist() == frames.tolist()
    for b, n in enumerate(frames):
        torch.testing.assert_close(f[b, :n], ours[b, :n], atol=1e-4, rtol=0)
    (g, state), (our_g, our_state) = exported.start(2), model.start(2)
    for labels in (torch.tensor([3, 4]), torch.tensor([4, 4]), torch.tensor([9, 1])):
        torch.testing.assert_close(g, our_g, atol=1e-4, rtol=0)
        for given, our_given in ((f[:2, 1], ours[:2, 1]), (None, None)):
            torch.testing.assert_close(exported.join(given, g), model.join(our_given, our_g), atol=1e-4, rtol=0)
        (g, state), (our_g, our_state) = exported.predict(labels, state), model.predict(labels, our_state)
    check_transducer(exported, *exported.features(waves(2)), labels=[3, 7])


def test_the_search_finds_the_same_with_the_same_scores(pair):
    found = []
    for model in pair:
        fusion = Fusion(None, ilme.internal_lm(model, "removed"), FusionWeights(subtracted=0.3, length=3.0))
        with torch.no_grad():
            f, lengths = model.encode(*model.features(waves(3)))
        found.append(TransducerSearch(model, fusion, TransducerOptions(beam=6))(f, lengths))
    for ours, theirs in zip(*found, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs] and len(ours[0].tokens) > 3
        for a, b in zip(ours, theirs, strict=True):
            assert b.score == pytest.approx(a.score, abs=1e-3)
            assert b.scores.asr == pytest.approx(a.scores.asr, abs=1e-3)
            assert b.scores.subtracted == pytest.approx(a.scores.subtracted, abs=1e-3)


def test_a_checkpoint_keeps_its_tokenizer(tmp_path):
    loaded = load_checkpoint(write_checkpoints(tmp_path, ["rnnt"]) / "rnnt")
    export_onnx(loaded.model, tmp_path / "onnx")
    exported = ilme.load_model(tmp_path / "onnx")
    assert isinstance(exported.tokenizer, BpeTokenizer)
    assert exported.tokens.pieces == ("<blk>", *loaded.model.tokens.pieces[1:])
    assert (exported.tokens.blank, exported.tokens.unk) == (0, 1)
    for text in ("the whale saw the captain", "calm quiz"):
        ids = loaded.tokenizer.encode(text)
        assert exported.tokenizer.encode(text) == ids and exported.tokenizer.decode(ids) == loaded.tokenizer.decode(ids)


def test_a_folder_that_was_exported_before_is_replaced_and_no_other(tmp_path):
    folder, model = tmp_path / "onnx", network("stateless")
    export_onnx(model, folder)
    before = (folder / "joiner.onnx").read_bytes()
    export_onnx(network("stateless", seed=1), folder)
    assert (folder / "joiner.onnx").read_bytes() != before
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(BadInputError, match=r"holds notes.txt, which no exported folder has"):
        export_onnx(model, folder)
    assert [p.name for p in tmp_path.iterdir()] == ["onnx"]


def test_what_cannot_be_exported_says_why(tmp_path):
    with pytest.raises(BadInputError, match="not a model of kind aed"):
        export_onnx(tiny("aed"), tmp_path / "onnx")
    model = network("lstm")
    model.attach(None, FrontendConfig(kind="whisper"))
    with pytest.raises(BadInputError, match=r"reads Whisper's log-mels, .* frontend.kind=kaldi"):
        export_onnx(model, tmp_path / "onnx")
    model.attach(None, None)
    with pytest.raises(BadInputError, match="has no frontend"):
        export_onnx(model, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


def broken_weight() -> RNNT:
    model = network("lstm")
    model.output.bias.data[3] = torch.nan
    return model


def broken_piece() -> RNNT:
    model = network("lstm")
    model.tokens = Tokens(("<b>", "<unk>", "two\nlines", *model.tokens.pieces[3:]), blank=0, unk=1)
    return model


def late_blank() -> RNNT:
    """<blk> is a label here: tokens.txt would make it the blank."""
    model = network("lstm")
    model.tokens = Tokens(("<blk>", *model.tokens.pieces[1:]), blank=1)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken_weight, "differ from the network by nan; nothing was written"),
        (broken_piece, "tokens.txt"),
        (late_blank, "tokens.txt cannot hold this model's pieces"),
    ],
)
def test_a_folder_that_would_not_be_the_network_is_not_written(make, message, tmp_path: Path):
    with pytest.raises(CheckpointError, match=message):
        export_onnx(make(), tmp_path / "onnx")
    assert not list(tmp_path.iterdir())
