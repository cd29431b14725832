"""From a name to a model, an LM, a recogniser: what each name is taken for, and what is said of names that are none."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ilme
from ilme.errors import BadInputError, CheckpointError, VocabularyMismatchError
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.ilm.files import save_internal_lm
from ilme.lm.ngram import NGramScorer, build_automaton, lm_tokens
from ilme.lm.ngram_train import NGramOptions, train_ngram
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.protocols import AttentionDecoder, Transducer
from ilme.recogniser.loading import (
    FORMATS,
    METHODS,
    Parts,
    describe,
    find_tokenizer,
    is_causal,
    is_checkpoint,
    load_lm,
    load_model,
    load_recogniser,
    load_subtracted,
    parts_for,
)
from ilme.recogniser.options import SearchSettings, default_options
from ilme.search.transducer import TransducerOptions
from ilme.testing import tiny
from tests.checkpoints import TEXTS, noise, write_checkpoints
from tests.recogniser.job import PieceTokenizer

BUNDLED, CHECKPOINT, WHISPER_FILE, CTRANSLATE2, ONNX_TRANSDUCER, ONNX_ATTENTION, HUB = FORMATS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("loading"))


def found(name: str | Path):
    """The first format that matches, as `load_model` takes it."""
    return next((f for f in FORMATS if f.matches(str(name))), None)


# --- what a name is taken for -----------------------------------------------------------------------------------------


def test_every_format_is_recognised(folder, tmp_path, monkeypatch):
    assert found("bundled/rnnt") is BUNDLED
    assert found(folder / "rnnt") is CHECKPOINT and found(folder / "rnnt" / "model.safetensors") is CHECKPOINT
    for name in ("tiny.pt", "ggml-tiny.bin", str(tmp_path / "not-there.pt")):
        assert found(name) is WHISPER_FILE
    for kind, files in {
        ONNX_TRANSDUCER: ["encoder-epoch-1.onnx", "decoder-epoch-1.onnx", "joiner-epoch-1.onnx"],
        ONNX_ATTENTION: ["onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "config.json"],
        HUB: ["config.json", "model.safetensors.index.json", "pytorch_model.bin"],
    }.items():
        made = tmp_path / f"{FORMATS.index(kind)}"
        for name in files:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text("{}")
        assert found(made) is kind
    (tmp_path / "ct2").mkdir()
    (tmp_path / "ct2" / "model.bin").write_bytes(b"\6\0\0\0\x0c\0WhisperSpec\0")
    assert found(tmp_path / "ct2") is CTRANSLATE2
    monkeypatch.chdir(tmp_path)
    assert found("openai/whisper-tiny.en") is HUB and found("whisper") is HUB
    Path("whisper").mkdir()
    Path("whisper/tiny.pt").mkdir()  # a folder is no file of weights, whatever it is called
    assert found("whisper/tiny.pt") is HUB


def test_weights_of_others_are_not_taken_for_ours(folder, tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert not is_checkpoint(tmp_path) and not is_checkpoint(tmp_path / "model.safetensors")
    whole = (folder / "rnnt" / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:100])
    assert is_checkpoint(tmp_path / "cut.safetensors"), "damaged: its reader says how"
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load_model(tmp_path / "cut.safetensors")


@pytest.mark.parametrize(("name", "kind"), [("rnnt", "rnnt"), ("aed", "aed")])
def test_bundled_models_load_and_hear(name, kind):
    model = ilme.load_model(f"bundled/{name}")
    assert model.kind == kind and not model.training and model.rate == 16_000
    assert isinstance(ilme.Recogniser(model).transcribe(noise(0.3)).text, str)
    assert ilme.load_lm("bundled/lm", model).tokens.eos is not None


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_a_checkpoint_is_a_model_ready_to_hear(folder, kind):
    model = load_model(folder / kind)
    protocol = Transducer if kind == "rnnt" else AttentionDecoder
    members = [m for m in vars(protocol) if not m.startswith("_") and callable(getattr(protocol, m))]
    assert members and all(hasattr(model, m) for m in members)
    assert model.tokenizer.decode(model.tokenizer.encode("the sea")) == "the sea"
    file = load_model(str(folder / kind / "model.safetensors"), dtype=torch.float64)
    assert next(file.parameters()).dtype == torch.float64


def test_an_exported_folder_is_a_model(folder, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from ilme.workflows.export import export_onnx

    export_onnx(load_model(folder / "rnnt"), tmp_path / "onnx")
    model = load_model(tmp_path / "onnx")
    assert model.kind == "onnx-transducer" and model.tokens.pieces[1:] == load_model(folder / "rnnt").tokens.pieces[1:]
    with pytest.raises(BadInputError, match="takes no language"):
        load_model(tmp_path / "onnx", language="de")


# --- names that are none ----------------------------------------------------------------------------------------------


def test_wrong_names_are_explained(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    save_file({"x": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    for name, error, message in [
        (tmp_path / "notes.txt", CheckpointError, "is no model: expected bundled/rnnt or bundled/aed; a checkpoint of"),
        (tmp_path / "absent" / "model.safetensors", CheckpointError, "is not there: expected"),
        (tmp_path / "empty", CheckpointError, r"has no config\.json"),
        (tmp_path / "foreign.safetensors", CheckpointError, "is no model: expected"),
        ("bundled/whisper", CheckpointError, "no bundled/whisper; bundled are .*bundled/aed.*bundled/rnnt"),
        ("bundled/lm", BadInputError, "is a language model; a recogniser"),
        (folder / "lm", BadInputError, "is a language model; a recogniser"),
    ]:
        with pytest.raises(error, match=message):
            load_model(name)
    with pytest.raises(BadInputError, match="takes no language, prompt: those are options of Whisper"):
        load_model(folder / "rnnt", language="de", prompt="x")


def test_a_network_without_tokenizer_or_frontend_says_what_it_lacks(tmp_path):
    save_model(tmp_path, tiny("rnnt"))
    recogniser = ilme.Recogniser(load_model(tmp_path), tokenizer=PieceTokenizer(tiny("rnnt").tokens))
    with pytest.raises(BadInputError, match="has no frontend; save it with one"):
        recogniser.transcribe(noise(0.3))
    with pytest.raises(BadInputError, match="has no tokenizer; save it with one"):
        ilme.Recogniser(load_model(tmp_path))


# --- language models --------------------------------------------------------------------------------------------------


def test_lms_of_every_kind(folder, tmp_path):
    model = load_model(folder / "rnnt")
    assert load_lm(folder / "lm", model).tokens.pieces[1:] == model.tokens.pieces[1:]
    assert load_lm(folder / "lm", model.tokens).device == torch.device("cpu")
    tokens = lm_tokens(model.tokens)
    ids = torch.tensor([i for _ in range(9) for i in (*model.tokenizer.encode("the sea was calm"), tokens.eos)])
    arpa = train_ngram(ids.numpy(), tokens, NGramOptions(2, (0,))).arpa
    scorer = NGramScorer(build_automaton(arpa), tokens, arpa.missing, arpa.unknown)
    scorer.save(tmp_path / "ngram.safetensors")
    loaded = load_lm(tmp_path / "ngram.safetensors", model)
    torch.testing.assert_close(loaded.start(1)[0], scorer.start(1)[0])


def test_a_causal_lm_of_another_tokenizer_is_heard_at_word_ends(folder, tmp_path):
    """The search's LM score of each hypothesis is the LM's own score of its text."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    from ilme.lm.delayed import DelayedLM
    from ilme.lm.hf import TextScorer

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=280, special_tokens=["<end>"], initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=16, n_layer=1, n_head=2, initializer_range=0.4
    )
    network = transformers.GPT2LMHeadModel(config)
    for part in (network, tokenizer):
        part.save_pretrained(tmp_path / "gpt")
    scorer = TextScorer(network, tokenizer)
    for kind in ("rnnt", "aed"):
        model = load_model(folder / kind)
        lm = load_lm(tmp_path / "gpt", model)
        assert isinstance(lm, DelayedLM)
        options = replace(default_options(model, 4), lm_eos=False)
        recogniser = ilme.Recogniser(model, lm=lm, weights=FusionWeights(lm=0.5), options=options)
        assert recogniser.ends["lm"] and not recogniser.ends["subtracted"], "the last word is paid for at the end"
        (nbest,) = recogniser.nbest([noise(0.6)])
        assert nbest and any(h.text for h in nbest)
        texts = [model.tokenizer.decode(list(h.tokens)) for h in nbest]
        assert [h.scores.lm for h in nbest] == pytest.approx(scorer(texts), abs=1e-2)


