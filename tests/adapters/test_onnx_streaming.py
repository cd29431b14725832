"""An encoder that takes states, as icefall exports it for streaming: chunk by chunk as torch, however it is cut."""

from __future__ import annotations

import shutil

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

import onnx

import ilme
from ilme.adapters.onnx_streaming import SILENT
from ilme.errors import CheckpointError
from ilme.recogniser.loading import load_model
from ilme.search.transducer import TransducerSearch
from ilme.testing import check_transducer
from tests.adapters.onnx_exports import READS, STEP, WIDTH
from tests.adapters.tiny import waves

pytestmark = pytest.mark.slow


def by_hand(encoder, frames):
    """Chunks of one utterance (T, 80), one after the other, the last followed by silence."""
    state, count, found = torch.zeros(1, 1, WIDTH), torch.zeros(1, dtype=torch.int64), []
    with torch.no_grad():
        for at in range(0, len(frames), STEP):
            chunk = frames[at : at + READS]
            chunk = torch.nn.functional.pad(chunk, (0, 0, 0, READS - len(chunk)), value=SILENT)
            out, state, count = encoder(chunk[None], state, count)
            found.append(out[0])
    return torch.cat(found)


@pytest.mark.parametrize("length", [1, STEP - 1, STEP, READS, READS + 1, 3 * STEP, 41])
def test_chunks_are_those_of_torch(exported_streaming, length):
    folder, encoder = exported_streaming
    model = load_model(folder)
    assert (model.chunks.reads, model.chunks.step, model.chunks.gives) == (READS, STEP, 2)
    frames = torch.randn(1, length, 80, generator=torch.Generator().manual_seed(length))
    f, sizes = model.encode(frames, torch.tensor([length]))
    expected = by_hand(encoder, frames[0])
    assert sizes.tolist() == [-(-length * 2 // STEP)] and f.shape[1] == sizes[0]
    torch.testing.assert_close(f[0], expected[: sizes[0]], atol=1e-5, rtol=0)


def test_a_batch_gives_what_each_gives_alone(exported_streaming):
    model = load_model(exported_streaming[0])
    frames, lengths = torch.randn(3, 41, 80, generator=torch.Generator().manual_seed(0)), torch.tensor([41, 17, 30])
    together, sizes = model.encode(frames, lengths)
    for b, n in enumerate(lengths.tolist()):
        alone, own = model.encode(frames[b : b + 1, :n], lengths[b : b + 1])
        assert own.item() == sizes[b]
        torch.testing.assert_close(together[b, : sizes[b]], alone[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cuts", [[1] * 41, [41], [20, 21], [READS, 28], [5, 0, 36]])
def test_a_stream_gives_the_same_however_it_is_cut(exported_streaming, cuts):
    model = load_model(exported_streaming[0])
    frames = torch.randn(2, 41, 80, generator=torch.Generator().manual_seed(1))
    stream = model.chunks.start(2)
    parts = [stream.push(part) for part in frames.split(cuts, 1)] + [stream.finish()]
    f = torch.cat([part for part in parts if part.shape[1]], 1)
    whole, sizes = model.encode(frames, torch.tensor([41, 41]))
    torch.testing.assert_close(f[:, : sizes[0]], whole, atol=1e-5, rtol=0)


def test_it_is_a_transducer_as_any_other(exported_streaming, tmp_path):
    model = load_model(exported_streaming[0])
    features, lengths = model.features(waves(2))
    check_transducer(model, features, lengths, [3, 5, 4])
    f, lengths = model.encode(features, lengths)
    assert len(TransducerSearch(model)(f, lengths)) == 2
    (tmp_path / "text.txt").write_text("the cat\na dog\nthe cats\n" * 20)
    ilme.adapt(str(exported_streaming[0]), [tmp_path / "text.txt"], tmp_path / "domain")
    assert isinstance(ilme.load_domain(tmp_path / "domain").transcribe(waves(1)[0]).text, str)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"T": "many", "decode_chunk_len": "8"}, "T must be a whole number"),
        ({"T": "13", "decode_chunk_len": "0"}, "decode_chunk_len must be a whole number from 1"),
        ({"T": "4", "decode_chunk_len": "8"}, "reads 4 frames and then goes on by 8"),
        ({}, "no encoder of an icefall transducer"),
    ],
)
def test_metadata_that_cannot_be_used(exported_streaming, tmp_path, said, message):
    shutil.copytree(exported_streaming[0], tmp_path / "bad")
    graph = onnx.load(tmp_path / "bad" / "encoder.onnx")
    del graph.metadata_props[:]
    onnx.helper.set_model_props(graph, said)
    onnx.save(graph, tmp_path / "bad" / "encoder.onnx")
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path / "bad")
