"""Real Whisper weights, where the environment names them: ILME_WHISPER_PT, with gpt2.tiktoken beside the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from ilme.adapters.openai_whisper import TiktokenTokenizer, find_ranks, read_pt, rename
from ilme.adapters.whisper_cpp import read_ggml
from ilme.errors import BadInputError, CheckpointError
from ilme.recogniser.loading import load_model

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
    transformers = pytest.importorskip("transformers")
    from ilme.adapters.openai_whisper import RENAMES, build

    sizes = {"n_mels": 80, "n_vocab": 51864, "n_audio_ctx": 50, "n_text_ctx": 32}
    dims = sizes | {f"n_{part}_{what}": n for part in ("audio", "text") for what, n in SHAPE.items()}
    config = transformers.WhisperConfig(
        vocab_size=51864,
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
    source = transformers.WhisperForConditionalGeneration(config)
    theirs = {openai_name(n): p for n, p in source.state_dict().items() if n != "proj_out.weight"}
    assert all(rename(name) in source.state_dict() for name in theirs) and RENAMES
    path = tmp_path / "tiny.pt"
    torch.save({"dims": dims, "model_state_dict": theirs}, path)
    model = build(*read_pt(path))
    for name, value in source.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    theirs.pop("decoder.ln.weight")
    with pytest.raises(CheckpointError, match="1 parameters are missing"):
        build(dims, theirs)


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
