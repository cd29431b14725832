"""ARPA files, entry by entry: the numbers that are read, and the line that an error names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ilme.errors import BadInputError
from ilme.lm import arpa as module
from ilme.lm.arpa import NEVER, read_arpa, write_arpa
from ilme.tokens import Tokens

TOKENS = Tokens(("</s>", "a", "b"), eos=0)
LINES = [
    "\\data\\", "ngram 1=4", "ngram 2=3", "ngram 3=2", "",
    "\\1-grams:", "-99\t<s>\t-0.5", "-1\t</s>", "-0.5\ta\t-0.25", "-0.75\tb\t-0.125", "",
    "\\2-grams:", "-0.5\t<s> a\t-0.25", "-0.25\ta b\t-0.75", "-0.125\tb a\t-0.5", "",
    "\\3-grams:", "-0.25\t<s> a b", "-0.5\ta b a", "",
    "\\end\\", "",
]  # fmt: skip


@pytest.fixture(params=[1, 2, 1 << 16], ids=lambda n: f"{n} lines at once")
def read(request, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_BLOCK", request.param)

    def reading(lines):
        (tmp_path / "m.arpa").write_text("\n".join(lines))
        return read_arpa(tmp_path / "m.arpa", TOKENS)

    return reading


def table(arpa, order):
    """Words, log10 P and log10 of the back-off weight of each n-gram."""
    found = arpa.tables[order - 1]
    return [
        (tuple(words), pytest.approx(p / math.log(10)), pytest.approx(b / math.log(10)))
        for words, p, b in zip(found.words.tolist(), found.log_prob, found.backoff, strict=True)
    ]


def test_every_number_of_every_order(read):
    """<s> is symbol 3, after the three ids."""
    arpa = read(LINES)
    assert (arpa.size, arpa.start, arpa.order, arpa.eos, arpa.missing, arpa.unknown) == (3, 3, 3, 0, (), None)
    assert table(arpa, 1) == [((3,), -99, -0.5), ((0,), -1, 0), ((1,), -0.5, -0.25), ((2,), -0.75, -0.125)]
    assert table(arpa, 2) == [((3, 1), -0.5, -0.25), ((1, 2), -0.25, -0.75), ((2, 1), -0.125, -0.5)]
    assert table(arpa, 3) == [((3, 1, 2), -0.25, 0), ((1, 2, 1), -0.5, 0)]


@pytest.mark.parametrize("at", [12, 14, 17, 18])
def test_blank_lines_among_the_entries_are_passed_over(read, at):
    plain, spaced = read(LINES), read([*LINES[:at], "", "  ", *LINES[at:]])
    for order in (1, 2, 3):
        assert table(plain, order) == table(spaced, order)


def test_entries_without_a_back_off_weight_have_none(read):
    bare = [line.removesuffix("\t-0.25").removesuffix("\t-0.75").removesuffix("\t-0.5") for line in LINES]
    assert [b for _, _, b in table(read([*LINES[:12], *bare[12:]]), 2)] == [0, 0, 0]
    mixed = [*LINES[:13], bare[13], *LINES[14:]]
    assert [b for _, _, b in table(read(mixed), 2)] == [-0.25, 0, -0.5]
    ignored = [line + "\t-0.5" if line.startswith(("-0.25\t<s> a b", "-0.5\ta b a")) else line for line in LINES]
    assert [b for _, _, b in table(read(ignored), 3)] == [0, 0], "the highest order is no context"


@pytest.mark.parametrize("line", [8, 13, 14, 15, 18, 19])
@pytest.mark.parametrize("wrong", ["-0.5x\ta b a", "0.5\ta b a", "-0.5", "nan\ta b a"])
def test_the_line_of_an_error_is_named(read, line, wrong):
    lines = [*LINES[: line - 1], wrong, *LINES[line:]]
    with pytest.raises(BadInputError, match=rf"m\.arpa, line {line}: "):
        read(lines)


def test_a_file_that_ends_too_early_says_after_which_line(read):
    for line in (9, 14, 18):
        with pytest.raises(BadInputError, match=f"ends after line {line}, before"):
            read(LINES[:line])


def test_impossible_words_are_finite(read):
    arpa = read([line.replace("-0.25\ta b", "-inf\ta b") for line in LINES])
    assert arpa.tables[1].log_prob[1] == NEVER == pytest.approx(-99 * math.log(10))


@pytest.mark.parametrize("units", ["ids", "pieces"])
@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
def test_what_is_written_is_read_again(read, tmp_path, units, name):
    arpa = read(LINES)
    write_arpa(tmp_path / name, arpa, TOKENS, units)
    again = read_arpa(tmp_path / name, TOKENS)
    for ours, theirs in zip(arpa.tables, again.tables, strict=True):
        order = np.argsort([str(w) for w in theirs.words.tolist()])
        expected = np.argsort([str(w) for w in ours.words.tolist()])
        assert np.array_equal(ours.words[expected], theirs.words[order])
        assert np.allclose(ours.log_prob[expected], theirs.log_prob[order], atol=1e-5)
        assert np.allclose(ours.backoff[expected], theirs.backoff[order], atol=1e-5)


def test_ids_without_a_unigram_are_unknown(read):
    """Without b, its id is what <unk> stands for; an <unk> of the inventory's own is preferred."""
    lines = [line.replace("\tb\t", "\t<unk>\t").replace("a b", "a <unk>").replace("b a", "<unk> a") for line in LINES]
    arpa = read(lines)
    assert (arpa.missing, arpa.unknown) == ((2,), 2)
    assert [words for words, _, _ in table(arpa, 2)] == [(3, 1), (1, 2), (2, 1)]


def test_more_ngrams_of_the_highest_order_than_the_file_can_hold_are_refused(tmp_path):
    """An n-gram takes four bytes at the least, as `0 a` and its line end do."""
    file = tmp_path / "m.arpa"
    for count in (20, 21):
        text = f"\\data\\\nngram 1=2\nngram 2={count}\n\n\\1-grams:\n"
        text += "#" * (4 * 20 + 3 - len(text))  # 83 bytes hold 20 of them, and not 21
        file.write_text(text)
        expected = (
            "21 n-grams are counted, more than the 83 bytes" if count == 21 else "expected|not a number|fields|ends"
        )
        with pytest.raises(BadInputError, match=expected):
            read_arpa(file, TOKENS)
