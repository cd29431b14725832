"""The n-gram scorer against a dictionary that shares nothing with it."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ilme.errors import BadInputError, CheckpointError
from ilme.lm import ngram_file
from ilme.lm.arpa import read_arpa, write_arpa
from ilme.lm.ngram import NGramScorer, build_automaton, load_ngram
from ilme.runtime import state as nest
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.tokens import Tokens
from tests.lm.backoff_reference import DictionaryModel, write_random_arpa

PIECES = ("<eos>", "<unk>", *(f"▁{c}" for c in "abcdefghij"))
TOKENS = Tokens(PIECES, sos=0, eos=0, unk=1)
WORDS = list(PIECES[2:])


def make(path: Path, order: int = 3, seed: int = 0, spare: bool = True) -> tuple[NGramScorer, DictionaryModel]:
    write_random_arpa(path, WORDS, order, seed, spare=spare)
    return NGramScorer.from_arpa(path, TOKENS, dtype=torch.float64), DictionaryModel(path)


def expected_row(model: DictionaryModel, history: list[int]) -> list[float]:
    """Every id's log-probability; id 1 and the left-out word, which the file lacks, share `<unk>`."""
    context = ("<s>", *(PIECES[i] if i != len(PIECES) - 1 else "<unk>" for i in history))
    row = [model.ln("</s>", context), model.ln("<unk>", context) - math.log(2)]
    row += [model.ln(w, context) for w in WORDS[:-1]]
    return [*row, model.ln("<unk>", context) - math.log(2)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    histories=st.lists(st.lists(st.integers(1, len(PIECES) - 1), min_size=6, max_size=6), min_size=1, max_size=5),
)
def test_rows_equal_the_dictionary_and_sum_to_one(tmp_path, order, seed, histories):
    scorer, model = make(tmp_path / "m.arpa", order, seed)
    rows, state = scorer.start(len(histories))
    for step in range(7):
        for row, history in zip(rows, histories, strict=True):
            want = torch.tensor(expected_row(model, history[:step]), dtype=torch.float64)
            torch.testing.assert_close(row, want, rtol=0, atol=1e-9)
        torch.testing.assert_close(rows.exp().sum(1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-9)
        torch.testing.assert_close(scorer.finish(rows), rows[:, 0])
        if step < 6:
            rows, state = scorer.score(torch.tensor([h[step] for h in histories]), state)


def test_padded_rows_equal_ragged_rows(tmp_path):
    scorer, _ = make(tmp_path / "m.arpa", 4, 3)
    nodes = torch.arange(len(scorer.automaton.backoff))
    ragged = scorer._rows(nodes)
    scorer._pad()
    assert torch.equal(scorer._rows(nodes), ragged)


def test_state_can_be_reordered_and_joined(tmp_path):
    scorer, _ = make(tmp_path / "m.arpa")
    _, state = scorer.start(2)
    _, state = scorer.score(torch.tensor([3, 4]), state)
    swapped = nest.select(state, torch.tensor([1, 0, 1]))
    again, _ = scorer.score(torch.tensor([5, 5, 5]), swapped)
    straight, _ = scorer.score(torch.tensor([5, 5]), state)
    assert torch.equal(again, straight[[1, 0, 1]])
    assert torch.equal(nest.cat([state, swapped])[2:], swapped)
    assert scorer.start(0)[0].shape == (0, len(TOKENS))


def test_blank_takes_the_role_of_the_end(tmp_path):
    scorer, _ = make(tmp_path / "m.arpa")
    transducer = Tokens(("<b>", *PIECES[1:]), blank=0, unk=1)
    other = NGramScorer.from_arpa(tmp_path / "m.arpa", transducer, dtype=torch.float64)
    assert other.tokens.eos == 0 and other.tokens.blank is None
    assert torch.equal(other.start(1)[0], scorer.start(1)[0])


def test_without_an_end_nothing_is_scored_for_it(tmp_path):
    write_random_arpa(tmp_path / "m.arpa", WORDS, 2, 1)
    scorer = NGramScorer.from_arpa(tmp_path / "m.arpa", Tokens(PIECES[2:]))
    rows, _ = scorer.start(3)
    assert torch.equal(scorer.finish(rows), torch.zeros(3))
    assert rows.exp().sum(1).max() < 1


def test_a_start_symbol_of_its_own_is_never_predicted(tmp_path):
    write_random_arpa(tmp_path / "m.arpa", WORDS, 2, 1)
    scorer = NGramScorer.from_arpa(tmp_path / "m.arpa", Tokens((*PIECES, "<sos>"), sos=len(PIECES), eos=0, unk=1))
    assert scorer.start(1)[0][0, -1] < -100


@pytest.mark.parametrize("large", [0, 1 << 26])
def test_saved_and_written_models_score_alike(tmp_path, monkeypatch, large):
    monkeypatch.setattr(ngram_file, "LARGE", large)
    scorer, _ = make(tmp_path / "m.arpa", 4, 5, spare=False)
    labels = torch.tensor([2, 5, 7])
    want, _ = scorer.score(labels, scorer.start(3)[1])
    scorer.save(tmp_path / "m.safetensors")
    again, single = load_ngram(tmp_path / "m.safetensors"), NGramScorer.from_arpa(tmp_path / "m.arpa", TOKENS)
    arrays = vars(again.automaton).values()
    assert {isinstance(a, np.memmap) for a in arrays if isinstance(a, np.ndarray)} == {large == 0}
    assert torch.equal(again.score(labels, again.start(3)[1])[0], single.score(labels, single.start(3)[1])[0])
    for name, units in (("ids.arpa", "ids"), ("pieces.arpa.gz", "pieces")):
        write_arpa(tmp_path / name, read_arpa(tmp_path / "m.arpa", TOKENS), TOKENS, units)
        back = load_ngram(tmp_path / name, TOKENS, dtype=torch.float64)
        torch.testing.assert_close(back.score(labels, back.start(3)[1])[0], want, rtol=0, atol=1e-6)


def test_a_model_of_single_words_is_saved_and_loaded(tmp_path):
    scorer, _ = make(tmp_path / "m.arpa", 1, 2)
    scorer.save(tmp_path / "m.safetensors")
    again = load_ngram(tmp_path / "m.safetensors", dtype=torch.float64)
    assert again.order == 1 and len(again.automaton.backoff) == 1
    torch.testing.assert_close(again.start(1)[0], scorer.start(1)[0], rtol=0, atol=1e-6)


def test_a_file_is_checked_block_by_block(tmp_path, monkeypatch):
    scorer, _ = make(tmp_path / "m.arpa", 3, 3)
    scorer.save(tmp_path / "m.safetensors")
    tensors, header = read_tensors(tmp_path / "m.safetensors")
    for block in (7, len(tensors["key"]) - 1, len(tensors["key"])):
        monkeypatch.setattr(ngram_file, "BLOCK", block)
        load_ngram(tmp_path / "m.safetensors")
        for at in range(len(TOKENS) + 1, len(tensors["key"]) - 1):
            damaged = tensors["key"].clone()
            damaged[[at, at + 1]] = damaged[[at + 1, at]]
            if at % 20 == 0 or (at + 1) % block == 0:
                write_tensors(tmp_path / "d.safetensors", tensors | {"key": damaged}, header)
                with pytest.raises(CheckpointError, match="key is not ascending"):
                    load_ngram(tmp_path / "d.safetensors")


@pytest.mark.parametrize("letters", range(1, 9))
def test_arrays_begin_where_their_numbers_may(tmp_path, letters):
    tokens = Tokens(("<eos>", "a" * letters), sos=0, eos=0)
    with ngram_file.new_ngram_file(tmp_path / "m", ngram_file.Stored(1, tokens), 3, 1):
        pass
    assert int.from_bytes((tmp_path / "m").read_bytes()[:8], "little") % 8 == 0


def test_a_header_without_an_order_is_refused():
    for order in (0, -1, ngram_file.MOST_ORDERS + 1):
        with pytest.raises(BadInputError, match="order must lie between 1"):
            ngram_file.Stored(order, TOKENS)


def test_load_finds_the_inventory_beside_the_file(tmp_path):
    import json

    make(tmp_path / "m.arpa")
    with pytest.raises(BadInputError, match=r"m\.arpa\.tokens\.json"):
        load_ngram(tmp_path / "m.arpa")
    (tmp_path / "m.arpa.tokens.json").write_text(json.dumps(TOKENS.to_json()), encoding="utf-8")
    assert load_ngram(tmp_path / "m.arpa").tokens == TOKENS


GOOD = (
    "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n"
    "-1\t</s>\n-99\t<s>\t-0.1\n-0.5\t▁a\t-0.2\n\n\\2-grams:\n-0.3\t<s> ▁a\n\n\\end\\\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cut off"),
        ("hello\nworld\n", "cut off"),
        ("x\n" * 1500, "not an ARPA file"),
        (GOOD[:70], "cut off"),
        (GOOD.replace("ngram 2=1\n", "ngram 3=1\n"), "expected 'ngram 2=COUNT'"),
        (GOOD.replace("▁a", "zebra"), "'zebra' is not one of"),
        (GOOD.replace("-0.3\t", "zero\t"), "not a number"),
        (GOOD.replace("-0.3\t", "0.3\t"), "not possible"),
        (GOOD.replace("-0.3\t", "nan\t"), "not possible"),
        (GOOD.replace("<s> ▁a", "<s> ▁a ▁a ▁a"), "fields"),
        (GOOD.replace("<s> ▁a", "▁a <s>"), "start can only come first"),
        (GOOD.replace("<s> ▁a", "<s> ▁b"), "not in the unigrams"),
        (GOOD.replace("ngram 1=3", "ngram 1=2"), r"expected '\\2-grams:'"),
    ],
)
def test_damaged_files_are_named_errors(tmp_path, text, message):
    (tmp_path / "bad.arpa").write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        NGramScorer.from_arpa(tmp_path / "bad.arpa", TOKENS)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(GOOD.encode()) - 1), cut=st.integers(0, 12), put=st.binary(max_size=6))
