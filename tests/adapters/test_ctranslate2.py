"""Whisper in a folder of CTranslate2: the same numbers as in OpenAI's names, quantised ones to half a step."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import ilme
from ilme.adapters.ctranslate2 import is_ctranslate2, read_ctranslate2, read_tokenizer
from ilme.adapters.openai_whisper import read_pt
from ilme.errors import BadInputError, CheckpointError
from ilme.recogniser.loading import load_model
from ilme.workflows.adapt import AdaptOptions

WIDTH, LAYERS, FRAMES, LABELS, MELS, UNITS = 8, 2, 50, 12, 80, 51864
TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
Variables = dict[str, np.ndarray]


def variables() -> Variables:
    """What CTranslate2 writes of a tiny Whisper, with weights of its own for every place."""
    draw = np.random.default_rng(5)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    found: Variables = {
        "decoder/activation": np.int8(3),
        "decoder/alibi": np.int8(0),
        "decoder/alignment_heads": normal(2, 2).astype(np.int32),
        "decoder/embeddings/weight": normal(UNITS, WIDTH),
        "decoder/num_heads": np.int16(2),
        "decoder/position_encodings/encodings": normal(LABELS, WIDTH),
        "decoder/pre_norm": np.int8(1),
        "decoder/scale_embeddings": np.int8(0),
        "encoder/conv1/bias": normal(WIDTH),
        "encoder/conv1/weight": normal(WIDTH, MELS, 3),
        "encoder/conv2/bias": normal(WIDTH),
        "encoder/conv2/weight": normal(WIDTH, WIDTH, 3),
        "encoder/num_heads": np.int16(2),
        "encoder/position_encodings/encodings": normal(FRAMES, WIDTH),
    }
    rows = {"self_attention/linear_0": 3, "self_attention/linear_1": 1, "ffn/linear_0": 4}
    cross = {"attention/linear_0": 1, "attention/linear_1": 2, "attention/linear_2": 1}
    for part in ("encoder", "decoder"):
        for norm in [f"{part}/layer_norm"] + [
            f"{part}/layer_{i}/{what}/layer_norm"
            for i in range(LAYERS)
            for what in ("self_attention", "ffn", *(["attention"] if part == "decoder" else []))
        ]:
            found[f"{norm}/gamma"], found[f"{norm}/beta"] = normal(WIDTH), normal(WIDTH)
        for i in range(LAYERS):
            for name, times in (rows | (cross if part == "decoder" else {})).items():
                found[f"{part}/layer_{i}/{name}/weight"] = normal(times * WIDTH, WIDTH)
                found[f"{part}/layer_{i}/{name}/bias"] = normal(times * WIDTH)
            found[f"{part}/layer_{i}/ffn/linear_1/weight"] = normal(WIDTH, 4 * WIDTH)
            found[f"{part}/layer_{i}/ffn/linear_1/bias"] = normal(WIDTH)
            found[f"{part}/layer_{i}/self_attention/linear_0/bias"][WIDTH : 2 * WIDTH] = 0  # keys have no bias
    for i in range(LAYERS):
        found[f"decoder/layer_{i}/attention/linear_1/bias"][:WIDTH] = 0
    return found


def write(
    folder: Path,
    found: Variables,
    version: int = 6,
    network: str = "WhisperSpec",
    aliases: tuple[tuple[str, str], ...] = (("decoder/projection/weight", "decoder/embeddings/weight"),),
) -> Path:
    """As CTranslate2 writes model.bin."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    parts = [struct.pack("<I", version), text(network), struct.pack("<II", 3, len(found))]
    for name, value in found.items():
        value = np.asarray(value)
        head = struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
        parts += [text(name), head, struct.pack("<BI", TYPES[value.dtype.name], value.nbytes), value.tobytes()]
    parts += [struct.pack("<I", len(aliases)), *(text(a) + text(b) for a, b in aliases)]
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(b"".join(parts))
    return folder


def quantised(found: Variables, kind: str) -> Variables:
    """Weights as the converter quantises them: int8 with a scale for each row, int16 with one for the whole."""
    made: Variables = {}
    for name, value in found.items():
        if not name.endswith("/weight"):
            made[name] = value
        elif kind == "int8":
            scale = 127 / np.abs(value.reshape(len(value), -1)).max(1)
            steps = value * scale.reshape(-1, *[1] * (value.ndim - 1))
            made[name], made[f"{name}_scale"] = np.rint(steps).astype(np.int8), scale.astype(np.float32)
        else:
            scale = np.float32(2**10 / np.abs(value).max())
            made[name], made[f"{name}_scale"] = np.rint(value * scale).astype(np.int16), scale
    return made


def test_every_weight_has_its_place(tmp_path: Path) -> None:
    found = variables()
    dims, parameters = read_ctranslate2(write(tmp_path / "a", found))
    assert dims["n_vocab"] == UNITS and dims["n_audio_ctx"] == FRAMES and dims["n_text_ctx"] == LABELS
    assert (dims["n_mels"], dims["n_audio_layer"], dims["n_text_layer"], dims["n_text_head"]) == (MELS, 2, 2, 2)
    joined = torch.from_numpy(found["decoder/layer_1/self_attention/linear_0/weight"])
    roles = [parameters[f"decoder.blocks.1.attn.{role}.weight"] for role in ("query", "key", "value")]
    assert torch.equal(torch.cat(roles), joined)
    both = torch.from_numpy(found["decoder/layer_0/attention/linear_1/bias"])
    assert torch.equal(parameters["decoder.blocks.0.cross_attn.value.bias"], both[WIDTH:])
    assert "decoder.blocks.0.cross_attn.key.bias" not in parameters
    norm = torch.from_numpy(found["encoder/layer_norm/gamma"])
    assert torch.equal(parameters["encoder.ln_post.weight"], norm)


