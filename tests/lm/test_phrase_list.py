"""Files of phrases, and how inventories of every kind write them."""

from __future__ import annotations

import itertools
import math
import os

import pytest

from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError
from ilme.lm.phrase_list import Phrase, as_phrases, compile_phrases, read_phrases, word_edges, write_phrases
from ilme.search.rescoring import sequence_scores
from ilme.tokens import Tokens

TEXT = ["the art of the artist in new york", "a starting artist", "marley was dead to begin with"] * 20


class Letters:
    """Spells everything out, with a space of its own between words."""

    def __init__(self, letters):
        self.tokens = Tokens(("<b>", "<unk>", *letters), blank=0, unk=1)

    def encode(self, text):
        return [self.tokens.pieces.index(c) if c in self.tokens.pieces else 1 for c in text]

    def decode(self, ids):
        return "".join(self.tokens.pieces[i] for i in ids)


class Words:
    """Splits into words that bring their space, with and without a lead, as byte-level tokenizers do."""

    def __init__(self, *pieces):
        self.tokens = Tokens(("<eos>", *pieces), sos=0, eos=0)

    def encode(self, text):
        return self.encode_raw(" " + text)

    def encode_raw(self, text):
        ids, left = [], text
        while left:
            pieces = [p for p in self.tokens.pieces[1:] if left.startswith(p)]
            if not pieces:
                return []
            longest = max(pieces, key=len)
            ids.append(self.tokens.pieces.index(longest))
            left = left[len(longest) :]
        return ids

    def decode(self, ids):
        return "".join(self.tokens.pieces[i] for i in ids).strip()


def bonuses(scorer, tokenizer, *texts):
    """B of each text, its labels as they are given or as the tokenizer gives them."""
    labels = [tokenizer.encode(text) if isinstance(text, str) else text for text in texts]
    return sequence_scores(scorer, labels, finish=True).tolist()


