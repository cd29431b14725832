"""Which of a tokenizer's units are punctuation."""

from __future__ import annotations

from benchmarks.whisper_sets import punctuation

from ilme.tokens import Tokens


class Named:
    """Units written as they are called; special ones are written as nothing."""

    def __init__(self, *names):
        self.tokens = Tokens(names, sos=len(names) - 2, eos=len(names) - 1)

    def decode(self, ids):
        return "".join("" if self.tokens.pieces[i].startswith("<") else self.tokens.pieces[i] for i in ids)


def test_marks_without_letter_or_digit_are_punctuation():
    tokenizer = Named(" sorry", ",", " ...", "'m", "20", "�", " ", "é", "<s>", "</s>")
    assert punctuation(tokenizer) == (1, 2)
