"""An LM with another tokenizer inside the search: what a whole sequence gets is the LM's own score of its text."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from ilme.errors import BadInputError  # noqa: E402
from ilme.lm.delayed import DelayedLM, piece_bytes  # noqa: E402
from ilme.lm.hf import TextScorer  # noqa: E402
from ilme.lm.mixture import MixtureScorer  # noqa: E402
from ilme.runtime.state import select  # noqa: E402
from ilme.search.rescoring import sequence_scores  # noqa: E402
from ilme.tokens import Tokens  # noqa: E402

# As a recogniser of SentencePiece writes: words in parts, marks apart, an end, and a unit that is no text.
SENTENCE = Tokens(("<s>", "</s>", "▁the", "▁se", "a", "▁w", "hale", "▁a", ",", "▁don", "'", "t", "s"), sos=0, eos=1)
# As byte-level inventories do, with é in two halves.
BYTES = Tokens(("Ġthe", "Ġse", "a", "Ġw", "hale", "Ã", "©", ".", "<|endoftext|>", "<|0.00|>"), sos=8, eos=8)
CORPUS = ["the sea, the whales don't see a whale", "a sea the whale saw", "don't, the. seaé éa whale"]


def text_of(tokens: Tokens, labels) -> str:
    return b"".join(piece_bytes(tokens)[i] for i in labels).decode("utf-8", errors="replace").strip()


@pytest.fixture(scope="module")
def byte_pairs():
    """A byte-level BPE like GPT-2's, made from a few lines."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(CORPUS * 5, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )


@pytest.fixture(scope="module")
def words():
    """A tokenizer that puts ▁ before every word, as SentencePiece does, with a begin and another end."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>", "<s>", "</s>"])
    made.train_from_iterator(CORPUS * 5, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def gpt2(size):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    return transformers.GPT2LMHeadModel(config).eval()


def llama(size):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


CASES = list(itertools.product(("byte_pairs", "words"), (gpt2, llama), (SENTENCE, BYTES)))


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].__name__}-{len(case[2])}")
def case(request):
    name, make, tokens = request.param
    tokenizer = request.getfixturevalue(name)
    network = make(len(tokenizer))
    return DelayedLM(network, tokenizer, tokens), TextScorer(network, tokenizer), tokens


def drawn(tokens: Tokens, count: int, longest: int) -> list[list[int]]:
    draw = random.Random(5)
    usable = [i for i in range(len(tokens)) if i not in tokens.special and not tokens.pieces[i].startswith("<")]
    return [[draw.choice(usable) for _ in range(draw.randrange(longest + 1))] for _ in range(count)]


def test_a_whole_sequence_gets_the_lms_own_score_of_its_text(case):
    """Every kind of sequence: words in parts, marks, broken letters, nothing at all; in one batch of unequal ones."""
    lm, scorer, tokens = case
    sequences = [[], *drawn(tokens, 40, 9)]
    found = sequence_scores(lm, sequences, finish=True)
    texts = [text_of(tokens, y) for y in sequences]
    assert found.tolist() == pytest.approx(scorer(texts), abs=2e-3)
    alone = [float(sequence_scores(lm, [y], finish=True)[0]) for y in sequences[:12]]
    assert found[:12].tolist() == pytest.approx(alone, abs=2e-3)


@pytest.fixture(scope="module")
def marking(words):
    """The same tokenizer as one that writes <s> before every text and </s> after it, as LLaMA's and others do."""
    made = tokenizers.Tokenizer.from_str(words.backend_tokenizer.to_str())
    marks = [(mark, words.convert_tokens_to_ids(mark)) for mark in ("<s>", "</s>")]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def test_a_tokenizer_that_marks_begin_and_end_marks_no_word(words, marking):
    assert len(marking.encode("the sea")) == len(words.encode("the sea")) + 2
    network = llama(len(words))
    sequences = [[], *drawn(SENTENCE, 20, 6)]
    plain, marked = (DelayedLM(network, made, SENTENCE) for made in (words, marking))
    expected = sequence_scores(plain, sequences, finish=True)
    torch.testing.assert_close(sequence_scores(marked, sequences, finish=True), expected)


