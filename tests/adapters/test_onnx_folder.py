"""Folders of ONNX attention models: what is read, which graphs are taken, and what is refused with which words."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

import ilme
from ilme.adapters.moonshine import MoonshineOptions
from ilme.adapters.onnx_attention import OnnxAttention, moonshine
from ilme.adapters.onnx_session import recognise
from ilme.adapters.whisper import WhisperOptions
from ilme.errors import BadInputError, CheckpointError
from ilme.testing.contract import attention_rows
from ilme.workflows.adapt import AdaptOptions
from tests.adapters.test_moonshine_onnx import write_bundle
from tests.adapters.tiny import waves

LABELS = [5, 9, 12]


@pytest.fixture
def folder(exported_whisper, tmp_path):
    """A copy of the exported Whisper that a test may change."""
    shutil.copytree(exported_whisper[0], tmp_path / "whisper")
    return tmp_path / "whisper"


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rows(model):
    return attention_rows(model, model.encode(*model.features(waves(2))), [LABELS] * 2)


def test_language_task_and_prompt_of_whisper(exported_whisper):
    folder, twin = exported_whisper
    assert recognise(folder) == "attention"
    ids = twin.tokenizer.ids
    model = OnnxAttention.from_folder(folder)
    assert model.prefix == tuple(
        ids[n] for n in ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
    )
    assert model.tokenizer.encode("w3 w7") == [3, 7] and model.tokenizer.decode([3, 7, ids["<|endoftext|>"]]) == "w3 w7"
    model = OnnxAttention.from_folder(folder, {"language": "de", "task": "translate", "prompt": "w1 w2"})
    assert model.prefix[:3] == (ids["<|startofprev|>"], 1, 2)
    assert model.prefix[4:6] == (ids["<|de|>"], ids["<|translate|>"])
    assert model.max_labels == min(32, 64 - 7) and torch.isinf(model.allowed_first[twin.tokens.eos])
    assert not torch.isinf(model.allowed[twin.tokens.eos])


def test_a_folder_is_adapted_and_transcribes(folder, tmp_path):
    (tmp_path / "text.txt").write_text("w5 w6 w7\nw9 w8\n" * 30)
    options = AdaptOptions(order=2, prune=(0,), beam=3, style="keep")
    ilme.adapt(str(folder), [tmp_path / "text.txt"], tmp_path / "domain", options=options)
    domain = ilme.load_domain(tmp_path / "domain")
    assert domain.model.kind == "onnx-attention" and domain.weights.lm > 0
    assert isinstance(domain.transcribe(waves(1)[0]).text, str)


def test_graphs_may_stand_in_the_folder_itself(folder, exported_whisper):
    expected = rows(OnnxAttention.from_folder(exported_whisper[0]))
    for file in (folder / "onnx").iterdir():
        file.rename(folder / file.name)
    torch.testing.assert_close(rows(OnnxAttention.from_folder(folder)), expected)


def test_quantised_graphs_hear_every_utterance_alone(folder):
    quantization = pytest.importorskip("onnxruntime.quantization")
    expected = rows(OnnxAttention.from_folder(folder))
    for file in sorted((folder / "onnx").glob("*_me*.onnx")) + sorted((folder / "onnx").glob("encoder*.onnx")):
        small = file.with_name(f"{file.stem}_quantized.onnx")
        quantization.quantize_dynamic(file, small, extra_options={"EnableSubgraph": True})
        file.unlink()
    model = OnnxAttention.from_folder(folder)
    assert model._encoder.scales_by_batch and model._decoder.scales_by_batch
    batched = rows(model)
    features, lengths = model.features(waves(2))
    for b in range(2):
        alone = attention_rows(model, model.encode(features[b : b + 1], lengths[b : b + 1]), [LABELS])
        torch.testing.assert_close(alone[0], batched[b], atol=1e-5, rtol=0)
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(batched), finite)
    assert (batched - expected)[finite].abs().mean() < 0.2, "rounded, but the same network"


def test_moonshine_from_the_package_of_its_maker(exported_moonshine, tmp_path):
    """dist/moonshine.min.js and dist/model/tiny/float/*.onnx; the tiny model has fewer units than the bundle."""
    place = tmp_path / "dist" / "model" / "tiny" / "float"
    shutil.copytree(exported_moonshine[0], place)
    assert recognise(place) == "attention"
    write_bundle(tmp_path / "dist" / "moonshine.min.js")
    with pytest.raises(CheckpointError, match=r"moonshine.min.js has \d+ pieces, the model only 40 output units"):
        OnnxAttention.from_folder(place)
    pieces = ["<unk>", "<s>", "</s>", *(f"▁{'long' * 8}{i}" for i in range(37))]
    write_bundle(tmp_path / "dist" / "moonshine.min.js", pieces, merges=[(3, 4)] * 200)
    files = place / "encoder_model.onnx", place / "decoder_model_merged.onnx"
    models = (
        OnnxAttention.from_folder(place, MoonshineOptions(max_labels=7)),
        moonshine(*files, tmp_path / "dist" / "moonshine.min.js"),
    )
    assert models[0].prefix == models[1].prefix == (1,) and [m.max_labels for m in models] == [7, 194]
    torch.testing.assert_close(rows(models[0]), rows(models[1]))


def test_moonshine_with_config_and_tokenizer(exported_moonshine, tmp_path):
    import tokenizers

    folder, twin = exported_moonshine
    shutil.copytree(folder, tmp_path / "moonshine")
    folder = tmp_path / "moonshine"
    twin.model.config.to_json_file(folder / "config.json")
    words = {piece: i for i, piece in enumerate(twin.tokens.pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    model = OnnxAttention.from_folder(folder)
    assert model.prefix == twin.prefix and torch.equal(model.allowed, twin.allowed)
    ours, theirs = rows(model), rows(twin)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    change(folder / "config.json", decoder_start_token_id=None)
    (folder / "generation_config.json").write_text('{"decoder_start_token_id": 0}')
    assert OnnxAttention.from_folder(folder).prefix == (0,)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"model_type": "wav2vec2"}, "a model of type 'wav2vec2'; in ONNX, whisper and moonshine"),
        ("config.json", {"model_type": ["whisper"]}, "a model of type"),
        ("config.json", {"vocab_size": "51865"}, "vocab_size must be a whole number .* found '51865'"),
        ("config.json", {"vocab_size": 10**12}, "vocab_size must be a whole number"),
        ("config.json", {"vocab_size": 98}, "has 99 outputs, the tokenizer 98 tokens"),
        ("config.json", {"eos_token_id": [40]}, "eos_token_id must be a whole number"),
        ("config.json", {"decoder_start_token_id": 100}, "decoder_start_token_id must be a whole number from 0 to 98"),
        ("config.json", {"max_target_positions": True}, "max_target_positions must be a whole number"),
        ("config.json", {"max_source_positions": 10**9}, "max_source_positions must be a whole number"),
        ("config.json", {"num_mel_bins": -80}, "num_mel_bins must be a whole number"),
        ("config.json", {"num_mel_bins": 128}, "feature_size is 80; a Whisper of this config.json takes 128"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate is 8000; .* takes 16000"),
    ],
)
def test_numbers_are_checked_before_they_are_used(folder, file, values, message):
    change(folder / file, **values)
    with pytest.raises(CheckpointError, match=message):
        OnnxAttention.from_folder(folder)


def test_mel_bands_that_the_encoder_does_not_read(folder):
    (folder / "preprocessor_config.json").unlink()
    change(folder / "config.json", num_mel_bins=128)
    with pytest.raises(CheckpointError, match="reads 80 mel bands, the feature extractor makes 128"):
        OnnxAttention.from_folder(folder)


def test_options_of_another_model(folder):
    with pytest.raises(BadInputError, match="takes WhisperOptions, not MoonshineOptions"):
        OnnxAttention.from_folder(folder, MoonshineOptions())
    with pytest.raises(BadInputError, match=r"takes WhisperOptions: .*unexpected keyword argument 'max_labels'"):
        OnnxAttention.from_folder(folder, {"max_labels": 3})
    with pytest.raises(BadInputError, match="no language 'fr'"):
        OnnxAttention.from_folder(folder, WhisperOptions(language="fr"))
    with pytest.raises(BadInputError, match="tells no language here; name it, such as language=de"):
        OnnxAttention.from_folder(folder, {"language": "auto"})
    with pytest.raises(BadInputError, match="no time stamps here; use the model's safetensors"):
        OnnxAttention.from_folder(folder, WhisperOptions(timestamps=True))


def test_damaged_and_missing_files(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"has no encoder_model\*.onnx and decoder_model_merged\*.onnx"):
        OnnxAttention.from_folder(tmp_path / "none")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer.json is no tokenizer"):
        OnnxAttention.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer.json: no such file"):
        OnnxAttention.from_folder(folder)
    for content in (b"{", b"\xff\xfe", b"[1]"):
        (folder / "config.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"config.json (is not JSON|must hold a JSON object)"):
            OnnxAttention.from_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json: no such file"):
        OnnxAttention.from_folder(folder)
