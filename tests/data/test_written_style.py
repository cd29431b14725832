"""Domain text in the model's written style."""

from __future__ import annotations

import pytest

from ilme.data.written_style import clean, domain_lines, group, names_of, needs_recasing, recase
from ilme.errors import BadInputError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("“Well,” said he; “I don’t  know—do you?”", "Well, said he, I don't know, do you?"),
        ("_Never_ - not once - [Footnote 3] again.", "Never, not once, again."),
        ("It was--so they said--late.", "It was, so they said, late."),
        ("do n't worry , it is fine .", "don't worry, it is fine."),
        ("'Come,' he said.", "Come, he said."),
        ("John's dog's bone: 'tis old", "John's dog's bone, 'tis old"),
    ],
)
def test_marks_that_the_model_never_writes(given, wanted):
    assert clean(given) == wanted


def test_given_marks_are_left_out():
    assert clean("a (b) * c", never="()*") == "a b c"


def test_text_without_case_is_found_and_given_case():
    assert needs_recasing(["hello there", "i am here"])
    assert not needs_recasing(["Hello there.", "i am here"])
    assert recase("i think i'm late, sam said", names=["sam"]) == "I think I'm late, Sam said."
    assert recase("what is my balance") == "What is my balance?"
    assert recase("thanks!") == "Thanks!"
    assert recase("  ") == ""
    with pytest.raises(BadInputError, match="no line with a letter"):
        needs_recasing(["123", ""])


def test_groups_keep_every_sentence_in_order():
    sentences = [f"Sentence number {i}." for i in range(200)]
    lines = list(group(sentences, words=9))
    assert " ".join(lines) == " ".join(sentences)
    assert 1.5 < 200 / len(lines) < 6


def test_no_line_ends_where_direct_speech_begins():
    sentences = ["He turned to her and said,", "Come in.", "She answered,", "No."] * 50
    lines = list(group(sentences, words=0.01))
    assert " ".join(lines) == " ".join(sentences) and len(lines) == 100
    assert not any(line.endswith(",") for line in lines)


def test_paragraphs_on_lines_are_joined_and_single_sentences_are_not(tmp_path):
    paragraph = "It was late. Nobody spoke. The fire had gone out, and he said,"
    (tmp_path / "book.txt").write_text(f"{paragraph}\nWe must go.\n" * 40)
    joined = domain_lines([str(tmp_path / "book.txt")], words=4.0).lines
    assert len(joined) < 120 and not any(line.endswith(",") for line in joined)
    (tmp_path / "calls.txt").write_text("I would like to pay my bill.\nHow can I help you?\n" * 40)
    assert len(domain_lines([str(tmp_path / "calls.txt")]).lines) == 80


def test_files_become_lines_without_what_dev_says(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text(
        "It was a bright cold day in the town, and nobody\nwas about. The clocks were striking.\n\n"
        "“Come in,” she said. Then the door closed behind them\nall, and it was very dark in there indeed.\n" * 3
    )
    plain = domain_lines([str(book)])
    assert plain.excluded == 0 and not plain.recased
    assert any("Come in, she said." in line for line in plain.lines)
    kept = domain_lines([str(book)], evaluation=["the door closed behind them all and it was very dark"])
    assert kept.excluded == 3
    assert not any("very dark" in line for line in kept.lines)


def test_lower_case_lines_are_recased_and_not_joined(tmp_path):
    calls = tmp_path / "calls.txt"
    calls.write_text("hello this is the bank\nwhat is your name\ni lost my card\nthank you\nbye bye now\n")
    text = domain_lines([str(calls)])
    assert text.recased
    assert text.lines[:3] == ["Hello this is the bank.", "What is your name?", "I lost my card."]


def test_empty_text_is_an_error(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n  \n")
    with pytest.raises(BadInputError, match="no sentence"):
        domain_lines([str(empty)])
    with pytest.raises(BadInputError, match="no text file"):
        domain_lines([str(tmp_path / "absent*.txt")])


def test_a_tokenizer_tells_the_names_among_words_without_case(tmp_path):
    known = {"Mary", "hello", "Hello", "is", "Is", "my", "name", "Name"}

    def encode(text):
        return [len(w) for word in text.split() for w in ([word] if word in known else [word[:2], word[2:]])]

    lines = ["hello my name is mary", "is mary, my name?"]
    assert names_of(lines, encode) == {"mary"}, "my is one token without a capital and two with one"
    calls = tmp_path / "calls.txt"
    calls.write_text("\n".join(lines) + "\n")
    assert domain_lines([str(calls)], encode=encode).lines == ["Hello my name is Mary.", "Is Mary, my name?"]
    kept = domain_lines([str(calls)], encode=encode, cased=False)
    assert kept.lines == lines and not kept.recased


def test_several_processes_read_what_one_does(tmp_path, monkeypatch):
    for number in range(3):
        lines = [f"The {word} of book {number} was calm, and he said:" for word in ("sea", "wind", "sky")]
        (tmp_path / f"{number}.txt").write_text("\n".join([*lines, "one two three four five six seven eight nine"]))
    files, said = [str(tmp_path / "*.txt")], ["one two three four five six seven eight"]
    alone = domain_lines(files, evaluation=said)
    monkeypatch.setattr("ilme.data.written_style.LARGE", 1)
    monkeypatch.setattr("ilme.data.written_style.cores", lambda: 2)
    assert domain_lines(files, evaluation=said) == alone and alone.excluded == 3
