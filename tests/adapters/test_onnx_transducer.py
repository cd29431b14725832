"""A tiny stateless transducer of ours, exported as icefall does: equal to torch, searched, its internal LM checked."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from ilme.adapters.onnx_transducer import OnnxTransducer, PieceTokenizer, over_the_edges, read_tokens
from ilme.errors import CheckpointError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.search.transducer import TransducerOptions, TransducerSearch
from tests.adapters.tiny import waves

PIECES = ["<blk>", "<sos/eos>", "<unk>", "▁the", "▁a", "▁c", "at", "s", "▁do", "g"]
WIDTH = 6


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(80, WIDTH)

    def forward(self, x, x_lens):
        return torch.tanh(self.net(x[:, ::4])), (x_lens + 3) // 4


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(PIECES), WIDTH)
        self.net = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, y):
        return self.net(self.embedding(y).flatten(1))


class Joiner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, len(PIECES))

    def forward(self, encoder_out, decoder_out):
        return self.net(torch.tanh(encoder_out + decoder_out))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("zipformer")
    parts = Encoder().eval(), Decoder().eval(), Joiner().eval()
    batch = torch.export.Dim("N", min=1, max=512)
    time = 4 * torch.export.Dim("frames", min=2, max=500)
    save(
        parts[0],
        (torch.randn(2, 40, 80), torch.tensor([40, 40])),
        folder / "encoder.onnx",
        ({0: batch, 1: time}, {0: batch}),
    )
    save(parts[1], (torch.zeros(2, 2, dtype=torch.int64),), folder / "decoder.onnx", ({0: batch},))
    save(parts[2], (torch.randn(2, WIDTH), torch.randn(2, WIDTH)), folder / "joiner.onnx", ({0: batch}, {0: batch}))
    (folder / "tokens.txt").write_text("".join(f"{p} {i}\n" for i, p in enumerate(PIECES)), encoding="utf-8")
    return folder, parts


def save(module, example, path, shapes):
    torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=shapes, verbose=False)


def test_terms_and_logits_equal_torch(exported):
    folder, (encoder, decoder, joiner) = exported
    model = OnnxTransducer.from_folder(folder)
    assert model.context == 2
    x, lengths = torch.randn(2, 40, 80), torch.tensor([40, 24])
    f, sizes = model.encode(x, lengths)
    with torch.no_grad():
        torch.testing.assert_close(f, encoder(x, lengths)[0], atol=1e-4, rtol=0)
        assert sizes.tolist() == [10, 6]
        g, state = model.start(3)
        torch.testing.assert_close(g, decoder(torch.zeros(3, 2, dtype=torch.int64)), atol=1e-4, rtol=0)
        g, state = model.predict(torch.tensor([3, 4, 5]), state)
        torch.testing.assert_close(g, decoder(torch.tensor([[0, 3], [0, 4], [0, 5]])), atol=1e-4, rtol=0)
        torch.testing.assert_close(model.join(f[0, :3], g), joiner(f[0, :3], g), atol=1e-4, rtol=0)
        torch.testing.assert_close(model.join(None, g), joiner(torch.zeros_like(g), g), atol=1e-4, rtol=0)


def test_search_with_its_internal_lm(exported):
    model = OnnxTransducer.from_folder(exported[0])
    internal = TransducerInternalLM(model)
    before, _ = internal.start(1)
    f, lengths = model.encode(*model.features(waves(2)))
    after, _ = internal.start(1)
    assert torch.equal(before, after), "the internal LM hears no audio"
    assert before.exp().sum() == pytest.approx(1.0) and before[0, 0] == -torch.inf
    plain = TransducerSearch(model, None, TransducerOptions(beam=4))(f, lengths)
    fused = TransducerSearch(model, Fusion(None, internal, FusionWeights(subtracted=0.3)), TransducerOptions(beam=4))(
        f, lengths
    )
    assert len(plain) == len(fused) == 2
    best = fused[0][0]
    score, state = internal.start(1)
    total = 0.0
    for label in best.tokens:
        total += float(score[0, label])
        score, state = internal.score(torch.tensor([label]), state)
    assert best.scores.subtracted == pytest.approx(total, abs=1e-4)


def test_text_and_pieces():
    tokenizer = PieceTokenizer(read_tokens_of(PIECES))
    ids = tokenizer.encode("the cats dog")
    assert tokenizer.decode(ids) == "the cats dog"
    assert 2 in tokenizer.encode("zebra"), "unknown letters become <unk>"


def read_tokens_of(pieces):
    from ilme.tokens import Tokens

    return Tokens(tuple(pieces), blank=0, unk=2)


def test_features_have_as_many_frames_as_kaldi_without_snip_edges(exported):
    model = OnnxTransducer.from_folder(exported[0])
    for size in (16_000, 16_079, 16_080, 5_333):
        _, lengths = model.features([np.random.default_rng(0).standard_normal(size).astype(np.float32)])
        assert lengths.tolist() == [(size + 80) // 160]
    assert len(over_the_edges(np.ones(10, np.float32))) >= 400


def test_damaged_folders(tmp_path):
    with pytest.raises(CheckpointError, match=r"no encoder\*.onnx"):
        OnnxTransducer.from_folder(tmp_path)
    for name in ("encoder", "decoder", "joiner"):
        (tmp_path / f"{name}.onnx").write_bytes(b"not onnx")
    (tmp_path / "tokens.txt").write_text("<blk> 0\na 2\n")
    with pytest.raises(CheckpointError, match="without gaps"):
        OnnxTransducer.from_folder(tmp_path)
    (tmp_path / "tokens.txt").write_text("<blk> 0\na 1\n")
    with pytest.raises(CheckpointError, match="cannot be read as ONNX"):
        OnnxTransducer.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match="line 1"):
        (tmp_path / "tokens.txt").write_text("no id here\n")
        read_tokens(tmp_path / "tokens.txt")


@pytest.mark.skipif("ILME_ONNX_TRANSDUCER" not in os.environ, reason="ILME_ONNX_TRANSDUCER names no exported model")
def test_a_real_export_recognises_something():
    model = OnnxTransducer.from_folder(Path(os.environ["ILME_ONNX_TRANSDUCER"]))
    f, lengths = model.encode(*model.features(waves(1, 2.0)))
    assert TransducerSearch(model, None, TransducerOptions(beam=4))(f, lengths)[0]
