"""Internal LMs whose vector in place of the acoustics is learned from text, and the files they are kept in."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest
import torch

from ilme import models
from ilme.cli import main
from ilme.data.features import FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm import internal_lm
from ilme.ilm.files import is_internal_lm, load_internal_lm, save_internal_lm
from ilme.ilm.learned_vector import LearnedVector, LearnedVectorOptions, learn_vector
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.int8 import to_int8
from ilme.recogniser.loading import Parts, describe, load_recogniser
from ilme.runtime.state import select
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.rescoring import sequence_scores
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.study.archive import _half
from ilme.testing import tiny
from ilme.testing.contract import check_internal_lm

KINDS = ["rnnt", "aed"]
TEXT = [[2, 3, 4, 5, 6], [2, 3, 4, 7], [5, 6, 2, 3, 4], [7, 2, 3], [3, 4, 5, 6, 2, 3, 4]] * 8
QUICK = LearnedVectorOptions(epochs=6, batch=8, rate=0.05)


def score(scorer, sentences):
    ends = scorer.tokens.eos is not None
    units = sum(len(y) + ends for y in sentences)
    return math.exp(-float(sequence_scores(scorer, sentences, finish=ends).sum()) / units)


def learned_lm(model, learned):
    return internal_lm(model, learned.vector, scale=learned.scale)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_nothing_learned_is_the_papers_estimate_bit_for_bit(kind):
    model = tiny(kind)
    width = model.config.joint if kind == "rnnt" else model.embedding.embedding_dim
    paper, ours = internal_lm(model), internal_lm(model, torch.zeros(width), scale=1.0)
    (a, s), (b, t) = paper.start(2), ours.start(2)
    for labels in ([3, 9], [4, 4], [2, 30]):
        assert torch.equal(a, b)
        (a, s), (b, t) = paper.score(torch.tensor(labels), s), ours.score(torch.tensor(labels), t)
    assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_learning_lowers_perplexity_and_leaves_the_model_alone(kind):
    model = tiny(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    paper = score(internal_lm(model), TEXT)
    vector_alone = learn_vector(model, TEXT, LearnedVectorOptions(epochs=6, batch=8, rate=0.05, scale=False))
    learned = learn_vector(model, TEXT, QUICK)
    assert vector_alone.scale == 1.0 != learned.scale
    assert score(learned_lm(model, learned), TEXT) < score(learned_lm(model, vector_alone), TEXT) < 0.9 * paper
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    again = learn_vector(model, TEXT, QUICK)
    assert torch.equal(again.vector, learned.vector) and again.scale == learned.scale


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_that_is_lowered_is_that_of_the_scorer(kind):
    from ilme.ilm.learned_vector import _losses

    model = tiny(kind).double()
    sentences = [[3, 4, 5], [6], [7, 2, 2, 9]]
    width = model.config.joint if kind == "rnnt" else model.embedding.embedding_dim
    vector, sharpness = torch.randn(width, generator=torch.Generator().manual_seed(1)).double(), torch.tensor(-0.3)
    with torch.no_grad():
        total = -float(_losses(model, sentences, vector, sharpness).sum())
    scorer = internal_lm(model, vector, scale=math.exp(sharpness))
    assert total == pytest.approx(float(sequence_scores(scorer, sentences, finish=kind == "aed").sum()), rel=1e-6)


def test_it_cannot_end_worse_than_the_papers_estimate():
    model = tiny("rnnt")
    drawn = torch.randint(1, 32, (60, 8), generator=torch.Generator().manual_seed(0)).tolist()  # nothing to be learned
    wild = learn_vector(model, drawn, LearnedVectorOptions(epochs=1, batch=1, rate=1e4, scale=False))
    assert wild.scale == 1.0 and not wild.vector.any()


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_the_contract_of_internal_lms(kind):
    model = tiny(kind)
    scorer = learned_lm(model, learn_vector(model, TEXT, QUICK))  # checks that it does not hear
    with torch.no_grad():
        alone, state = scorer.start(1)
        both, states = scorer.start(2)
        assert torch.allclose(both, alone.expand_as(both), atol=1e-5)
        pair = torch.tensor([3, 7])
        rows, states = scorer.score(pair, states)
        assert torch.allclose(rows[1:], scorer.score(pair[1:], state)[0], atol=1e-5)
        swap = torch.tensor([1, 0])
        then, _ = scorer.score(torch.tensor([5, 5]), states)
        swapped, _ = scorer.score(torch.tensor([5, 5]), select(states, swap))
        assert torch.allclose(swapped, then[swap], atol=1e-5)
        assert torch.allclose(rows.exp().sum(-1), torch.ones(2), atol=1e-5)
    if kind == "aed":
        features = torch.randn(2, 20, model.config.encoder.features, generator=torch.Generator().manual_seed(0))
        check_internal_lm(scorer, model, features, torch.tensor([20, 11]), [3, 7, 5])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_search_that_shares_its_prediction_subtracts_its_scores(kind):
    model = tiny(kind, seed=3)
    scorer = learned_lm(model, learn_vector(model, TEXT, QUICK))
    features = torch.randn(2, 12, model.config.encoder.features, generator=torch.Generator().manual_seed(0))
    encoded = model.encode(features, torch.tensor([12, 9]))
    fusion = Fusion(subtracted=scorer, weights=FusionWeights(subtracted=0.4, length=0.5))
    if kind == "rnnt":
        lists = TransducerSearch(model, fusion, TransducerOptions(beam=3, nbest=3))(*encoded)
    else:
        lists = AttentionSearch(model, fusion, AttentionOptions(beam=3, nbest=3, max_length=6))(encoded)
    for nbest in lists:
        for hypothesis in nbest:
            alone = sequence_scores(scorer, [hypothesis.tokens], finish=kind == "aed").item()
            assert hypothesis.scores.subtracted == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind, tmp_path: Path):
    model, file = tiny(kind), tmp_path / "learned.safetensors"
    learned = learn_vector(model, TEXT, QUICK)
    save_internal_lm(file, learned_lm(model, learned))
    found = load_internal_lm(file, model)
    assert is_internal_lm(file) and torch.equal(found.vector, learned.vector) and found.scale == learned.scale
    with pytest.raises(CheckpointError, match="another model"):
        load_internal_lm(file, tiny("aed" if kind == "rnnt" else "rnnt"))
    with pytest.raises(CheckpointError, match="another model"):
        load_internal_lm(file, tiny(kind, units=40))
    save_model(tmp_path / "model.safetensors", model)
    assert not is_internal_lm(tmp_path / "model.safetensors") and not is_internal_lm("internal")
    with pytest.raises(CheckpointError, match="ilme ilm learn"):
        load_internal_lm(tmp_path / "model.safetensors", model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_for_one_training_of_the_model(kind, tmp_path: Path):
    file = tmp_path / "learned.safetensors"
    model, other = tiny(kind), tiny(kind, seed=1)
    vector = torch.ones(model.config.joint if kind == "rnnt" else model.embedding.embedding_dim)
    save_internal_lm(file, internal_lm(model, vector, scale=0.5))
    with pytest.raises(CheckpointError, match=r"another training .* differ by \d+%, .* `ilme ilm learn`"):
        load_internal_lm(file, other)

    own = model.state_dict()
    for part in ("output.weight", "predictor.rnn.lstm.weight_hh_l0" if kind == "rnnt" else "rnn.lstm.weight_hh_l0"):
        changed = tiny(kind)
        changed.load_state_dict({**own, part: other.state_dict()[part]})
        with pytest.raises(CheckpointError, match="another training"):
            load_internal_lm(file, changed)
    spoilt = tiny(kind)
    spoilt.output.weight.data.fill_(torch.nan)
    with pytest.raises(CheckpointError, match="another training"):
        load_internal_lm(file, spoilt)

    heard = {name: value for name, value in other.state_dict().items() if name.startswith("encoder")}
    model.load_state_dict({**own, **heard})  # which the internal LM does not use
    assert load_internal_lm(file, model).scale == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_storage_in_fewer_bits_does_not_part_it_from_its_model(kind, tmp_path: Path):
    model, file = tiny(kind), tmp_path / "learned.safetensors"
    vector = torch.ones(model.config.joint if kind == "rnnt" else model.embedding.embedding_dim)
    save_internal_lm(file, internal_lm(model, vector))
    halved = tmp_path / "halved.safetensors"
    halved.write_bytes(_half(file))  # as in a study's parcels
    whole, half, packed = (tmp_path / f"{name}.safetensors" for name in ("whole", "half", "packed"))
    save_model(whole, model)
    save_model(half, model, dtype=torch.float16)
    to_int8(whole, packed)  # as in the bundle
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stored in (half, packed):
            for learned in (file, halved):
                assert load_internal_lm(learned, load_checkpoint(stored).model).vector.eq(1).all()


def test_a_file_that_does_not_say_for_which_training_is_warned_of(tmp_path: Path):
    model, file = tiny("rnnt"), tmp_path / "learned.safetensors"
    save_internal_lm(file, internal_lm(model, torch.ones(model.config.joint)))
    tensors, header = read_tensors(file)
    write_tensors(file, {"vector": tensors["vector"].clone()}, header)
    with pytest.warns(UserWarning, match="does not say which training"):
        assert load_internal_lm(file, model).vector.eq(1).all()


def test_faults_are_named():
    model = tiny("rnnt")
    with pytest.raises(BadInputError, match="at least two sentences, got 1"):
        learn_vector(model, [[3], []])
    with pytest.raises(BadInputError, match="not for LSTMLM"):
        learn_vector(tiny("lm"), TEXT)
    with pytest.raises(BadInputError, match=r"model\.eval"):
        learn_vector(model.train(), TEXT)
    with pytest.raises(BadInputError, match="rate must be above 0"):
        LearnedVectorOptions(rate=0.0)
    with pytest.raises(BadInputError, match="epochs must be at least 1"):
        LearnedVectorOptions(epochs=0)
    assert LearnedVector(torch.zeros(1)).scale == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_command_line(kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = ["the whale swam", "the sea was calm", "a whale of a time", "the captain saw the sea"] * 6
    tokenizer = SentencePieceTokenizer.train(texts, 32).for_role("transducer" if kind == "rnnt" else "attention")
    torch.manual_seed(0)
    model = models.build(kind, models.preset(kind, "tiny"), tokenizer.tokens)
    save_model(tmp_path / kind, model, tokenizer, FrontendConfig())
    text, file = tmp_path / "text.txt", tmp_path / "learned.safetensors"
    text.write_text("\n".join(texts))
    fast = ["--options.epochs", "6", "--options.batch", "8", "--options.rate", "0.05"]
    assert main(["ilm", "learn", str(tmp_path / kind), str(text), str(file), "--held_out", str(text), *fast]) == 0
    assert "without acoustics" in capsys.readouterr().out
    figures = []
    for own in ([], ["--internal", str(file)]):
        assert main(["perplexity", str(tmp_path / kind), str(text), *own, "--json", "true"]) == 0
        figures.append(json.loads(capsys.readouterr().out)["perplexity_per_token"])
    assert figures[1] < figures[0]

    subtracted = load_recogniser(Parts(str(tmp_path / kind), subtracted=str(file))).subtracted
    found = load_internal_lm(file, model)
    assert torch.equal(subtracted.vector, found.vector) and subtracted.scale == found.scale
    assert describe(Parts(str(tmp_path / kind), subtracted=str(file)))["subtracted_content"]
    arguments = ["tune", str(tmp_path / kind), "dev.jsonl", "out", "--lm", "lm", "--tuning.method", "ILME-learned"]
    assert main(arguments) != 0 and "ilme ilm learn" in capsys.readouterr().err


def test_two_sentences_are_enough_and_the_least_options_are_taken():
    model = tiny("rnnt")
    least = LearnedVectorOptions(sentences=1, epochs=1, batch=1)
    assert torch.isfinite(learn_vector(model, [[2, 3], [], [4]], least).vector).all()
    with pytest.raises(BadInputError, match="at least two sentences, got 1"):
        learn_vector(model, [[2, 3], []], least)
    for name in ("sentences", "epochs", "batch"):
        with pytest.raises(BadInputError, match=f"{name} must be at least 1, got 0"):
            LearnedVectorOptions(**{name: 0})