def test_fuzz_any_damage_is_read_or_named(tmp_path, at, cut, put):
    data = GOOD.encode()
    (tmp_path / "f.arpa").write_bytes(data[:at] + put + data[at + cut :])
    try:
        rows, _ = NGramScorer.from_arpa(tmp_path / "f.arpa", TOKENS).start(1)
    except BadInputError as error:
        assert "f.arpa" in str(error) or "symbols" in str(error) or "start" in str(error)
    else:
        assert rows.shape == (1, len(TOKENS)) and not rows.isnan().any()


def test_good_file_with_crlf_reads(tmp_path):
    (tmp_path / "crlf.arpa").write_bytes(GOOD.replace("\n", "\r\n").encode())
    assert NGramScorer.from_arpa(tmp_path / "crlf.arpa", TOKENS).order == 2


def test_other_bad_input(tmp_path):
    with pytest.raises(BadInputError, match="no ARPA file"):
        load_ngram(tmp_path / "none.arpa", TOKENS)
    (tmp_path / "bytes.arpa").write_bytes(b"\xff\xfe\x00" * 50)
    with pytest.raises(BadInputError, match="damaged"):
        load_ngram(tmp_path / "bytes.arpa", TOKENS)
    (tmp_path / "cut.arpa.gz").write_bytes(gzip.compress(GOOD.encode())[:40])
    with pytest.raises(BadInputError, match="damaged"):
        load_ngram(tmp_path / "cut.arpa.gz", TOKENS)
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(CheckpointError, match="damaged"):
        load_ngram(tmp_path / "cut.safetensors")
    digits = Tokens(("<eos>", "1", "2"), eos=0)
    (tmp_path / "digits.arpa").write_text(GOOD.replace("▁a", "1"), encoding="utf-8")
    with pytest.raises(BadInputError, match="units="):
        load_ngram(tmp_path / "digits.arpa", digits)
    assert load_ngram(tmp_path / "digits.arpa", digits, units="ids").order == 2
    with pytest.raises(BadInputError, match="white space"):
        write_arpa(
            tmp_path / "o.arpa",
            read_arpa(tmp_path / "digits.arpa", digits, "ids"),
            Tokens(("</s>", "a b", "c"), eos=0),
            "pieces",
        )


