"""A tiny stateless transducer of ours, exported as icefall does: equal to torch, searched, its internal LM checked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

import ilme
from ilme.adapters.onnx_session import recognise
from ilme.adapters.onnx_transducer import BpeTokenizer, OnnxTransducer, PieceTokenizer, read_tokens
from ilme.errors import CheckpointError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.runtime.state import select
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import check_transducer
from tests.adapters.onnx_exports import PIECES
from tests.adapters.tiny import waves


@pytest.fixture
def exported(exported_transducer):
    return exported_transducer


def test_terms_and_logits_equal_torch(exported):
    folder, (encoder, decoder, joiner) = exported
    model = OnnxTransducer.from_folder(folder)
    assert model.context == 2
    torch.manual_seed(1)
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


def test_a_folder_is_adapted_and_transcribes(folder, tmp_path):
    (tmp_path / "text.txt").write_text("the cats\na dog\nthe dogs\n" * 20)
    ilme.adapt(str(folder), [tmp_path / "text.txt"], tmp_path / "domain")
    domain = ilme.load_domain(tmp_path / "domain")
    assert domain.model.kind == "onnx-transducer" and domain.weights.lm > 0
    assert isinstance(domain.transcribe(waves(1)[0]).text, str)


def test_text_and_pieces():
    tokenizer = PieceTokenizer(read_tokens_of(PIECES))
    ids = tokenizer.encode("the cats dog")
    assert tokenizer.decode(ids) == "the cats dog"
    assert 2 in tokenizer.encode("zebra"), "unknown letters become <unk>"


def read_tokens_of(pieces):
    from ilme.tokens import Tokens

    return Tokens(tuple(pieces), blank=0, unk=2)


def test_features_are_those_that_the_encoders_file_asks_for(folder):
    audio = waves(2)
    model = OnnxTransducer.from_folder(folder)
    assert model.rate == 16_000 and model.features(audio)[1].tolist() == [(len(a) + 80) // 160 for a in audio]
    say(folder / "encoder.onnx", snip_edges="1", least_frames="4")
    model = OnnxTransducer.from_folder(folder)
    assert model.features([*audio, audio[0][:9]])[1].tolist() == [*((len(a) - 400) // 160 + 1 for a in audio), 4]
    say(folder / "encoder.onnx", sample_rate="8000", high_freq="3600")
    assert OnnxTransducer.from_folder(folder).rate == 8000
    say(folder / "encoder.onnx", num_mel_bins="40")
    with pytest.raises(CheckpointError, match="reads 80 features a frame; 40 filter banks are made here"):
        OnnxTransducer.from_folder(folder)
    say(folder / "encoder.onnx", sample_rate="many")
    with pytest.raises(CheckpointError, match="sample_rate must be a whole number"):
        OnnxTransducer.from_folder(folder)


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


def test_what_a_loaded_model_says_of_itself(exported):
    model = OnnxTransducer.from_folder(exported[0])
    assert recognise(exported[0]) == "transducer"
    assert (model.kind, model.rate, model.window, model.device.type) == ("onnx-transducer", 16_000, 30.0, "cpu")
    assert model.tokens.pieces == tuple(PIECES) and model.tokenizer.tokens is model.tokens


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of the exported model that a test may change."""
    shutil.copytree(exported[0], tmp_path / "zipformer")
    return tmp_path / "zipformer"


