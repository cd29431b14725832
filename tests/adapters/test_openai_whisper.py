"""OpenAI's and whisper.cpp's files, tiny ones, and real weights where the environment names them.

ILME_WHISPER_PT names such a file, with gpt2.tiktoken beside it.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from ilme.adapters.openai_whisper import DIMENSIONS, TiktokenTokenizer, find_ranks, read_pt, rename
from ilme.adapters.whisper_cpp import read_ggml
from ilme.errors import BadInputError, CheckpointError
from ilme.recogniser.domain import load_domain
from ilme.recogniser.loading import load_lm, load_model
from ilme.workflows.adapt import AdaptOptions, adapt
from tests.adapters.tiny import waves

WEIGHTS = os.environ.get("ILME_WHISPER_PT", "")
CORPORA = Path(os.environ.get("ILME_CORPORA", Path(__file__).parents[2] / ".." / "shared" / "data"))
real = pytest.mark.skipif(not WEIGHTS, reason="ILME_WHISPER_PT names no Whisper weights")


@real
@pytest.mark.skipif(not (CORPORA / "librispeech-dev-clean").is_dir(), reason="LibriSpeech is not there")
def test_tiny_en_transcribes_librispeech():
    from ilme.data.audio import load_audio
    from ilme.evaluation.metrics import measure
    from ilme.fusion import FusionWeights
    from ilme.recogniser.recogniser import Recogniser

    folder = CORPORA / "librispeech-dev-clean"
    with (folder / "manifest.jsonl").open() as lines:
        rows = [json.loads(next(lines)) for _ in range(3)]
    recogniser = Recogniser(load_model(WEIGHTS))
    audio = [load_audio(folder / row["audio_filepath"]) for row in rows]
    lists = recogniser.search(recogniser.encode(audio), FusionWeights(), 4)
    texts = {str(i): nbest[0].text for i, nbest in enumerate(lists)}
    found = measure({str(i): row["text"] for i, row in enumerate(rows)}, texts, normaliser_name="spoken")
    assert found.rate < 30


@real
def test_the_prefix_and_the_vocabulary_are_whispers():
    model = load_model(WEIGHTS)
    names = [model.tokens.pieces[i] for i in model.prefix]
    assert names[0] == "<|startoftranscript|>" and names[-1] == "<|notimestamps|>"
    text = "Mr. Quilter's manner, 1850?"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_names_of_parameters():
    assert rename("decoder.blocks.3.cross_attn.query.bias") == "model.decoder.layers.3.encoder_attn.q_proj.bias"
    assert rename("encoder.blocks.0.attn_ln.weight") == "model.encoder.layers.0.self_attn_layer_norm.weight"
    assert rename("encoder.ln_post.bias") == "model.encoder.layer_norm.bias"
    assert rename("decoder.ln.weight") == "model.decoder.layer_norm.weight"
    assert rename("decoder.positional_embedding") == "model.decoder.embed_positions.weight"


def test_openai_weights_round_trip(tmp_path):
    """Tiny weights in OpenAI's names become the same model as in transformers' names."""
    from ilme.adapters.openai_whisper import RENAMES, build

    source, dims, theirs = openai_weights(51864)
    assert all(rename(name) in source.state_dict() for name in theirs) and RENAMES
    path = tmp_path / "tiny.pt"
    torch.save({"dims": dims, "model_state_dict": theirs}, path)
    model = build(*read_pt(path))
    for name, value in source.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    theirs.pop("decoder.ln.weight")
    with pytest.raises(CheckpointError, match="1 parameters are missing"):
        build(dims, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt", ".bin"])
@pytest.mark.parametrize("units", [51864, 51865])
def test_a_file_is_adapted_and_transcribes(ending, units, tmp_path):
    """OpenAI's files and whisper.cpp's, English-only and multilingual, and an LM of the one fits the other."""
    pytest.importorskip("tiktoken")
    _, dims, parameters = openai_weights(units)
    write_pt(tmp_path / "tiny.pt", dims, parameters)
    write_ggml(tmp_path / "tiny.bin", dims, parameters)
    write_ranks(tmp_path, units > 51864)
    (tmp_path / "text.txt").write_text("the dog saw the cat\nthe cat ran\nthe big dog ran out\n" * 10)
    options = AdaptOptions(order=2, prune=(0,), beam=2, style="keep")
    adapt(tmp_path / f"tiny{ending}", [str(tmp_path / "text.txt")], tmp_path / "domain", options=options)
    domain, audio = load_domain(tmp_path / "domain"), waves(1)[0]
    assert domain.weights.lm > 0 and domain.model.vocabulary.multilingual == (units > 51864)
    heard = domain.transcribe(audio).text
    assert heard and heard == load_domain(tmp_path / "domain").transcribe(audio).text
    other = load_model(tmp_path / ("tiny.bin" if ending == ".pt" else "tiny.pt"))
    load_lm(tmp_path / "domain" / "lm.safetensors", other.tokens)


def openai_weights(units):
    """A tiny network of transformers, and OpenAI's dimensions and parameters of it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_mels": 80, "n_vocab": units, "n_audio_ctx": 50, "n_text_ctx": 32}
    dims = sizes | {f"n_{part}_{what}": n for part in ("audio", "text") for what, n in SHAPE.items()}
    config = transformers.WhisperConfig(
        vocab_size=units,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50,
        max_target_positions=32,
    )
    torch.manual_seed(0)
    source = transformers.WhisperForConditionalGeneration(config)
    return source, dims, {openai_name(n): p for n, p in source.state_dict().items() if n != "proj_out.weight"}


