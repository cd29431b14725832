"""Exports of NeMo, RNN-T and TDT, in one decoder_joint file or in two: equal to torch, searched, adapted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx

import ilme
from ilme.adapters.onnx_nemo import OnnxNemo, OnnxNemoTDT
from ilme.adapters.onnx_session import recognise
from ilme.adapters.onnx_transducer import BpeTokenizer
from ilme.errors import CheckpointError
from ilme.fusion import Fusion, FusionWeights
from ilme.recogniser.loading import load_model
from ilme.search.tdt import TDTSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import check_transducer
from tests.adapters.nemo_exports import PIECES, write_nemo
from tests.adapters.test_onnx_transducer import train_bpe
from tests.adapters.tiny import waves

FORMS = [(0, False), (5, False), (0, True), (5, True)]


@pytest.fixture(scope="module", params=FORMS, ids=["rnnt", "tdt", "rnnt-apart", "tdt-apart"])
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nemo")
    return folder, write_nemo(folder, *request.param), request.param[0]


@pytest.fixture(scope="module")
def tdt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nemo-tdt")
    return folder, write_nemo(folder, 5)


@pytest.fixture
def folder(tdt, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(tdt[0], tmp_path / "model"))


def test_logits_are_those_of_torch(exported):
    folder, made, durations = exported
    model = load_model(folder)
    features, lengths = model.features(waves(3))
    labels = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 1, 0]])
    expected, sizes = made.logits(features, lengths, labels)
    unheard = made.unheard(labels)
    f, frames = model.encode(features, lengths)
    assert frames.tolist() == sizes.tolist()
    g, state = model.start(3)
    V = len(PIECES)
    for u in range(4):
        for t in range(int(sizes.min())):
            z = model.join(f[:, t], g)
            torch.testing.assert_close(z.log_softmax(-1), expected[:, t, u, :V].log_softmax(-1), atol=1e-4, rtol=0)
            if durations:
                units, steps = model.join_durations(f[:, t], g)
                torch.testing.assert_close(units, z)
                wanted = expected[:, t, u, V:].log_softmax(-1)
                torch.testing.assert_close(steps.log_softmax(-1), wanted, atol=1e-4, rtol=0)
        alone = unheard[:, u, :V].log_softmax(-1)
        torch.testing.assert_close(model.join(None, g).log_softmax(-1), alone, atol=1e-4, rtol=0)
        if u < 3:
            g, state = model.predict(labels[:, u], state)


def test_the_encoders_bias_is_gone_with_its_term(exported):
    """Zeros in place of the encoder's output, before its projection, would be another internal LM."""
    folder, made, _ = exported
    model = load_model(folder)
    g, _ = model.start(1)
    biased = made.joint.enc.bias.expand_as(g)
    assert not torch.allclose(model.join(biased, g).softmax(-1), model.join(None, g).softmax(-1), atol=1e-3)


def test_the_contract_is_kept(exported):
    folder, _, durations = exported
    model = load_model(folder)
    assert type(model) is (OnnxNemoTDT if durations else OnnxNemo)
    assert getattr(model, "durations", None) == (tuple(range(durations)) if durations else None)
    check_transducer(model, *model.features(waves(3)), labels=[3, 7])


def test_search_with_its_internal_lm(exported):
    folder, _, durations = exported
    model = load_model(folder)
    search = TDTSearch if durations else TransducerSearch
    f, lengths = model.encode(*model.features(waves(2)))
    for how in ilme.internal_lm.available(model):
        if ilme.internal_lm.needs(model, how) == "nothing":
            fusion = Fusion(None, ilme.internal_lm(model, how), FusionWeights(subtracted=0.3))
            found = search(model, fusion, TransducerOptions(beam=4))(f, lengths)
            assert len(found) == 2 and all(nbest[0].score > -1e9 for nbest in found)


def test_adapted_and_transcribed_with(exported, tmp_path):
    folder = exported[0]
    (tmp_path / "text.txt").write_text("the cats\na dog\nthe dogs\n" * 20)
    ilme.adapt(str(folder), [tmp_path / "text.txt"], tmp_path / "domain")
    assert isinstance(ilme.load_domain(tmp_path / "domain").transcribe(waves(1)[0]).text, str)