@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_quantised_weights_are_within_half_a_step(kind: str, tmp_path: Path) -> None:
    found = variables()
    exact = read_ctranslate2(write(tmp_path / "a", found))[1]
    near = read_ctranslate2(write(tmp_path / "b", quantised(found, kind)))[1]
    name = "encoder.blocks.0.mlp.0.weight"
    step = exact[name].abs().amax(1, keepdim=True) / 127 if kind == "int8" else exact[name].abs().max() / 2**10
    assert ((near[name] - exact[name]).abs() <= 0.5001 * step).all()
    assert not torch.equal(near[name], exact[name])
    assert set(near) == set(exact) and torch.equal(near["decoder.ln.bias"], exact["decoder.ln.bias"])
    assert all(value.dtype == torch.float32 for value in near.values())


@pytest.mark.slow
def test_a_folder_becomes_a_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = write(tmp_path / "model", variables())
    assert is_ctranslate2(folder) and not is_ctranslate2(tmp_path)
    with pytest.raises(BadInputError, match=r"gpt2\.tiktoken was not found"):
        load_model(folder)
    from ilme.adapters.openai_whisper import special_names

    names = [*(f"w{i}" for i in range(UNITS - 1608)), *special_names(99)]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens([name for name in names if name.startswith("<|")])
    words.save(str(folder / "tokenizer.json"))
    model = load_model(folder)
    assert model.kind == "whisper" and len(model.tokens) == UNITS and model.window == FRAMES * 2 / 100
    assert read_tokenizer(folder, UNITS).encode("w3 w7") == [3, 7]
    features, lengths = model.features([np.zeros(3200, np.float32)])
    rows, _ = model.start(model.encode(features, lengths))
    assert rows.shape == (1, UNITS) and bool(rows.exp().sum().isclose(torch.tensor(1.0), atol=1e-4))
    (tmp_path / "text.txt").write_text("w5 w6 w7\nw9 w8\n" * 30)
    options = AdaptOptions(order=2, prune=(0,), beam=2, style="keep")
    ilme.adapt(str(folder), [tmp_path / "text.txt"], tmp_path / "domain", options=options)
    assert isinstance(ilme.load_domain(tmp_path / "domain").transcribe(np.zeros(3200, np.float32)).text, str)


def damaged() -> dict[str, tuple[Variables, dict, str]]:
    found = variables()
    without = {k: v for k, v in found.items() if k != "encoder/num_heads"}
    unscaled = {k: v for k, v in quantised(found, "int8").items() if not k.endswith("_scale")}
    scaled = quantised(found, "int8")
    scaled["encoder/conv1/weight_scale"] = scaled["encoder/conv1/weight_scale"] * 0
    biased = {k: v.copy() for k, v in found.items()}
    biased["decoder/layer_0/self_attention/linear_0/bias"] += 1
    nan = {k: v.copy() for k, v in found.items()}
    nan["decoder/layer_norm/gamma"][0] = np.nan
    return {
        "old": (found, {"version": 3}, "version 3 of CTranslate2"),
        "other": (found, {"network": "TransformerSpec"}, "'TransformerSpec'"),
        "heads": (without, {}, "encoder/num_heads"),
        "scale": (unscaled, {}, "scale is missing"),
        "zero": (scaled, {}, "scale that is not positive"),
        "keys": (biased, {}, "key.bias is not zero"),
        "norm": (found | {"decoder/pre_norm": np.int8(0)}, {}, "decoder/pre_norm is 0"),
        "nan": (nan, {}, "NaN or infinite"),
        "alias": (found, {"aliases": (("a", "nothing"),)}, "'a' is to be 'nothing'"),
        "rows": (found | {"decoder/layer_0/self_attention/linear_0/weight": np.ones((7, 8), np.float32)}, {}, "7 rows"),
        "shape": (found | {"encoder/conv1/weight": np.ones((8, 80), np.float32)}, {}, "number of dimensions"),
    }


@pytest.mark.parametrize("case", list(damaged()))
def test_what_cannot_be_read_is_named(case: str, tmp_path: Path) -> None:
    found, how, message = damaged()[case]
    with pytest.raises(CheckpointError, match=message):
        read_ctranslate2(write(tmp_path / "bad", found, **how))


def test_a_file_that_is_cut_or_too_long(tmp_path: Path) -> None:
    file = write(tmp_path / "bad", variables()) / "model.bin"
    whole = file.read_bytes()
    for size in (3, 10, 40, 1000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="cut off or damaged"):
            read_ctranslate2(tmp_path / "bad")
    file.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match="1 bytes follow its end"):
        read_ctranslate2(tmp_path / "bad")
    start = whole.index(b"decoder/activation\0") + 19
    for head, message in ((b"\xff", "255 dimensions"), (b"\0\x09\1\0\0\0", "type 9"), (b"\0\1\2\0\0\0", "has 2 bytes")):
        file.write_bytes(whole[:start] + head + whole[start + len(head) :])
        with pytest.raises(CheckpointError, match=message):
            read_ctranslate2(tmp_path / "bad")


@pytest.mark.skipif(
    not {"ILME_WHISPER_PT", "ILME_WHISPER_CT2"} <= set(os.environ),
    reason="ILME_WHISPER_PT and ILME_WHISPER_CT2 do not name the same Whisper in both formats",
)
def test_real_weights_are_those_of_openai() -> None:
    dims, ours = read_ctranslate2(Path(os.environ["ILME_WHISPER_CT2"]))
    wanted, theirs = read_pt(Path(os.environ["ILME_WHISPER_PT"]))
    assert dims == wanted and set(ours) == set(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value.float(), atol=1e-3, rtol=1e-3)
