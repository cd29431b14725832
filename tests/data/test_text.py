"""Preparing text: every sentence is accounted for, whatever the files are."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import random
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ilme.data.dedupe import Seen, hash64
from ilme.data.exclude import Exclusion
from ilme.data.text import PrepareOptions, prepare
from ilme.errors import BadInputError

CORPORA = Path(os.environ.get("ILME_CORPORA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def lines_of(folder, name="train.txt"):
    return (folder / name).read_text(encoding="utf-8").splitlines()


def accounted(report):
    return report.found == report.train + report.heldout + sum(report.dropped.values())


def test_all_containers_give_the_same_sentences(tmp_path):
    text = b"Hello there. How are you?\r\nI am 42!\r\n"
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(text))
    (tmp_path / "u16.txt").write_bytes(text.decode().encode("utf-16"))
    (tmp_path / "mac.txt").write_bytes(text.replace(b"\r\n", b"\r"))
    (tmp_path / "m.jsonl").write_text('{"text": "Hello there. How are you?"}\n{"text": "I am 42!"}\n')
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("deep/a.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    want = ["hello there", "how are you", "i am forty two"]
    for path in sorted(tmp_path.iterdir()):
        report = prepare([str(path)], tmp_path / "out")
        assert lines_of(tmp_path / "out") == want, path
        assert accounted(report) and not report.problems
    report = prepare([str(tmp_path / "*.txt*"), str(tmp_path / "a.*")], tmp_path / "out")
    assert lines_of(tmp_path / "out") == want
    assert report.texts == 6 and report.dropped["duplicates"] == 15


def test_profiles_and_limits(tmp_path):
    (tmp_path / "t.txt").write_text("Mr. Fox ran 3 miles.\nHi!\n" + "Long " * 30 + "\n12 %\n...\n")
    options = PrepareOptions(profile="written", layout="lines", min_words=2, max_words=20)
    report = prepare([str(tmp_path / "t.txt")], tmp_path / "out", options=options)
    assert lines_of(tmp_path / "out") == ["Mr. Fox ran 3 miles."]
    assert report.dropped == {"too short": 1, "too long": 1, "no letters": 2}
    assert accounted(report)


def test_hold_out_is_a_share_and_stable(tmp_path):
    (tmp_path / "t.txt").write_text("".join(f"sentence number x{i}x here\n" for i in range(4000)))
    options = PrepareOptions(hold_out=0.25)
    report = prepare([str(tmp_path / "t.txt")], tmp_path / "a", options=options)
    assert 0.2 < report.heldout / report.found < 0.3
    assert not set(lines_of(tmp_path / "a")) & set(lines_of(tmp_path / "a", "heldout.txt"))
    prepare([str(tmp_path / "t.txt")], tmp_path / "b", options=options)
    assert lines_of(tmp_path / "a", "heldout.txt") == lines_of(tmp_path / "b", "heldout.txt")
    prepare([str(tmp_path / "t.txt")], tmp_path / "b", options=PrepareOptions(hold_out=0.25, seed=1))
    assert lines_of(tmp_path / "a", "heldout.txt") != lines_of(tmp_path / "b", "heldout.txt")


def test_the_number_of_workers_changes_nothing(tmp_path):
    rng = random.Random(0)
    words = [f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(400)]
    with (tmp_path / "t.txt").open("w") as file:
        for _ in range(20_000):
            file.write(" ".join(rng.choices(words, k=rng.randrange(1, 12))) + "\n")
    for workers, name in ((1, "one"), (2, "two")):
        prepare([str(tmp_path / "t.txt")], tmp_path / name, options=PrepareOptions(workers=workers, hold_out=0.1))
    for name in ("train.txt", "heldout.txt", "report.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_exclusion_finds_shared_ngrams_in_any_dress_and_over_sentence_ends(tmp_path):
    (tmp_path / "eval.jsonl").write_text(
        json.dumps({"text": "it was on the twenty first of may when the ship at last came in"})
        + "\n"
        + json.dumps({"text": "too short to matter"})
        + "\n"
    )
    (tmp_path / "t.txt").write_text(
        "He said: It was on the 21st of May, when we left.\n"
        "Nothing was shared here. Too short to matter.\n"
        "They saw of May. When the ship at last came -- oh!\n"
    )
    report = prepare(
        [str(tmp_path / "t.txt")], tmp_path / "out", [str(tmp_path / "eval.jsonl")], PrepareOptions(profile="written")
    )
    assert lines_of(tmp_path / "out") == ["Nothing was shared here.", "Too short to matter."]
    assert report.dropped == {"excluded": 3} and accounted(report)
    entries = [json.loads(line) for line in lines_of(tmp_path / "out", "excluded.jsonl")]
    assert entries[0]["shared"] == "it was on the twenty first of may"
    assert {e["shared"] for e in entries[1:]} == {"of may when the ship at last came"}


@settings(max_examples=60, deadline=None)
@given(
    training=st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), min_size=1, max_size=5),
    evaluation=st.lists(st.lists(st.sampled_from("abc"), max_size=9), max_size=4),
    length=st.integers(2, 5),
)
def test_exclusion_equals_a_plain_search(training, evaluation, length):
    exclusion = Exclusion.from_texts([" ".join(e) for e in evaluation], length)
    stream = [(w, i) for i, sentence in enumerate(training) for w in sentence]
    want = set()
    for at in range(len(stream) - length + 1):
        part = [w for w, _ in stream[at : at + length]]
        if any(e[i : i + length] == part for e in evaluation for i in range(len(e) - length + 1)):
            want |= {i for _, i in stream[at : at + length]}
    found = exclusion.overlaps([" ".join(s) for s in training])
    assert {i for i, ngram in enumerate(found) if ngram} == want


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12))
def test_seen_equals_a_set(batches):
    seen, known = Seen(), set()
    for batch in batches:
        want = []
        for value in batch:
            want.append(value not in known)
            known.add(value)
        assert seen.add(np.array(batch, dtype=np.uint64)).tolist() == want
    assert len(seen) == len(known)


def test_hash_is_the_same_everywhere():
    assert hash64("hello") == 9022087748821825191


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=3000), suffix=st.sampled_from([".txt", ".gz", ".xz", ".bz2", ".tar", ".tar.xz", ".jsonl"])
)
def test_fuzz_random_bytes_under_any_name(tmp_path, data, suffix):
    (tmp_path / f"f{suffix}").write_bytes(data)
    out = Path(tempfile.mkdtemp(dir=tmp_path))
    try:
        report = prepare([str(tmp_path / f"f{suffix}")], out)
    except BadInputError as error:
        assert "none can be used" in str(error) and not list(out.iterdir())
        return
    assert accounted(report)
    assert len(lines_of(out)) == report.train


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=500),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_fuzz_encodings_and_line_ends(tmp_path, text, encoding, end):
    data = "".join(text.splitlines(keepends=False)).encode(encoding, errors="ignore") + end.encode(
        "utf-16-le" if encoding == "utf-16" else "ascii"
    )
    (tmp_path / "f.txt").write_bytes(data)
    for profile in ("spoken", "written"):
        out = Path(tempfile.mkdtemp(dir=tmp_path))
        try:
            report = prepare([str(tmp_path / "f.txt")], out, options=PrepareOptions(profile=profile))
        except BadInputError as error:
            assert "none can be used" in str(error) and not list(out.iterdir())
            continue
        assert accounted(report)
        (out / "train.txt").read_text(encoding="utf-8")


def test_damage_is_reported_and_the_rest_is_kept(tmp_path):
    good = "Good line here.\n" * 2
    noise = b"".join(os.urandom(1000) for _ in range(20))
    (tmp_path / "1.txt").write_text(good)
    (tmp_path / "2.txt.gz").write_bytes(gzip.compress(random.Random(1).randbytes(9000).hex().encode())[:-900])
    (tmp_path / "3.txt.xz").write_bytes(lzma.compress(b"Second file here.\n" * 1000)[:-20])
    (tmp_path / "4.txt.gz").write_bytes(noise)
    (tmp_path / "5.txt").write_bytes(noise)
    (tmp_path / "6.txt").write_bytes("Ça va très bien.\n".encode("latin-1"))
    (tmp_path / "7.jsonl").write_text('{"text": "From a manifest."}\n{"no": 1}\nnot json\n[]\n')
    (tmp_path / "8.tar").write_bytes(noise)
    (tmp_path / "9.txt").write_bytes(b"Fine at first. " * 6000 + b"\nbad \xff byte.\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    report = prepare([str(tmp_path / "*.*")], tmp_path / "out")
    names = {Path(p["name"].split(",")[0]).name for p in report.problems}
    assert names == {"2.txt.gz", "3.txt.xz", "4.txt.gz", "5.txt", "6.txt", "7.jsonl", "8.tar"}
    assert sum("7.jsonl" in p["name"] for p in report.problems) == 3
    kept = lines_of(tmp_path / "out")
    assert {"good line here", "ca va tres bien", "from a manifest", "fine at first"} <= set(kept)
    assert report.dropped["undecodable"] == 1 and accounted(report)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["problems"] == report.problems


def test_endless_lines_stay_bounded(tmp_path):
    (tmp_path / "t.txt").write_text(
        "x" * 100_000 + "\n" + "word " * 20_000 + "\n" + "End it. " * 12_500 + "y" * 3_000_000
    )
    report = prepare([str(tmp_path / "t.txt")], tmp_path / "out", options=PrepareOptions(layout="lines"))
    assert lines_of(tmp_path / "out") == ["end it"]
    assert report.dropped["too long"] >= 3 and accounted(report)


def test_bad_options_and_missing_files(tmp_path):
    for bad in (
        {"profile": "x"},
        {"layout": "x"},
        {"hold_out": 1.0},
        {"min_words": 0},
        {"min_words": 9, "max_words": 3},
        {"workers": 0},
    ):
        with pytest.raises(BadInputError):
            PrepareOptions(**bad)
    with pytest.raises(BadInputError, match="no text file matches"):
        prepare([str(tmp_path / "*.none")], tmp_path / "out")
    with pytest.raises(BadInputError, match="as a glob"):
        prepare([str(tmp_path)], tmp_path / "out")


@pytest.mark.corpora
@pytest.mark.skipif(not (CORPORA / "text").is_dir(), reason="the corpora are not beside the checkout (ILME_CORPORA)")
def test_shared_text_has_the_words_its_description_says(tmp_path):
    report = prepare(
        [str(CORPORA / "text" / "home-commands-slurp.txt.xz")],
        tmp_path / "out",
        options=PrepareOptions(deduplicate=False),
    )
    assert not report.problems and accounted(report)
    assert report.train_words == pytest.approx(190_000, rel=0.05)