def test_a_file_is_read_and_written(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(
        "\ufeff# the cast\n\nEbenezer  Scrooge\nFezziwig\t2\nBob “Bob” Cratchit\t0.5 \nFezziwig\t3\n", "utf-8"
    )
    expected = (Phrase("Ebenezer Scrooge"), Phrase("Fezziwig", 3.0), Phrase('Bob "Bob" Cratchit', 0.5))
    assert read_phrases(path) == expected
    write_phrases(path, expected)
    assert read_phrases(path) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Scrooge\ttwo", "a phrase, a tab and a number"),
        ("Scrooge\t1\t2", "a phrase, a tab and a number"),
        ("Scrooge\t0", "above 0"),
        ("Scrooge\t-1", "above 0"),
        ("Scrooge\tnan", "above 0"),
        ("Scrooge\t1000", "at most 100"),
        ("...", "a phrase is words"),
        ("word " * 60, "at most 200 characters"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "names.txt"
    path.write_text(f"Marley\n{line}\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=f"names.txt, line 2: .*{message}"):
        read_phrases(path)


def test_files_that_are_none(tmp_path):
    with pytest.raises(BadInputError, match="there is no file of phrases"):
        read_phrases(tmp_path / "nothing")
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(BadInputError, match="holds no phrases"):
        read_phrases(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match="is not UTF-8"):
        read_phrases(tmp_path / "binary")


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device"])
def test_what_may_never_end_is_not_read(kind, tmp_path):
    path = tmp_path / "names.txt"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BadInputError, match=r"names.txt is no regular file; name a file of phrases"):
        read_phrases(path)


def test_lists_in_python():
    assert as_phrases(["a", ("b", 2), Phrase("a", 3.0)]) == (Phrase("a", 3.0), Phrase("b", 2.0))
    for wrong, message in (("a name", "not one text"), ([3], "a text and its weight"), ([("a", "b")], "above 0")):
        with pytest.raises(BadInputError, match=message):
            as_phrases(wrong)


def test_word_pieces():
    """The names are said in any case, and count as whole words only, at the tokenizer's own split."""
    tokenizer = SentencePieceTokenizer.train(TEXT, 60)
    scorer, left_out = compile_phrases(as_phrases(["Art", "NEW YORK", "Ωmega"]), tokenizer, tokenizer.tokens)
    assert left_out == ["Ωmega"]
    art, york = (len(tokenizer.encode(text)) for text in ("art", "new york"))
    found = bonuses(scorer, tokenizer, "the art of", "the artist", "a start", "new york", "art in new york")
    assert found == pytest.approx([art, 0, 0, york, art + york])


def test_letters():
    tokenizer = Letters(" abcdefghijklmnopqrstuvwxyz'")
    scorer, left_out = compile_phrases([Phrase("Art"), Phrase("naïve", 2.0)], tokenizer, tokenizer.tokens)
    assert not left_out
    said = {"art": 3, "the art": 3, "the art's": 3, "artist": 0, "start": 0, "a naive art": 13, "art art": 6}
    assert bonuses(scorer, tokenizer, *said) == pytest.approx(list(said.values()))


def test_capitals_and_spaces():
    """As written, and at the beginning of a sentence; a list without case may be meant in any."""
    tokenizer = Words(" bank", " Bank", "Bank", " of", " Of", " BANK", ' "', "-", " a", "bank", "s")
    scorer, _ = compile_phrases([Phrase("bank of")], tokenizer, tokenizer.tokens)
    said = {"bank of": 2, "Bank Of": 2, "Bank of": 2, "BANK of": 0, 'a "Bank of': 2, "a-bank of": 2, "abank of": 0}
    assert bonuses(scorer, tokenizer, *said) == pytest.approx(list(said.values()))
    as_it_stands, _ = compile_phrases([Phrase("Bank of")], tokenizer, tokenizer.tokens)
    assert bonuses(as_it_stands, tokenizer, "Bank of", "bank of") == pytest.approx([2, 0])


def test_the_heaviest_of_equal_spellings_counts():
    tokenizer = Words(" bank", " Bank")
    scorer, _ = compile_phrases([Phrase("Bank", 3.0), Phrase("bank")], tokenizer, tokenizer.tokens)
    assert bonuses(scorer, tokenizer, "Bank", "bank") == pytest.approx([3, 1])


@pytest.mark.parametrize(
    ("count", "taken"), [(1, 0.0), (500, 0.0), (1000, 0.5 * math.log(2)), (6000, 0.5 * math.log(12))]
)
def test_a_long_list_takes_from_every_bonus(count, taken):
    """The more are listed, the likelier one sounds like a word which is not; a bonus never falls below nothing."""
    tokenizer = Letters(" abcdefghijklmnopqrstuvwxyz")
    others = ["".join(letters) for letters in itertools.islice(itertools.product("qxyzjkvw", repeat=5), count - 1)]
    few = [Phrase("art", 2.0), Phrase("i")][: min(count, 2)]
    listed = as_phrases([*few, *others])[:count]
    scorer, _ = compile_phrases(listed, tokenizer, tokenizer.tokens)
    found = bonuses(scorer, tokenizer, "art", "the art of i", "start")
    short = max(0.0, 1 - taken) if count > 1 else 0.0
    assert found == pytest.approx([2 * (3 - taken), 2 * (3 - taken) + short, 0], abs=1e-5)


def test_nothing_that_can_be_written_is_an_error():
    tokenizer = Letters("abc")
    with pytest.raises(BadInputError, match="can write none of the phrases"):
        compile_phrases([Phrase("xyz")], tokenizer, tokenizer.tokens)


def test_where_words_begin_and_end():
    edges = word_edges(Tokens(("<eos>", " the", "s", ",", ' "', "東", "\ufffd", "é"), eos=0))
    assert edges.begins == (False, True, False, False, True, False, False, False)
    assert edges.closes == (True, True, False, True, True, True, False, False)
    assert edges.opens == (True, False, False, True, True, True, False, False)


def test_a_weight_of_one_is_not_written_and_small_weights_count(tmp_path):
    tokenizer = Words(" bank", " Bank")
    scorer, _ = compile_phrases([Phrase("bank", 0.25)], tokenizer, tokenizer.tokens)
    assert bonuses(scorer, tokenizer, "bank") == pytest.approx([0.25])
    file = tmp_path / "phrases.txt"
    write_phrases(file, as_phrases(["Scrooge", ("Fezziwig", 2), ("Marley", 0.25)]))
    assert file.read_text() == "Scrooge\nFezziwig\t2\nMarley\t0.25\n"


def test_a_word_piece_without_its_space_stands_for_the_phrase_too():
    class Pieces:
        tokens = Tokens(("<b>", "▁bank", "bank", "ank", "er"), blank=0)

        def encode(self, text):
            return {"bank": [1], "banker": [1, 4]}[text.lower()]

        def decode(self, ids):
            return "".join(self.tokens.pieces[i] for i in ids).replace("▁", " ").strip()

    tokenizer = Pieces()
    scorer, _ = compile_phrases([Phrase("banker")], tokenizer, tokenizer.tokens)
    assert bonuses(scorer, tokenizer, [1, 4], [2, 4], [3, 4]) == pytest.approx([2, 2, 0])