def test_names_of_causal_lms(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "lm.gguf").write_bytes(b"GGUF")
    (tmp_path / "lm.arpa").write_text("")
    assert (
        is_causal(tmp_path) and is_causal(tmp_path / "lm.gguf") and is_causal("gpt2") and is_causal("Qwen/Qwen2.5-0.5B")
    )
    assert not any(map(is_causal, (tmp_path / "lm.arpa", "lm.arpa", "nothing.safetensors", "/nowhere/lm", "a/b/c")))


def test_an_lm_of_other_tokens_is_refused(folder, tmp_path):
    other = write_checkpoints(
        tmp_path, ["lm"], ["QUITE ANOTHER TEXT", "IN CAPITAL LETTERS", "OF THIRTY WORD PIECES"] * 4
    )
    with pytest.raises(VocabularyMismatchError, match="they first differ at id"):
        load_lm(other / "lm", load_model(folder / "rnnt"))
    with pytest.raises(CheckpointError, match="holds a 'aed', but a 'lm' is needed"):
        load_lm(folder / "aed", load_model(folder / "rnnt"))


def test_tokenizers_are_found_in_checkpoints(folder, tmp_path):
    wanted = load_checkpoint(folder / "rnnt").tokenizer
    for name, lms in ((str(folder / "aed"), []), ("", [str(tmp_path / "none.arpa"), str(folder / "lm")])):
        assert find_tokenizer(name, lms).encode("the sea") == wanted.encode("the sea")
    with pytest.raises(BadInputError, match="no tokenizer in an n-gram; name one with --tokenizer"):
        find_tokenizer("", [])


