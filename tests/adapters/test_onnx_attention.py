"""Tiny models exported as Optimum merges decoders: equal to `transformers`, searched, their internal LMs checked.

Real files are run where the environment names them: ILME_MOONSHINE is the unpacked `dist` of the maker's package,
ILME_WHISPER_ONNX a folder with config.json, tokenizer.json and onnx/.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

from ilme.adapters import onnx_attention
from ilme.adapters.moonshine import unwritten
from ilme.adapters.moonshine_onnx import build, read_graph
from ilme.adapters.onnx_attention import OnnxAttention
from ilme.adapters.whisper import WhisperOptions, feature_extractor
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm import internal_lm
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.testing.contract import attention_rows, check_attention_model, check_internal_lm, scorer_rows
from tests.adapters.tiny import waves

LABELS = [5, 9, 12, 5, 30]
MOONSHINE, WHISPER = os.environ.get("ILME_MOONSHINE", ""), os.environ.get("ILME_WHISPER_ONNX", "")
MODELS = ("moonshine", "whisper", "whisper without switch")


@pytest.fixture(scope="module")
def models(exported_moonshine, exported_whisper):
    """Each exported model, and the one that it was made of."""
    from tests.adapters.onnx_exports import write_without_switch

    folder, twin = exported_moonshine
    files = folder / "encoder_model.onnx", folder / "decoder_model_merged.onnx"
    suppress = unwritten(twin.tokenizer, 2)
    moonshine = OnnxAttention(*files, twin.tokenizer, prefix=[0], suppress=suppress, max_labels=40)
    folder, open_whisper = exported_whisper
    whisper = OnnxAttention.from_folder(folder, WhisperOptions(language="de"))
    write_without_switch(open_whisper, folder / "plain.onnx")
    parts = {
        "prefix": open_whisper.prefix,
        "suppress": torch.isinf(open_whisper.allowed).nonzero().flatten().tolist(),
        "suppress_first": torch.isinf(open_whisper.allowed_first).nonzero().flatten().tolist(),
        "window": open_whisper.window,
        "extractor": feature_extractor(open_whisper.model.config),
    }
    encoder = folder / "onnx" / "encoder_model.onnx"
    plain = OnnxAttention(encoder, folder / "plain.onnx", open_whisper.tokenizer, **parts)
    return {"moonshine": (moonshine, twin), "whisper": (whisper, open_whisper), MODELS[2]: (plain, open_whisper)}


@pytest.fixture(params=MODELS)
def both(request, models):
    return models[request.param]


def upstream_rows(model, twin, hidden, labels):
    """log P of every label and of the end after given labels, by `transformers`, over encoder states (T, D)."""
    ids = torch.tensor([[*twin.prefix, *labels]])
    heard = twin.model.get_encoder()(twin.features(waves(1))[0])
    heard["last_hidden_state"] = hidden[None]
    logits = twin.model(encoder_outputs=heard, decoder_input_ids=ids).logits[0, len(twin.prefix) - 1 :]
    first = (logits[:1] + model.allowed_first).log_softmax(-1)
    return torch.cat([first, (logits[1:] + model.allowed).log_softmax(-1)])


@torch.no_grad()
def test_logits_equal_transformers(both):
    model, twin = both
    features, lengths = model.features(waves(2))
    rows = attention_rows(model, model.encode(features, lengths), [LABELS] * 2)
    for b, length in enumerate(lengths.tolist()):
        heard = features[b : b + 1] if model.fixed_length else features[b : b + 1, :length]
        hidden = twin.model.get_encoder()(heard).last_hidden_state[0]
        torch.testing.assert_close(rows[b], upstream_rows(model, twin, hidden, LABELS), atol=1e-4, rtol=0)


def test_what_a_loaded_model_says_of_itself_equals_the_open_model(both):
    model, twin = both
    assert (model.kind, model.rate, model.rules, model.device.type) == ("onnx-attention", 16_000, None, "cpu")
    assert model.tokens.pieces == twin.tokens.pieces and model.prefix == twin.prefix
    assert (model.window, model.fixed_length, model.encoder_width) == (twin.window, twin.fixed_length, 16)
    assert torch.equal(model.allowed, twin.allowed) and torch.equal(model.allowed_first, twin.allowed_first)
    ours, theirs = model.features(waves(2)), twin.features(waves(2))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_contract(both):
    model = both[0]
    check_attention_model(model, *model.features(waves(2)), LABELS)


def test_utterances_of_one_length_share_a_run(models):
    model, _ = models["whisper"]
    features, lengths = model.features(waves(3))
    runs = count_runs(model)
    memory = model.encode(features, lengths)
    assert (runs["encoder"], runs["decoder"]) == (1, 1)
    model.step(torch.arange(6), [x.repeat_interleave(2, 0) for x in memory["cache"]], memory)
    assert runs["decoder"] == 2
    model, _ = models["moonshine"]
    runs = count_runs(model)
    model.encode(*model.features(waves(3)))
    assert (runs["encoder"], runs["decoder"]) == (3, 3), "padding would change what Moonshine hears"


def count_runs(model):
    """Counts how often the graphs run from now on."""
    runs = {"encoder": 0, "decoder": 0}
    for name in runs:
        graph = getattr(model, f"_{name}")
        run = type(graph).run.__get__(graph)

        def counted(*given, name=name, run=run):
            runs[name] += 1
            return run(*given)

        graph.run = counted
    return runs


def test_what_does_not_fit_at_once_runs_in_pieces(models, monkeypatch):
    model, _ = models["whisper"]
    memory = model.encode(*model.features(waves(2)))
    sequences = [[a, b, c] for a, b, c in zip(range(10), range(10, 20), range(20, 30), strict=True)]
    whole = attention_rows(model, memory, sequences, per=5)
    memory = model.encode(*model.features(waves(2)))
    numbers = memory["cross"][0][0].numel() * len(memory["cross"]) + len(model.tokens)
    for sequences_at_once in (1, 2, 7):
        monkeypatch.setattr(onnx_attention, "ROOM", 4 * numbers * sequences_at_once)
        monkeypatch.setattr(onnx_attention, "KEPT", 4 * numbers * 3)
        torch.testing.assert_close(attention_rows(model, memory, sequences, per=5), whole, atol=1e-5, rtol=0)


@torch.no_grad()
def test_without_audio_is_the_decoder_over_zeros(both):
    model, twin = both
    memory = model.without_audio()
    rows = attention_rows(model, memory, [LABELS, LABELS[::-1], LABELS], per=3)
    for row, labels in zip(rows, (LABELS, LABELS[::-1], LABELS), strict=True):
        torch.testing.assert_close(row, upstream_rows(model, twin, torch.zeros(9, 16), labels), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["zeroed", "silence", "mean-encoder"])
@torch.no_grad()
def test_internal_lms_keep_the_contract_and_equal_those_of_the_open_model(models, name):
    model, twin = models["moonshine"]
    speech = waves(3)
    scorer = internal_lm(model, name, speech=speech)
    check_internal_lm(scorer, model, *model.features(speech[:2]), LABELS)
    heard = [twin.model.get_encoder()(torch.from_numpy(x)[None]).last_hidden_state[0] for x in speech]
    silence = twin.model.get_encoder()(torch.zeros(1, 48_000)).last_hidden_state[0]
    hidden = {"zeroed": torch.zeros(1, 16), "silence": silence, "mean-encoder": torch.cat(heard).mean(0, keepdim=True)}
    rows = upstream_rows(model, twin, hidden[name], LABELS)
    allowed = torch.isfinite(rows)
    torch.testing.assert_close(scorer_rows(scorer, [LABELS])[0][allowed], rows[allowed], atol=1e-4, rtol=0)


def test_what_is_inside_a_layer_cannot_be_replaced(models):
    model, _ = models["moonshine"]
    assert internal_lm.available(model) == ("zeroed", "silence", "mean-encoder")
    with pytest.raises(BadInputError, match="'learned'; there are zeroed, silence, mean-encoder"):
        internal_lm(model, "learned")


def test_search_finds_what_the_open_model_finds(both):
    model, twin = both
    options, limits = AttentionOptions(beam=3, length_normalisation=1.0, max_length=12), torch.tensor([12, 12])
    found = [
        AttentionSearch(host, Fusion(None, internal_lm(model, "zeroed"), FusionWeights(subtracted=0.3)), options)(
            host.encode(*host.features(waves(2))), limits
        )
        for host in (model, twin)
    ]
    for closed, opened in zip(*found, strict=True):
        assert [h.tokens for h in closed] == [h.tokens for h in opened] and closed
        assert closed[0].score == pytest.approx(opened[0].score, abs=1e-3)
        assert closed[0].scores.subtracted == pytest.approx(opened[0].scores.subtracted, abs=1e-3)


def test_audio_longer_than_the_window_is_refused(models):
    with pytest.raises(BadInputError, match=r"2\.0 s of audio, but the model takes 1 s"):
        models["whisper"][0].features([np.zeros(32_000, np.float32)])


def test_files_that_are_no_encoder_and_merged_decoder(models, exported_moonshine):
    model, _ = models["moonshine"]
    folder, _ = exported_moonshine
    encoder, decoder = folder / "encoder_model.onnx", folder / "decoder_model_merged.onnx"
    with pytest.raises(CheckpointError, match=r"no merged decoder: .* found input_values and 0 of the cache"):
        OnnxAttention(encoder, encoder, model.tokenizer, prefix=[0])
    with pytest.raises(CheckpointError, match="is no encoder: expected the input input_values"):
        OnnxAttention(decoder, decoder, model.tokenizer, prefix=[0])
    (folder / "bad.onnx").write_bytes(b"not onnx")
    with pytest.raises(CheckpointError, match="cannot be read as ONNX"):
        OnnxAttention(folder / "bad.onnx", decoder, model.tokenizer, prefix=[0])
    with pytest.raises(CheckpointError, match="no such file"):
        OnnxAttention(folder / "none.onnx", decoder, model.tokenizer, prefix=[0])
    (folder / "bad.onnx").unlink()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prefix": [40]}, "40 is no id: the model has 40 output units"),
        ({"prefix": [0], "suppress": [-1]}, "-1 is no id"),
        ({"prefix": []}, "must be at least 1"),
        ({"prefix": [0], "max_labels": 0}, "must be at least 1"),
        ({"prefix": [0], "extractor": object()}, "reads input_values: give waveforms"),
        ({"prefix": [0], "threads": 0}, "threads must be at least 1"),
    ],
)
def test_options_that_do_not_fit(models, exported_moonshine, wrong, message):
    folder, _ = exported_moonshine
    files = folder / "encoder_model.onnx", folder / "decoder_model_merged.onnx"
    with pytest.raises(BadInputError, match=message):
        OnnxAttention(*files, models["moonshine"][0].tokenizer, **wrong)


def test_a_decoder_whose_declared_inputs_are_odd_is_refused(exported_moonshine, tmp_path, models):
    import onnx

    folder, _ = exported_moonshine

    def changed(change):
        made = onnx.load(folder / "decoder_model_merged.onnx")
        change({i.name: i for i in made.graph.input})
        onnx.save(made, tmp_path / "decoder.onnx")
        return tmp_path / "decoder.onnx"

    def dims(value):
        return value.type.tensor_type.shape.dim

    def fixed_batch(given):
        dims(given["input_ids"])[0].dim_value = 1

    def free_width(given):
        dims(given["encoder_hidden_states"])[2].dim_param = "width"

    def free_heads(given):
        dims(given["past_key_values.0.decoder.key"])[1].dim_param = "heads"

    wrong = {"made for 1 sequences": fixed_batch, "frames, width": free_width, "heads, labels": free_heads}
    for message, change in wrong.items():
        with pytest.raises(CheckpointError, match=message):
            OnnxAttention(folder / "encoder_model.onnx", changed(change), models["moonshine"][0].tokenizer, prefix=[0])


@pytest.mark.skipif(not MOONSHINE, reason="ILME_MOONSHINE names no unpacked package of the maker")
@torch.inference_mode()
def test_the_real_graph_gives_the_internal_lm_of_its_weights():
    folder = Path(MOONSHINE) / "model" / "tiny" / "float"
    model = OnnxAttention.from_folder(folder)
    check_attention_model(model, *model.features(waves(2)), [300, 301, 29900], tolerance=1e-3)
    scorer = internal_lm(model, "silence")
    check_internal_lm(scorer, model, *model.features(waves(2)), [300, 301, 29900], tolerance=1e-3)
    upstream = build(*map(read_graph, (folder / "encoder_model.onnx", folder / "decoder_model_merged.onnx")))
    silence = torch.zeros(1, 48_000)
    logits = upstream(silence, decoder_input_ids=torch.tensor([[1, 300, 301, 29900]])).logits[0]
    allowed = torch.isfinite(model.allowed)
    rows, expected = scorer_rows(scorer, [[300, 301, 29900]])[0], (logits + model.allowed).log_softmax(-1)
    torch.testing.assert_close(rows[:, allowed], expected[:, allowed], atol=1e-2, rtol=0)


@pytest.mark.skipif(not WHISPER, reason="ILME_WHISPER_ONNX names no folder of an exported Whisper")
def test_a_real_whisper_gives_each_utterance_what_it_gives_it_alone():
    model = OnnxAttention.from_folder(WHISPER)
    labels = model.tokenizer.encode("the middle classes")
    features, lengths = model.features(waves(2, 2.0))
    batched = attention_rows(model, model.encode(features, lengths), [labels] * 2)
    for b in range(2):
        alone = attention_rows(model, model.encode(features[b : b + 1], lengths[b : b + 1]), [labels])
        torch.testing.assert_close(alone[0], batched[b], atol=1e-3, rtol=0)
    assert model.tokenizer.decode(labels) == "the middle classes"
    assert model.window == 30.0 and model.prefix[0] == model.tokens.sos and model.max_labels == 224