def write_pt(path, dims, parameters):
    torch.save({"dims": dims, "model_state_dict": parameters}, path)


def write_ggml(path, dims, parameters):
    """As whisper.cpp's converter does, without mel filters and vocabulary, which are not read."""
    content = struct.pack("<i", 0x67676D6C) + np.array([*(dims[n] for n in DIMENSIONS), 0, 0, 0, 0], "<i4").tobytes()
    for name, value in parameters.items():
        value = value[:, None] if name.endswith(("conv1.bias", "conv2.bias")) else value
        head = np.array([value.ndim, len(name), 0, *reversed(value.shape)], "<i4")
        content += head.tobytes() + name.encode() + value.numpy().astype("<f4").tobytes()
    path.write_bytes(content)


def write_ranks(folder, multilingual):
    """Bytes, and pairs of them: as many as OpenAI's pieces; the multilingual file ends in a piece of no text."""
    pieces = [bytes([i]) for i in range(256)] + [bytes(pair) for pair in product(range(256), repeat=2)]
    lines = [f"{base64.b64encode(piece).decode()} {i}\n" for i, piece in enumerate(pieces[:50256])]
    name = "multilingual.tiktoken" if multilingual else "gpt2.tiktoken"
    (folder / name).write_text("".join(lines) + ("= 50256\n" if multilingual else ""))


SHAPE = {"state": 16, "head": 2, "layer": 2}


def openai_name(name: str) -> str:
    pairs = """model.: .layers.:.blocks. .encoder_attn_layer_norm.:.cross_attn_ln. .self_attn_layer_norm.:.attn_ln.
    .final_layer_norm.:.mlp_ln. .encoder_attn.:.cross_attn. .self_attn.:.attn. .q_proj.:.query. .k_proj.:.key.
    .v_proj.:.value. .out_proj.:.out. .fc1.:.mlp.0. .fc2.:.mlp.2. encoder.layer_norm.:encoder.ln_post.
    decoder.layer_norm.:decoder.ln. .embed_tokens.:.token_embedding. .embed_positions.weight:.positional_embedding"""
    for old, new in (pair.split(":") for pair in pairs.split()):
        name = name.replace(old, new)
    return name


def test_bad_files(tmp_path):
    (tmp_path / "broken.pt").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_model(str(tmp_path / "broken.pt"))
    torch.save({"something": 1}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="model_state_dict"):
        load_model(str(tmp_path / "other.pt"))
    with pytest.raises(CheckpointError, match="no such file"):
        load_model(str(tmp_path / "absent.pt"))
    (tmp_path / "model.bin").write_bytes(b"GGUFxxxx")
    with pytest.raises(CheckpointError, match=r"no whisper\.cpp model"):
        read_ggml(tmp_path / "model.bin")
    (tmp_path / "short.bin").write_bytes(b"lmgg\x01")
    with pytest.raises(CheckpointError, match="cut off"):
        read_ggml(tmp_path / "short.bin")


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "touched"),))

    torch.save({"dims": Evil(), "model_state_dict": {}}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_model(str(tmp_path / "evil.pt"))
    assert not (tmp_path / "touched").exists()


def test_ranks_are_looked_for(tmp_path):
    with pytest.raises(BadInputError, match=r"gpt2\.tiktoken was not found"):
        find_ranks(False, beside=tmp_path / "tiny.pt")
    (tmp_path / "gpt2.tiktoken").write_text("IQ== 0\nbad line here\n")
    assert find_ranks(False, beside=tmp_path / "tiny.pt") == tmp_path / "gpt2.tiktoken"
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "linked.pt"
    link.symlink_to(tmp_path / "tiny.pt")
    assert find_ranks(False, beside=link) == (tmp_path / "gpt2.tiktoken").resolve()
    pytest.importorskip("tiktoken")
    with pytest.raises(CheckpointError, match="line 2"):
        TiktokenTokenizer(tmp_path / "gpt2.tiktoken", 51864)