def test_a_word_is_paid_for_when_it_ends(byte_pairs):
    network = gpt2(len(byte_pairs))
    lm, scorer = DelayedLM(network, byte_pairs, SENTENCE), TextScorer(network, byte_pairs)
    the, se, a, w = 2, 3, 4, 5
    rows, state = lm.start(1)
    assert float(rows[0, the]) == 0 and float(rows[0, a]) == 0, "nothing has been said yet"
    assert float(rows[0, 1]) == pytest.approx(scorer([""])[0], abs=1e-4)
    rows, state = lm.score(torch.tensor([the]), state)
    begun = float(rows[0, se])
    assert float(rows[0, w]) == begun < 0 and float(rows[0, a]) == 0, "the word ends where another begins"
    assert float(rows[0, 1]) == pytest.approx(scorer(["the"])[0], abs=1e-4)
    rows, state = lm.score(torch.tensor([se]), state)
    rows, state = lm.score(torch.tensor([a]), state)
    assert begun + float(rows[0, 1]) == pytest.approx(scorer(["the sea"])[0], abs=1e-4)


def test_states_are_reordered_and_not_changed_by_use(case):
    lm, _, tokens = case
    pairs = [(2, 4), (3, 2)] if tokens is SENTENCE else [(0, 1), (1, 2)]
    _, state = lm.start(2)
    for a, b in pairs:
        _, state = lm.score(torch.tensor([a, b]), state)
    labels = torch.tensor([2, 2])
    straight, _ = lm.score(labels, state)
    swapped, _ = lm.score(labels, select(state, torch.tensor([1, 0])))
    torch.testing.assert_close(swapped, straight.flip(0), atol=1e-4, rtol=1e-4)
    again, _ = lm.score(labels, state)
    torch.testing.assert_close(again, straight)


def test_the_cache_keeps_what_a_sequence_needs_and_no_more(byte_pairs):
    """The slots of padding, and of words that went on, go."""
    lm = DelayedLM(gpt2(len(byte_pairs)), byte_pairs, SENTENCE)
    _, state = lm.start(1)
    text = [2, 3, 4, 5, 6, 12]
    for label in text:
        _, state = lm.score(torch.tensor([label]), state)
    needed = len(byte_pairs.encode("the sea whales"))  # begin, and all but the last token
    assert state["cache"][0][0].shape[2] == needed == int(state["within"].sum())


def test_it_is_no_part_of_a_linear_mixture(byte_pairs):
    lm = DelayedLM(gpt2(len(byte_pairs)), byte_pairs, SENTENCE)
    with pytest.raises(BadInputError, match="cannot be mixed linearly"):
        MixtureScorer([lm, lm], [0.5, 0.5], "linear")


def test_what_pieces_stand_for():
    assert piece_bytes(SENTENCE)[:4] == [b"", b"", b" the", b" se"]
    assert piece_bytes(BYTES)[5:] == [b"\xc3", b"\xa9", b".", b"", b""]
    named = Tokens(("<0x0A>", "<unk>", "▁", "a"), eos=1, unk=1)
    assert piece_bytes(named) == [b"\n", b"", b" ", b"a"]
    assert piece_bytes(Tokens(("|", "a", "<end>"), eos=2)) == [b" ", b"a", b""]


def test_what_cannot_be_told_apart_is_refused(byte_pairs):
    with pytest.raises(BadInputError, match="begins with a space"):
        DelayedLM(gpt2(len(byte_pairs)), byte_pairs, Tokens(("a", "b", "<eos>"), eos=2))
    with pytest.raises(BadInputError, match="end of sentence"):
        DelayedLM(gpt2(len(byte_pairs)), byte_pairs, Tokens(("▁a", "b")))

    class Endless:
        bos_token_id = eos_token_id = None

    with pytest.raises(BadInputError, match="neither a begin nor an end"):
        DelayedLM(gpt2(len(byte_pairs)), Endless(), SENTENCE)