# --- recognisers ------------------------------------------------------------------------------------------------------


def test_what_is_subtracted_is_named_or_a_file(folder, tmp_path):
    model = load_model(folder / "rnnt")
    assert load_subtracted("internal", model).how == internal_lm.default(model) == "removed"
    assert load_subtracted("silence", model).how == "silence"
    save_internal_lm(tmp_path / "own.safetensors", internal_lm(model, "silence"))
    again = load_subtracted(str(tmp_path / "own.safetensors"), model)
    assert again.how == "silence" and again.host is model
    assert load_subtracted(str(folder / "lm"), model).tokens.eos is not None


def test_methods_differ_in_what_is_subtracted_and_in_nothing_else():
    made = {m: parts_for(m, "model", "lm", source_lm="source", bigram="bigram", learned="learned") for m in METHODS}
    assert {m: (p.lm, p.subtracted) for m, p in made.items()} == {
        "BS": ("", ""),
        "SF": ("lm", ""),
        "DR": ("lm", "source"),
        "LODR": ("lm", "bigram"),
        "ILME": ("lm", "internal"),
        "ILME-learned": ("lm", "learned"),
    }
    with pytest.raises(BadInputError, match="no method is called 'XY'"):
        parts_for("XY", "model", "lm")
    with pytest.raises(BadInputError, match="no model was given"):
        Parts()


def test_search_options_are_the_familys_own_but_for_those_given(folder):
    parts = Parts(str(folder / "rnnt"))
    own = default_options(load_model(folder / "rnnt"))
    assert load_recogniser(parts).options == own
    changed = load_recogniser(parts, SearchSettings(max_symbols=2, nbest=3)).options
    assert (changed.max_symbols, changed.nbest, changed.beam) == (2, 3, own.beam)
    assert load_recogniser(parts, TransducerOptions(beam=2)).options == TransducerOptions(beam=2)
    with pytest.raises(BadInputError, match=r"search\.certain_end is an option for attention decoders"):
        load_recogniser(parts, SearchSettings(certain_end=3.0))


def test_a_model_trained_again_is_another_model(folder, tmp_path):
    copy = tmp_path / "model.safetensors"
    shutil.copy(folder / "rnnt" / "model.safetensors", copy)
    before = describe(Parts(str(tmp_path), str(folder / "lm"), "internal"))
    assert before["model_content"] == describe(Parts(str(folder / "rnnt")))["model_content"]
    times = copy.stat()
    copy.write_bytes(copy.read_bytes()[:-4] + b"abcd")
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = describe(Parts(str(tmp_path), str(folder / "lm"), "internal"))
    assert after["model_content"] != before["model_content"] and after["lm_content"] == before["lm_content"]
    assert "subtracted_content" not in after
