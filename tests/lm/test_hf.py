"""Causal LMs of `transformers` with tiny random weights: inside the search, and on n-best lists."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

transformers = pytest.importorskip("transformers")

from ilme.errors import BadInputError, CheckpointError  # noqa: E402
from ilme.fusion import FusionWeights  # noqa: E402
from ilme.lm.delayed import DelayedLM  # noqa: E402
from ilme.lm.hf import UNKNOWN, HuggingFaceLM, TextScorer, causal_scorer, load_causal, rescore, same_ids  # noqa: E402
from ilme.runtime.state import select  # noqa: E402
from ilme.search.hypothesis import Hypothesis, Scores  # noqa: E402
from ilme.search.rescoring import sequence_scores  # noqa: E402
from ilme.testing import numbered_tokens  # noqa: E402
from ilme.tokens import Tokens  # noqa: E402

SIZE = 20


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=SIZE, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    return transformers.GPT2LMHeadModel(config).eval()


class Letters:
    """A tokenizer of letters: another inventory than the recogniser's."""

    bos_token_id, eos_token_id = 1, 2

    def encode(self, text, add_special_tokens):
        return [3 + (ord(c) - ord("a")) % 15 for c in text]


def test_rows_equal_the_whole_sequence_at_once(network):
    lm = HuggingFaceLM(network, numbered_tokens(SIZE, "attention"))
    labels = [3, 7, 7, 11]
    with torch.no_grad():
        whole = network(torch.tensor([[0, *labels]])).logits.log_softmax(-1)[0]
    rows, state = lm.start(2)
    torch.testing.assert_close(rows[0], whole[0], atol=1e-4, rtol=0)
    for u, label in enumerate(labels):
        rows, state = lm.score(torch.tensor([label, label]), state)
        torch.testing.assert_close(rows[1], whole[u + 1], atol=1e-4, rtol=0)
    torch.testing.assert_close(lm.finish(rows), rows[:, 0])


def test_states_are_reordered_and_not_changed_by_use(network):
    lm = HuggingFaceLM(network, numbered_tokens(SIZE, "attention"))
    _, state = lm.start(2)
    _, state = lm.score(torch.tensor([3, 4]), state)
    straight, _ = lm.score(torch.tensor([5, 5]), state)
    swapped, _ = lm.score(torch.tensor([5, 5]), select(state, torch.tensor([1, 0])))
    torch.testing.assert_close(swapped, straight.flip(0))
    again, _ = lm.score(torch.tensor([5, 5]), state)
    torch.testing.assert_close(again, straight)


def test_units_after_the_lms_own_are_read_as_the_end_of_a_text(network):
    """From the first of them on: Whisper's <|startoftranscript|> is the unit right after GPT-2's."""
    pieces = (*(f"p{i}" for i in range(SIZE - 1)), "<|end|>", "<|first|>", "<|second|>")
    lm = HuggingFaceLM(network, Tokens(pieces, eos=SIZE - 1))
    _, state = lm.start(4)
    rows, _ = lm.score(torch.tensor([SIZE - 2, SIZE - 1, SIZE, SIZE + 1]), state)
    torch.testing.assert_close(rows[2:], rows[1:2].expand(2, -1))
    assert not torch.allclose(rows[0, :SIZE], rows[1, :SIZE], atol=0.1), "the LM's last label but one is itself"
    assert rows[:, SIZE:].eq(UNKNOWN).all()


def test_whole_sequences_and_their_ends(network):
    tokens = numbered_tokens(SIZE, "attention")
    lm = HuggingFaceLM(network, tokens)
    scores = sequence_scores(lm, [(3, 4), (3,), ()], finish=True)
    with torch.no_grad():
        rows = network(torch.tensor([[0, 3, 4]])).logits.log_softmax(-1)[0]
    expected = rows[0, 3] + rows[1, 4] + rows[2, 0]
    assert float(scores[0]) == pytest.approx(float(expected), abs=1e-4)


def test_another_tokenizer_is_refused_with_the_way_out(network):
    for size in (SIZE - 1, SIZE + 1):
        with pytest.raises(BadInputError, match=r"DelayedLM.*TextScorer"):
            HuggingFaceLM(network, numbered_tokens(size, "attention"))


@pytest.fixture(scope="module")
def whisper_en():
    """The inventory of an English Whisper, the words by number: GPT-2's 50257 ids, then marks and time stamps."""
    words = [f"Ġw{i}" for i in range(50256)]
    marks = ["<|startoftranscript|>", *(f"<|{i * 0.02:.2f}|>" for i in range(1606))]
    return Tokens((*words, "<|endoftext|>", *marks), sos=50257, eos=50256)