def say(path: Path, **metadata: str) -> None:
    """Writes metadata into an ONNX file."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, path)


def test_context_size_is_read_and_checked(folder):
    say(folder / "decoder.onnx", context_size="2")
    assert OnnxTransducer.from_folder(folder).context == 2
    for wrong in ("-2", "two", "2.0", "", "0", "9999999999999999999", "²"):
        say(folder / "decoder.onnx", context_size=wrong)
        with pytest.raises(CheckpointError, match="context_size must be a whole number from 1 to 64"):
            OnnxTransducer.from_folder(folder)
    say(folder / "decoder.onnx", context_size="3")
    with pytest.raises(CheckpointError, match="says context_size=3, but reads 2 labels"):
        OnnxTransducer.from_folder(folder)


def test_graphs_of_another_form_are_refused(folder):
    shutil.copy(folder / "joiner.onnx", folder / "decoder.onnx")
    with pytest.raises(CheckpointError, match=r"is no decoder .* decode_chunk_len"):
        OnnxTransducer.from_folder(folder)
    shutil.copy(folder / "joiner.onnx", folder / "encoder.onnx")
    with pytest.raises(CheckpointError, match="is no encoder of an icefall transducer"):
        OnnxTransducer.from_folder(folder)


def write_stateful(path: Path, first: int | str = "N", size: int = 3, made: int = 3) -> None:
    """A decoder whose state counts, in `size` numbers, the labels so far; it gives back `made` of them."""
    from ilme.adapters.onnx_writer import Graph

    graph = Graph()
    after = graph.add("Add", "state_0", torch.ones(1))
    counted = graph.add("Expand", graph.add("ReduceMean", after, axes=[1]), [1, 6])
    new = graph.add("Slice", after, [0], [made], [1])
    decoder = graph.finish(
        inputs={"y": ["N", 1], "state_0": [first, size]},
        outputs={"decoder_out": (counted, ["N", 6]), "next_state_0": (new, ["N", made])},
        metadata={},
        whole=("y",),
    )
    path.write_bytes(decoder.SerializeToString())


def test_a_decoder_with_a_state(folder):
    write_stateful(folder / "decoder.onnx")
    model = OnnxTransducer.from_folder(folder)
    assert (model.context, model.width) == (1, 6)
    g, state = model.start(2)
    assert torch.equal(g, torch.ones(2, 6)), "the blank has been read"
    g, state = model.predict(torch.tensor([3, 4]), state)
    swapped = select(state, torch.tensor([1, 0, 1]))
    g, state = model.predict(torch.tensor([3, 4, 5]), swapped)
    assert torch.equal(g, 3 * torch.ones(3, 6))
    check_transducer(model, *model.features(waves(2)), labels=[3, 7])


def test_states_that_a_search_cannot_keep_are_refused(folder):
    write_stateful(folder / "decoder.onnx", first=2)
    with pytest.raises(CheckpointError, match=r"a state \(2, 3\) must be free in the first size"):
        OnnxTransducer.from_folder(folder)
    write_stateful(folder / "decoder.onnx", made=2)
    with pytest.raises(CheckpointError, match=r"reads states of sizes \[\(3,\)\], but gives \[\(2,\)\]"):
        OnnxTransducer.from_folder(folder)
    write_stateful(folder / "decoder.onnx", size=10**7 + 1)
    with pytest.raises(CheckpointError, match=r"numbers in a state .* from 1 to 10000000"):
        OnnxTransducer.from_folder(folder)


def test_symbols_of_lexicons_at_the_end_are_left_away(folder):
    tokens = folder / "tokens.txt"
    tokens.write_text(tokens.read_text(encoding="utf-8") + "#0 10\n#1 11\n", encoding="utf-8")
    assert OnnxTransducer.from_folder(folder).tokens.pieces == tuple(PIECES)


@pytest.mark.parametrize(
    "content", [b"", b"a 0\nb 0\n", "a ²\n".encode(), b"a 99999999999999999999\n", b"a -1\n", b"\xff 0\n", b"a 1\n"]
)
def test_damaged_inventories(tmp_path, content):
    (tmp_path / "tokens.txt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokens.txt(, line|: ids must| is not UTF-8)"):
        read_tokens(tmp_path / "tokens.txt")


LINES = ["the cats and the dogs", "a cat sat on the mat", "dogs dig at the gate", "the gods sing to the sea"]


def train_bpe(path: Path, size: int, lines: list[str] = LINES, **special: object) -> list[str]:
    """A sentencepiece model of a few sentences; its pieces."""
    import sentencepiece

    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=file,
            model_type="bpe",
            vocab_size=size,
            minloglevel=2,
            **special,
        )
    made = sentencepiece.SentencePieceProcessor(str(path))
    return [made.IdToPiece(i) for i in range(made.GetPieceSize())]


ICEFALL = {"user_defined_symbols": ["<blk>", "<sos/eos>"], "unk_id": 2, "bos_id": -1, "eos_id": -1}


def test_the_sentencepiece_model_splits_text_as_in_training(tmp_path):
    import sentencepiece

    pieces = train_bpe(tmp_path / "bpe.model", 40, **ICEFALL)
    assert pieces[:3] == ["<blk>", "<sos/eos>", "<unk>"]
    tokenizer = BpeTokenizer(tmp_path / "bpe.model", read_tokens_of(pieces))
    made = sentencepiece.SentencePieceProcessor(str(tmp_path / "bpe.model"))
    for text in ("the cats sat", "a mating dog", "gods"):
        assert tokenizer.encode(text) == made.EncodeAsIds(text)
        assert tokenizer.decode([0, *tokenizer.encode(text), 0]) == text
    assert 2 in tokenizer.encode("quiz")


def test_a_blank_may_have_another_name_in_the_sentencepiece_model(tmp_path):
    """As in models of `ilme train`: id 0 is <eos> for sentencepiece and the blank for the transducer."""
    pieces = train_bpe(tmp_path / "bpe.model", 40, eos_id=0, eos_piece="<eos>", unk_id=1, bos_id=-1, pad_id=-1)
    (tmp_path / "tokens.txt").write_text(
        "".join(f"{p} {i}\n" for i, p in enumerate(["<b>", *pieces[1:]])), encoding="utf-8"
    )
    tokens = read_tokens(tmp_path / "tokens.txt")
    assert (tokens.blank, tokens.unk) == (0, 1)
    assert BpeTokenizer(tmp_path / "bpe.model", tokens).decode([0, *pieces_of("the dogs", tmp_path)]) == "the dogs"


def pieces_of(text: str, folder: Path) -> list[int]:
    return BpeTokenizer(folder / "bpe.model", read_tokens(folder / "tokens.txt")).encode(text)


def test_a_sentencepiece_model_that_belongs_to_another_inventory(folder, tmp_path):
    pieces = train_bpe(folder / "bpe.model", 40, **ICEFALL)
    with pytest.raises(CheckpointError, match=r"bpe.model has 40 pieces, tokens.txt 10: they do not belong together"):
        OnnxTransducer.from_folder(folder)
    swapped = [*pieces[:5], pieces[6], pieces[5], *pieces[7:]]
    with pytest.raises(CheckpointError, match=r"calls id 5 .*, tokens.txt .*: they do not belong together"):
        BpeTokenizer(folder / "bpe.model", read_tokens_of(swapped))
    (folder / "bpe.model").write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match="is no sentencepiece model"):
        OnnxTransducer.from_folder(folder)


def test_a_folder_with_its_sentencepiece_model_uses_it(folder):
    pieces = train_bpe(folder / "bpe.model", len(PIECES), lines=["ab abab ba", "bab abba ab", "baba ab"], **ICEFALL)
    (folder / "tokens.txt").write_text("".join(f"{p} {i}\n" for i, p in enumerate(pieces)), encoding="utf-8")
    model = OnnxTransducer.from_folder(folder)
    assert isinstance(model.tokenizer, BpeTokenizer) and model.tokenizer.tokens is model.tokens
    assert model.tokenizer.decode(model.tokenizer.encode("abba ab")) == "abba ab"


def test_a_quantised_encoder_hears_every_utterance_alone(folder):
    quantization = pytest.importorskip("onnxruntime.quantization")
    quantization.quantize_dynamic(folder / "encoder.onnx", folder / "encoder.int8.onnx")
    expected = OnnxTransducer.from_folder(folder)
    assert not expected._encoder.scales_by_batch, "float32 comes first"
    (folder / "encoder.onnx").unlink()
    model = OnnxTransducer.from_folder(folder)
    assert model._encoder.scales_by_batch
    features, lengths = model.features(waves(3))
    f, sizes = model.encode(features, lengths)
    for b in range(3):
        alone, size = model.encode(features[b : b + 1, : lengths[b]], lengths[b : b + 1])
        assert size.tolist() == sizes[b : b + 1].tolist()
        assert torch.equal(f[b, : int(size)], alone[0])
    exact, frames = expected.encode(features, lengths)
    assert torch.equal(frames, sizes)
    assert (f[0] - exact[0]).abs().mean() < 0.1


@pytest.mark.skipif("ILME_ONNX_TRANSDUCER" not in os.environ, reason="ILME_ONNX_TRANSDUCER names no exported model")
def test_a_real_export_recognises_something():
    model = OnnxTransducer.from_folder(Path(os.environ["ILME_ONNX_TRANSDUCER"]))
    f, lengths = model.encode(*model.features(waves(1, 2.0)))
    assert TransducerSearch(model, None, TransducerOptions(beam=4))(f, lengths)[0]