def test_contexts_that_pruning_removed_are_an_error_and_missing_suffixes_are_not(tmp_path):
    text = GOOD.replace("ngram 2=1", "ngram 2=1\nngram 3=1").replace("\\end\\", "\\3-grams:\n-0.2\t▁a ▁a ▁a\n\n\\end\\")
    (tmp_path / "m.arpa").write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match="lower order lacks"):
        build_automaton(read_arpa(tmp_path / "m.arpa", TOKENS))
    (tmp_path / "m.arpa").write_text(text.replace("▁a ▁a ▁a", "<s> ▁a ▁a"), encoding="utf-8")
    scorer = NGramScorer.from_arpa(tmp_path / "m.arpa", TOKENS, dtype=torch.float64)
    state = scorer.start(1)[1]
    a = torch.tensor([2])
    rows, state = scorer.score(a, state)
    assert rows[0, 2] == pytest.approx(-0.2 * math.log(10))
    rows, state = scorer.score(a, state)  # neither "a a" nor "<s> a a" is a context, so "a" is
    assert rows[0, 2] == pytest.approx((-0.2 - 0.5) * math.log(10))


@pytest.mark.cuda
def test_cuda_rows_equal_cpu_rows_without_synchronising(tmp_path):
    scorer, _ = make(tmp_path / "m.arpa", 4, 3)
    device = NGramScorer.from_arpa(tmp_path / "m.arpa", TOKENS, device="cuda", dtype=torch.float64)
    labels = torch.tensor([2, 3, 4, 2])
    want, _ = scorer.score(labels, scorer.start(4)[1])
    labels = labels.cuda()
    state = device.start(4)[1]
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows, _ = device.score(labels, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(rows.cpu(), want)


def test_a_suffix_after_the_last_context_may_be_missing(tmp_path):
    """The trigram "a b a" without the bigram "b a": no context as far back as b has any bigram."""
    text = "\\data\\\nngram 1=4\nngram 2=1\nngram 3=1\n\n"
    text += "\\1-grams:\n-99\t<s>\t-0.5\n-1\t</s>\n-0.5\ta\t-0.25\n-0.5\tb\t-0.1\n\n"
    text += "\\2-grams:\n-0.3\ta b\t-0.2\n\n\\3-grams:\n-0.4\ta b a\n\n\\end\\\n"
    (tmp_path / "m.arpa").write_text(text)
    scorer = NGramScorer.from_arpa(tmp_path / "m.arpa", Tokens(("</s>", "a", "b"), eos=0), dtype=torch.float64)
    state = scorer.start(1)[1]
    for label, following, expected in ((1, 2, -0.3), (2, 1, -0.4), (1, 2, -0.3)):
        rows, state = scorer.score(torch.tensor([label]), state)
        assert rows[0, following] == pytest.approx(expected * math.log(10))


def test_a_file_whose_arrays_cannot_be_an_automaton_is_refused(tmp_path):
    """Each rule at its edge: a key twice, and one context more on a way back than the order allows."""
    scorer, _ = make(tmp_path / "m.arpa", 3, 3)
    scorer.save(tmp_path / "m.safetensors")
    tensors, header = read_tensors(tmp_path / "m.safetensors")

    def load(**changed):
        write_tensors(tmp_path / "n.safetensors", {**tensors, **changed}, header)
        return NGramScorer.load(tmp_path / "n.safetensors")

    assert load().order == 3
    key = tensors["key"].clone()
    key[-1] = key[-2]
    with pytest.raises(CheckpointError, match="ascending"):
        load(key=key)
    shorter = tensors["shorter"].clone()
    direct = (shorter == 0).nonzero().flatten()[1:]  # contexts of one word
    longer = (shorter > 0).nonzero().flatten()  # of two
    assert len(direct) and len(longer) > 1
    shorter[longer[-1]] = longer[0]  # three steps back to none
    with pytest.raises(CheckpointError, match="than order 3 allows"):
        load(shorter=shorter)


def test_a_failed_write_leaves_the_old_model(tmp_path, monkeypatch):
    scorer, _ = make(tmp_path / "m.arpa", 2, 3)
    other, _ = make(tmp_path / "n.arpa", 3, 4)
    scorer.save(tmp_path / "m.safetensors")
    before = (tmp_path / "m.safetensors").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="No space"):
        other.save(tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.arpa", "m.safetensors", "n.arpa"]


def test_a_file_of_an_earlier_version_scores_alike(tmp_path):
    """It has wider numbers, and does not say where each context's arcs begin."""
    scorer, _ = make(tmp_path / "m.arpa", 3, 3)
    scorer.save(tmp_path / "m.safetensors")
    tensors, header = read_tensors(tmp_path / "m.safetensors")
    del tensors["first"]
    wide = {name: x.double() if x.is_floating_point() else x.long() for name, x in tensors.items()}
    write_tensors(tmp_path / "old.safetensors", wide, header | {"format": "ilme-ngram-1"})
    new, old = (NGramScorer.load(tmp_path / f"{name}.safetensors") for name in ("m", "old"))
    nodes = torch.arange(len(new.automaton.backoff))
    assert torch.equal(old._rows(nodes), new._rows(nodes))