@pytest.fixture(scope="module")
def gpt2(whisper_en, tmp_path_factory):
    """A tiny random GPT-2 with GPT-2's vocabulary, in a folder as the hub has it."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("gpt2")
    vocabulary = {piece: i for i, piece in enumerate(whisper_en.pieces[:50257])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    end = "<|endoftext|>"
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token=end, eos_token=end).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50257, n_positions=16, n_embd=4, n_layer=1, n_head=1, initializer_range=0.5
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_gpt2_runs_directly_over_the_tokens_of_an_english_whisper(gpt2, whisper_en):
    lm = causal_scorer(str(gpt2), whisper_en)
    assert isinstance(lm, HuggingFaceLM) and lm.first == 50256, (
        "the ids are the same, but there is no start of transcript"
    )
    labels = [17, 40_000, 3]
    with torch.no_grad():
        rows = lm.model(torch.tensor([[50256, *labels]])).logits.log_softmax(-1)[0]
    expected = sum(float(rows[u, label]) for u, label in enumerate([*labels, 50256]))
    assert float(sequence_scores(lm, [labels], finish=True)[0]) == pytest.approx(expected, abs=1e-3)
    first, state = lm.start(1)
    assert first.shape == (1, len(whisper_en)) and set(first[0, 50257:].tolist()) == {-20.0}
    stamped, _ = lm.score(torch.tensor([50300]), state)
    ended, _ = lm.score(torch.tensor([50256]), state)
    torch.testing.assert_close(stamped, ended)


def test_which_inventories_have_the_same_ids(gpt2, whisper_en):
    model, tokenizer = load_causal(str(gpt2))
    assert same_ids(model, tokenizer, whisper_en)
    pieces = list(whisper_en.pieces)
    pieces[7], pieces[8] = pieces[8], pieces[7]
    assert not same_ids(model, tokenizer, replace(whisper_en, pieces=tuple(pieces)))
    assert not same_ids(model, tokenizer, replace(whisper_en, pieces=(*whisper_en.pieces, "Ġmore")))
    swapped = causal_scorer(str(gpt2), replace(whisper_en, pieces=tuple(pieces)))
    assert isinstance(swapped, DelayedLM), "another order of the words is another tokenizer"


def test_what_is_no_causal_lm_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be loaded as a causal LM"):
        causal_scorer(str(tmp_path), numbered_tokens(SIZE, "attention"))


def test_text_scores_do_not_depend_on_the_batch(network):
    texts = ["abc", "a", "hello", "abc"]
    alone = [TextScorer(network, Letters(), batch=1)([t])[0] for t in texts]
    assert TextScorer(network, Letters(), batch=4)(texts) == pytest.approx(alone, abs=1e-4)
    with torch.no_grad():
        rows = network(torch.tensor([[1, 3, 4, 5]])).logits.log_softmax(-1)[0]
    expected = rows[0, 3] + rows[1, 4] + rows[2, 5] + rows[3, 2]
    assert alone[0] == pytest.approx(float(expected), abs=1e-4)


def test_rescoring_ranks_by_the_fused_score(network):
    scorer = TextScorer(network, Letters())
    texts = ["abc", "acc", "ab"]
    lists = {"u": [Hypothesis((i,), 0.0, Scores(asr=-1.0, length=1), text=t) for i, t in enumerate(texts)]}
    ranked = rescore(lists, scorer, FusionWeights(lm=0.5), length_exponent=1.0)["u"]
    values = dict(zip(texts, scorer(texts), strict=True))
    assert [h.text for h in ranked] == sorted(texts, key=lambda t: -values[t])
    assert ranked[0].score == pytest.approx((-1.0 + 0.5 * max(values.values())) / 2)


def test_a_sequence_begins_with_what_was_given_or_sos_or_eos(network):
    tokens = numbered_tokens(SIZE, "attention")
    assert HuggingFaceLM(network, replace(tokens, sos=4)).first == 4
    assert HuggingFaceLM(network, replace(tokens, sos=4), start=7).first == 7
    assert HuggingFaceLM(network, replace(tokens, sos=4), start=0).first == 0
    assert HuggingFaceLM(network, replace(tokens, sos=None, eos=5)).first == 5
    with pytest.raises(BadInputError, match="neither sos nor eos"):
        HuggingFaceLM(network, replace(tokens, sos=None, eos=None))
    with pytest.raises(BadInputError, match=f"the LM has {SIZE} output units, the recogniser {SIZE + 1}"):
        HuggingFaceLM(network, numbered_tokens(SIZE + 1, "attention"))


@pytest.mark.parametrize(("exponent", "divisor"), [(0.0, 1.0), (0.5, 2.0), (1.0, 4.0)])
def test_lists_are_ranked_by_the_score_over_a_power_of_the_length(exponent, divisor):
    lists = {"u": [Hypothesis((1, 2, 3), 0.0, Scores(asr=-2.0, lm=9.0, subtracted=-1.0, length=3), text="abc")]}
    (h,) = rescore(lists, lambda texts: [-4.0] * len(texts), FusionWeights(0.5, 0.25, 0.1), exponent)["u"]
    assert h.scores == Scores(asr=-2.0, lm=-4.0, subtracted=-1.0, length=3)
    assert h.score == pytest.approx((-2.0 - 2.0 + 0.25 + 0.3) / divisor)