def test_quantised_files_give_almost_the_same(tdt, tmp_path):
    pytest.importorskip("onnxruntime.quantization")
    write_nemo(tmp_path, 5, quantise=True)
    model, exact = load_model(tmp_path), load_model(tdt[0])
    features, lengths = model.features(waves(2))
    f, sizes = model.encode(features, lengths)
    expected, _ = exact.encode(features, lengths)
    for b, n in enumerate(sizes.tolist()):
        torch.testing.assert_close(f[b, :n], expected[b, :n], atol=0.05, rtol=0)
    alone, _ = model.encode(features[1:, : lengths[1]], lengths[1:])
    assert torch.equal(alone[0], f[1, : sizes[1]]), "every utterance is heard alone"


def test_what_files_say_of_features(folder):
    assert recognise(folder) == "nemo"
    model = load_model(folder)
    assert model.features(waves(1))[0].shape[2] == 16 and model.rate == 16_000
    bands = model.features(waves(1))[0]
    assert bands.mean(1).abs().max() < 1e-3, "per feature, as NeMo does unless told otherwise"
    say(folder, normalize_type="NA")
    assert load_model(folder).features(waves(1))[0].mean(1).abs().max() > 1
    say(folder, is_giga_am="1")
    with pytest.raises(CheckpointError, match="is a GigaAM model"):
        load_model(folder)
    say(folder, sample_rate="lots")
    with pytest.raises(CheckpointError, match="sample_rate must be a whole number"):
        load_model(folder)


def say(folder: Path, **metadata: str) -> None:
    graph = onnx.load(folder / "encoder-model.onnx")
    del graph.metadata_props[:]
    onnx.helper.set_model_props(graph, metadata)
    onnx.save(graph, folder / "encoder-model.onnx")


def test_a_sentencepiece_model_has_no_blank_of_its_own(folder):
    pieces = train_bpe(folder / "tokenizer.model", 8, lines=["ab abab ba", "bab abba ab"], bos_id=-1, eos_id=-1)
    lines = [f"{p} {i}\n" for i, p in enumerate([*pieces, "<blk>"])]
    (folder / "vocab.txt").write_text("".join(lines), encoding="utf-8")
    model = load_model(folder)
    assert isinstance(model.tokenizer, BpeTokenizer) and model.blank == 8
    assert model.tokenizer.decode([*model.tokenizer.encode("abba ab"), 8]) == "abba ab"


def rename(folder: Path, file: str, *changes: tuple[str, str]) -> None:
    content = (folder / file).read_bytes()
    for old, new in changes:
        assert old.encode() in content and len(old) == len(new)
        content = content.replace(old.encode(), new.encode())
    (folder / file).write_bytes(content)


def test_folders_that_are_refused(folder):
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8")
    (folder / "vocab.txt").write_text(vocabulary.replace("<blk>", "<oov>"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"vocab.txt names no blank"):
        load_model(folder)
    (folder / "vocab.txt").write_text("".join(f"u{i} {i}\n" for i in range(9)))
    with pytest.raises(CheckpointError, match=r"NeMo's is the last unit: add the line '<blk> 9'"):
        load_model(folder)
    (folder / "vocab.txt").write_text("".join(f"u{i} {i}\n" for i in range(13)) + "<blk> 13\nz 14\n")
    with pytest.raises(CheckpointError, match=r"has 14 outputs, the inventory 15: they do not belong together"):
        load_model(folder)
    (folder / "vocab.txt").write_text("".join(f"u{i} {i}\n" for i in range(12)) + "<blk> 12\n")
    with pytest.raises(CheckpointError, match="one more is no TDT"):
        load_model(folder)
    (folder / "vocab.txt").unlink()
    with pytest.raises(CheckpointError, match=r"has neither vocab.txt nor tokens.txt"):
        load_model(folder)
    (folder / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"features_size": "many"}))
    with pytest.raises(CheckpointError, match="features_size must be a whole number"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is no JSON"):
        load_model(folder)
    (folder / "config.json").unlink()
    rename(folder, "decoder_joint-model.onnx", ("encoder_outputs", "encoder_0utputs"))
    with pytest.raises(CheckpointError, match="has no input encoder_outputs"):
        load_model(folder)
    (folder / "decoder_joint-model.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(CheckpointError):
        load_model(folder)


def test_an_encoder_with_caches_is_refused(folder):
    graph = onnx.load(folder / "encoder-model.onnx")
    graph.graph.input.append(onnx.helper.make_tensor_value_info("cache_last_channel", 1, ["B", 3]))
    onnx.save(graph, folder / "encoder-model.onnx")
    with pytest.raises(CheckpointError, match="no encoder of NeMo for whole utterances"):
        load_model(folder)
