"""Language models with one thing wrong each: n-grams, ARPA, KenLM, mixtures, inventories, internal LMs."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ilme.errors import BadInputError, CheckpointError, IlmeError
from ilme.ilm import internal_lm
from ilme.ilm.files import load_internal_lm, save_internal_lm
from ilme.lm import ngram_file
from ilme.lm.kenlm_binary import KenLMScorer
from ilme.lm.mixing import Mixture, read_mixture, write_mixture
from ilme.lm.ngram import NGramScorer, load_ngram
from ilme.lm.ngram_sorted import train_sorted
from ilme.recogniser.loading import load_lm
from ilme.runtime.tensors import read_tensors, write_tensors
from ilme.testing import numbered_tokens, tiny
from ilme.tokens import Tokens
from tests.attacks.cases import Case, attacks, check_call

NESTED = "[" * 100_000
JUNK = {"a list": "[]", "nothing": "null", "a number": "1", "a text": '"x"', "half of it": '{"version"', "deep": NESTED}
NUMBERS = {"a text": "2", "nothing": None, "a half": 2.5, "true": True, "a list": [1]}
POISON = {"NaN": float("nan"), "+inf": float("inf"), "-inf": float("-inf")}
TOKENS = Tokens(("<eos>", "<unk>", "▁a", "▁b", "▁c"), sos=0, eos=0, unk=1)
ARPA = """\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-1\t</s>
-99\t<s>\t-0.1
-0.5\t▁a\t-0.2
-0.6\t▁b\t-0.2
-0.7\t▁c\t-0.2

\\2-grams:
-0.3\t<s> ▁a\t-0.1
-0.4\t▁a ▁b\t-0.1
-0.4\t▁b ▁c\t-0.1

\\3-grams:
-0.2\t<s> ▁a ▁b

\\end\\
"""


# --- what NGramScorer.save writes -------------------------------------------------------------------------------------

Arrays = dict[str, Any]


@cache
def stored() -> tuple[Arrays, dict[str, str]]:
    """Arrays and header of a tiny model."""
    import tempfile

    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "a.arpa").write_text(ARPA, encoding="utf-8")
        NGramScorer.from_arpa(path / "a.arpa", TOKENS).save(path / "a.safetensors")
        with safe_open(path / "a.safetensors", "numpy") as reader:
            arrays = {k: v.copy() for k, v in load_file(path / "a.safetensors").items()}
            wide = {k: v.astype(np.int64) if v.dtype.kind == "i" else v for k, v in arrays.items()}  # room for the huge
            return wide, reader.metadata()


def ngram(damage: Callable[[Arrays, dict[str, Any]], Any]) -> Callable[[Path], Path]:
    """Writes the model after `damage` was done to its arrays and its header."""

    def make(folder: Path) -> Path:
        arrays, metadata = stored()
        arrays, header = {k: v.copy() for k, v in arrays.items()}, json.loads(metadata["ngram"])
        damage(arrays, header)
        save_file(arrays, folder / "a.safetensors", metadata | {"ngram": json.dumps(header)})
        return folder / "a.safetensors"

    return make


def at(name: str, index: int, value: Any) -> Callable[[Path], Path]:
    return ngram(lambda arrays, _: arrays[name].__setitem__(index, value))


def head(**values: Any) -> Callable[[Path], Path]:
    return ngram(lambda _, header: header.update(values))


def ngram_cases() -> Iterator[Case]:
    file = "a.safetensors is damaged"
    nodes, arcs = len(stored()[0]["backoff"]), len(stored()[0]["key"])
    for name, length in {"key": arcs, "target": arcs, "shorter": nodes, "first": nodes + 1}.items():
        for index in (0, 3, length - 1):
            for value in (-1, 10**6, 2**62, -(2**62)):
                yield Case(f"{name}[{index}] = {value}", at(name, index, value), CheckpointError, (file, name))
    for name in ("log_prob", "backoff"):
        for index in (0, 4, -1):
            for what in ("NaN", "+inf"):
                yield Case(f"{name}[{index}] = {what}", at(name, index, POISON[what]), CheckpointError, (file, name))
            yield Case(f"{name}[{index}] = 1e9", at(name, index, 1e9), CheckpointError, (file, name))
    yield Case("reversed keys", ngram(lambda a, _: a.update(key=a["key"][::-1].copy())), CheckpointError, (file, "key"))
    yield Case("a key twice", at("key", arcs - 1, int(stored()[0]["key"][-2])), CheckpointError, (file, "ascending"))
    yield Case("a back-off to itself", at("shorter", 7, 7), CheckpointError, (file, "to an earlier one"))

    def cycle(arrays: Arrays, _: Any) -> None:
        arrays["shorter"][7:9] = 8, 7

    yield Case("a cycle of back-offs", ngram(cycle), CheckpointError, (file, "to an earlier one"))
    chain = ngram(lambda a, _: a.update(shorter=np.maximum(np.arange(nodes) - 1, 0)))
    yield Case("a chain of back-offs", chain, CheckpointError, (file, "than order 3 allows"))
    for name in ("key", "log_prob", "target", "backoff", "shorter", "first"):
        yield Case(f"no {name}", ngram(lambda a, _, n=name: a.pop(n)), CheckpointError, (file, "it must hold"))
        short = ngram(lambda a, _, n=name: a.update({n: a[n][:-1].copy()}))
        yield Case(f"{name} too short", short, CheckpointError, (file,))
        empty = ngram(lambda a, _, n=name: a.update({n: a[n][:0].copy()}))
        yield Case(f"{name} empty", empty, CheckpointError, (file,))
        square = ngram(lambda a, _, n=name: a.update({n: a[n][:, None].copy()}))
        yield Case(f"{name} as a table", square, CheckpointError, (file, f"{name} is no list"))
        other = np.float32 if name in ("key", "target", "shorter", "first") else np.int64
        kind = ngram(lambda a, _, n=name, t=other: a.update({n: a[n].astype(t)}))
        yield Case(f"{name} of another type", kind, CheckpointError, (file, f"{name} is no list"))
    yield Case("an array more", ngram(lambda a, _: a.update(more=np.zeros(1))), CheckpointError, (file, "more"))
    for value in (0, -1, 1, 2, 101, 10**9):
        yield Case(f"order {value}", head(order=value), CheckpointError, (file, "order"))
    for name, value in NUMBERS.items():
        yield Case(f"order is {name}", head(order=value), CheckpointError, (file, "order must be a whole number"))
        if name != "nothing":
            yield Case(f"unknown is {name}", head(unknown=value), CheckpointError, (file, "unknown must be"))
        if name != "a list":
            yield Case(f"missing is {name}", head(missing=value), CheckpointError, (file, "missing must be"))
    for value in (-1, 5, 10**9):
        yield Case(f"missing {value}", head(missing=[value], unknown=1), CheckpointError, (file, "among the 5 tokens"))
        yield Case(f"unknown {value}", head(missing=[1], unknown=value), CheckpointError, (file, "among the 5 tokens"))
    yield Case("missing without unknown", head(missing=[1], unknown=None), CheckpointError, (file, "need the id"))
    for name, value in {"more": 9, "fewer": 3, "none": 0}.items():
        tokens = {"pieces": [f"p{i}" for i in range(value)]}
        yield Case(f"{name} tokens", head(tokens=tokens, missing=[], unknown=None), CheckpointError, (file,))
    for name, tokens in {
        "a list": [],
        "nothing": None,
        "a text": "abc",
        "no pieces": {},
        "odd": {"pieces": "abc"},
    }.items():
        yield Case(f"tokens are {name}", head(tokens=tokens), CheckpointError, (file,))
    for name in ("order", "tokens"):
        yield Case(f"no {name} in the header", ngram(lambda _, h, n=name: h.pop(n)), CheckpointError, (file, name))
    for name, text in JUNK.items():
        yield Case(f"the header is {name}", other_header(ngram=text), CheckpointError, (file, "entry 'ngram'"))
    for name in ("ilme-ngram-3", "", "x"):
        yield Case(f"format {name!r}", other_header(format=name), CheckpointError, ("is not an n-gram model",))


def other_header(**values: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        save_file(stored()[0], folder / "a.safetensors", stored()[1] | values)
        return folder / "a.safetensors"

    return make


@attacks(list(ngram_cases()))
def test_stored_ngrams(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, load_ngram)


@attacks([replace(case, full=True) for case in ngram_cases()])
def test_stored_ngrams_that_are_mapped(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_file, "LARGE", 0)
    check_call(case, tmp_path, load_ngram)


def _cut(file: Path, other: Path) -> None:
    os.truncate(file, 10)


def _copied_over(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes()[::-1] * 2)


def _gone(file: Path, other: Path) -> None:
    file.unlink()


def _renamed(file: Path, other: Path) -> None:
    other.replace(file)


@pytest.mark.parametrize(
    ("change", "large"), [(_cut, False), (_copied_over, False), (_gone, False), (_gone, True), (_renamed, True)]
)
def test_files_that_change_while_they_are_used(
    change: Callable[[Path, Path], None], large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was loaded stays as it was: a file that was cut off once ended the process with SIGBUS."""
    monkeypatch.setattr(ngram_file, "LARGE", 0 if large else 1 << 26)
    tokens = numbered_tokens(60, "attention")
    ids = np.random.default_rng(0).integers(0, 60, 4000)
    for seed, name in enumerate(("lm.safetensors", "other.safetensors")):
        train_sorted(np.roll(ids, seed) if seed else ids, tokens, tmp_path / name)
    file = tmp_path / "lm.safetensors"
    assert file.stat().st_size > 1 << 17  # many pages
    used, kept = load_ngram(file), load_ngram(tmp_path / "lm.safetensors")
    histories = torch.randint(0, 60, (200,), generator=torch.Generator().manual_seed(0))
    want = kept.score(histories, kept.start(200)[1])[0]
    change(file, tmp_path / "other.safetensors")
    assert torch.equal(used.score(histories, used.start(200)[1])[0], want)


@pytest.mark.parametrize("name", ["log_prob", "backoff"])
def test_what_is_impossible_is_never(name: str, tmp_path: Path) -> None:
    """−inf is a legal log-probability; it is brought to the value that stands for never, so that 0 · it is 0."""
    scorer = load_ngram(at(name, 2, -np.inf)(tmp_path))
    rows, state = scorer.start(1)
    rows = torch.cat([rows, scorer.score(torch.tensor([2]), state)[0]])
    assert rows.isfinite().all()


def test_the_umask_says_who_may_read(tmp_path: Path) -> None:
    scorer = load_ngram(ngram(lambda *_: None)(tmp_path))
    model = tiny("rnnt")
    before = os.umask(0o022)
    try:
        scorer.save(tmp_path / "lm.safetensors")
        save_internal_lm(tmp_path / "internal.safetensors", internal_lm(model, "removed"))
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("lm.safetensors", "internal.safetensors")]
    assert modes == [0o644, 0o644]


# --- ARPA -------------------------------------------------------------------------------------------------------------


def text(content: str | bytes, name: str = "a.arpa") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    return make


def changed(old: str, new: str) -> Callable[[Path], Path]:
    assert old in ARPA
    return text(ARPA.replace(old, new, 1))


ORDERS = "".join(f"ngram {k}=1\n" for k in range(1, 200))
PACKED = gzip.compress(ARPA.encode())
ARPA_CASES = [
    *(
        Case(f"ngram {order}={count}", changed(f"ngram {order}={n}", f"ngram {order}={count}"), BadInputError, words)
        for order, n in ((1, 5), (2, 3), (3, 1))
        for count, words in {
            "-1": ("line", "expected 'ngram"),
            "x": ("line", "expected 'ngram"),
            "1e9": ("line", "expected 'ngram"),
            "1.5": ("line", "expected 'ngram"),
            "": ("line", "expected 'ngram"),
            "999999999999": ("line", "bytes of the file can hold"),
            "9" * 5000: ("line", "expected 'ngram"),
            "100": ("a.arpa", "line"),
            str(n + 1): ("a.arpa", "line"),
            "0": ("a.arpa",),
        }.items()
    ),
    *(
        Case(
            f"{old.split()[-1]} with {value}", changed(old, f"{value}\t{old.split(chr(9), 1)[1]}"), BadInputError, words
        )
        for old in ("-0.5\t▁a\t-0.2", "-0.4\t▁a ▁b\t-0.1", "-0.2\t<s> ▁a ▁b")
        for value, words in {
            "nan": ("a.arpa, line", "not possible"),
            "inf": ("a.arpa, line", "not possible"),
            "0.5": ("a.arpa, line", "not possible"),
            "1e999": ("a.arpa, line", "not possible"),
            "x": ("a.arpa, line", "not a number"),
            "0x1": ("a.arpa, line", "not a number"),
        }.items()
    ),
    *(
        Case(
            f"{old} back-off {value}", changed(f"{old}\t{n}", f"{old}\t{value}"), BadInputError, ("a.arpa, line", word)
        )
        for old, n in (("▁a", "-0.2"), ("▁a ▁b", "-0.1"))
        for value, word in {
            "nan": "not possible",
            "inf": "not possible",
            "1e9": "not possible",
            "101": "not possible",
            "x": "not a number",
        }.items()
    ),
    Case("200 orders", text("\\data\\\n" + ORDERS + "\\1-grams:\n"), BadInputError, ("more than 100 orders",)),
    Case("no counts", changed("ngram 1=5\nngram 2=3\nngram 3=1\n", ""), BadInputError, ("counts no n-grams",)),
    Case("an n-gram twice", changed("▁b ▁c\t", "▁a ▁b\t"), BadInputError, ("stands twice",)),
    Case("a context that is not there", changed("<s> ▁a ▁b", "▁c ▁a ▁b"), BadInputError, ("lower order lacks",)),
    Case("the start inside", changed("▁a ▁b\t", "▁a <s>\t"), BadInputError, ("start can only come first",)),
    Case("no end", changed("\\end\\\n", ""), BadInputError, ("a.arpa ends after line", "cut off")),
    Case("more after the end", changed("\\end\\", "\\4-grams:"), BadInputError, ("expected \\end\\",)),
    Case("of other words", changed("▁c\t-0.2", "zebra\t-0.2"), BadInputError, ("'zebra' is not one of",)),
    Case("NUL bytes", text(bytes(3000)), BadInputError, ("a.arpa",)),
    Case("not UTF-8", text(ARPA.encode("utf-16")), BadInputError, ("a.arpa is not an ARPA file",)),
    Case("half a gzip", text(PACKED[: len(PACKED) // 2], "a.arpa.gz"), BadInputError, ("a.arpa.gz is not", "damaged")),
    Case("damage in a gzip", text(PACKED[:30] + b"\xff" * 30 + PACKED[60:], "a.arpa.gz"), BadInputError, ("damaged",)),
    Case("no gzip", text(ARPA, "a.arpa.gz"), BadInputError, ("a.arpa.gz is not an ARPA file",)),
    Case("an empty gzip", text(gzip.compress(b""), "a.arpa.gz"), BadInputError, ("cut off",)),
    *(
        Case(f"cut at {part:.0%}", text(ARPA.encode()[: int(part * len(ARPA))]), BadInputError, ("a.arpa",))
        for part in (0, 0.02, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
    ),
]


@attacks(ARPA_CASES)
def test_arpa(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, lambda path: load_ngram(path, TOKENS))


# --- inventories beside an n-gram -------------------------------------------------------------------------------------

GOOD_TOKENS = TOKENS.to_json()
INVENTORIES: dict[str, tuple[str, str]] = {
    **{name: (content, "deeply" if name == "deep" else "JSON") for name, content in JUNK.items()},
    "no pieces": ("{}", "lacks the field 'pieces'"),
    "pieces are a text": (json.dumps(GOOD_TOKENS | {"pieces": "abcde"}), "pieces must be a list"),
    "pieces are numbers": (json.dumps(GOOD_TOKENS | {"pieces": [1, 2]}), "pieces must be a text"),
    "one more field": (json.dumps(GOOD_TOKENS | {"more": 1}), "no field 'more'"),
    **{
        f"{name} is {value!r}": (json.dumps(GOOD_TOKENS | {name: value}), name)
        for name in ("sos", "eos", "unk", "blank")
        for value in (-1, 5, 10**20, "0", 0.0, True, [0])
    },
    "not UTF-8": ("\udcff", "JSON"),
}


@attacks([Case(n, text(c.encode("utf-8", "surrogateescape"), "a.arpa.tokens.json"), CheckpointError,
               ("a.arpa.tokens.json", w)) for n, (c, w) in INVENTORIES.items()])  # fmt: skip
def test_inventories(case: Case, tmp_path: Path) -> None:
    (tmp_path / "a.arpa").write_text(ARPA, encoding="utf-8")
    check_call(case, tmp_path, lambda _: load_ngram(tmp_path / "a.arpa"))


# --- KenLM ------------------------------------------------------------------------------------------------------------


def kenlm(
    order: int = 2, counts: tuple[int, ...] = (5, 5), version: str = " format version 5\n", keep: int = 10**6
) -> bytes:
    """The header of a binary, and a thousand bytes that are no model."""
    magic = f"mmap lm http://kheafield.com/code{version}".encode().ljust(56, b"\0")
    sanity = struct.pack("<3f3IQ", 0, 1, -0.5, 1, 2**32 - 1, 0, 1)
    fixed = struct.pack("<B3xfiB3xI", order, 1.5, 2, 1, 1)
    return (magic + sanity + fixed + struct.pack(f"<{len(counts)}Q", *counts) + bytes(1000))[:keep]


KENLM = [
    Case(f"order {order}", text(kenlm(order), "a.bin"), CheckpointError, ("a.bin is a damaged KenLM", f"order {order}"))
    for order in (0, 101, 255)
]
KENLM += [
    Case(
        f"counts {counts}", text(kenlm(2, counts), "a.bin"), CheckpointError, ("a.bin is a damaged KenLM", "n-grams in")
    )
    for counts in ((0, 5), (2**63, 5), (5, 2**63), (10**6, 10**6))
]
KENLM += [
    Case(f"cut after {keep} bytes", text(kenlm(keep=keep), "a.bin"), CheckpointError, ("a.bin is a damaged KenLM",))
    for keep in (51, 60, 88, 100, 110, 120)
]
KENLM += [
    Case(f"a{name}", text(kenlm(version=name), "a.bin"), CheckpointError, ("another version, or was never completed",))
    for name in (" format version 4\n", " incomplete\n", "")
]


@attacks(KENLM)
def test_kenlm_headers(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, lambda path: KenLMScorer(path, TOKENS))


# --- mixtures ---------------------------------------------------------------------------------------------------------


def mixture(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        ngram(lambda *_: None)(folder)
        lm, file = folder / "a.safetensors", folder / "mix.json"
        write_mixture(file, Mixture((lm, lm), (0.25, 0.75)))
        about = json.loads(file.read_text())
        change(about)
        file.write_text(json.dumps(about))
        return file

    return make


def of_part(**values: Any) -> Callable[[Path], Path]:
    return mixture(lambda about: about["lms"][0].update(values))


def mixture_cases() -> Iterator[Case]:
    for name, content in JUNK.items():
        words = ("mix.json", "deeply" if name == "deep" else "JSON")
        yield Case(f"it is {name}", text(content, "mix.json"), CheckpointError, words)
    for name, value in {"2": 2, "nothing": None, "a text": "1", "a list": [1]}.items():
        yield Case(f"version {name}", mixture(lambda a, v=value: a.update(version=v)), CheckpointError, ("version",))
    for value in ("other", None, 5):
        make = mixture(lambda a, v=value: a.update(format=v))
        yield Case(f"format {value}", make, CheckpointError, ("mix.json is no mixture",))
    for name, value in {
        "nothing": None,
        "a text": "ab",
        "a mapping": {},
        "empty": [],
        "texts": ["a"],
        "odd": [{}],
    }.items():
        make = mixture(lambda a, v=value: a.update(lms=v))
        yield Case(f"lms are {name}", make, CheckpointError, ("mix.json is damaged",))
    for value in (-0.25, 1.25, 1e9, float("nan"), float("inf"), "0.25", None, True, [0.25], 0.5, 0.0):
        words = ("mix.json is damaged", "weight")
        yield Case(f"weight {value!r}", of_part(weight=value), CheckpointError, words)
    for name, value in {"nothing": None, "a number": 5, "empty": "", "NUL": "a\0b", "endless": "a" * 5000}.items():
        yield Case(f"lm is {name}", of_part(lm=value), CheckpointError, ("mix.json is damaged",))
    yield Case("an LM that is not there", of_part(lm="b.safetensors"), CheckpointError, ("which is not there",))
    yield Case("a folder", of_part(lm="."), CheckpointError, ("has changed since",))
    for value in ("", "0" * 16, None, 5):
        yield Case(f"content {value!r}", of_part(content=value), CheckpointError, ("mix.json",))
    for name in ("lm", "weight", "content"):
        make = mixture(lambda a, n=name: a["lms"][0].pop(n))
        yield Case(f"no {name}", make, CheckpointError, ("mix.json is damaged", f"lacks the field {name!r}"))
    yield Case("one field more", of_part(more=1), CheckpointError, ("no field 'more'",))


@attacks(list(mixture_cases()))
def test_mixtures(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, read_mixture)
    with pytest.raises(IlmeError):
        load_lm(tmp_path / "mix.json", TOKENS)


# --- internal LMs -----------------------------------------------------------------------------------------------------


@cache
def host() -> Any:
    return tiny("rnnt", units=12)


def internal(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], Path]:
    """Writes an internal LM after `change` was made to its tensors and its description."""

    def make(folder: Path) -> Path:
        file = folder / "internal.safetensors"
        width = host().start(1)[0].shape[1]
        save_internal_lm(file, internal_lm(host(), torch.ones(width)))
        tensors, header = read_tensors(file)
        tensors, about = {k: v.clone() for k, v in tensors.items()}, json.loads(header["ilme-internal"])
        change(tensors, about)
        write_tensors(file, tensors, {"ilme-internal": json.dumps(about)})
        return file

    return make


def said(**values: Any) -> Callable[[Path], Path]:
    return internal(lambda _, about: about.update(values))


def described(content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_tensors(folder / "internal.safetensors", {"vector": torch.ones(4)}, {"ilme-internal": content})
        return folder / "internal.safetensors"

    return make


def internal_cases() -> Iterator[Case]:
    file = "internal.safetensors"
    for tensor in ("vector", "fingerprint"):
        for name, number in POISON.items():
            make = internal(lambda t, _, k=tensor, v=number: t[k].view(-1).__setitem__(0, v))
            yield Case(
                f"{name} in the {tensor}", make, CheckpointError, (file, "is damaged", tensor, "NaN or infinite")
            )
    shapes = {
        "short": torch.ones(3),
        "a table": torch.ones(2, 2),
        "empty": torch.ones(0),
        "one number": torch.tensor(1.0),
    }
    for name, value in shapes.items():
        make = internal(lambda t, _, v=value: t.update(vector=v))
        yield Case(f"the vector is {name}", make, CheckpointError, (file, "made for another model"))
        make = internal(lambda t, _, v=value: t.update(fingerprint=v))
        yield Case(f"the fingerprint is {name}", make, CheckpointError, (file, "another training"))
    whole = internal(lambda t, _: t.update(fingerprint=t["fingerprint"].long()))
    yield Case("the fingerprint is of whole numbers", whole, CheckpointError, (file, "another training"))
    for value in (0, -1, 101, 1e9, float("nan"), float("inf"), "1", None, True, [1]):
        yield Case(f"scale {value!r}", said(scale=value), CheckpointError, (file, "scale must lie between 0 and 100"))
    for value in ("telepathy", "", None, 5, ["learned"]):
        yield Case(f"how {value!r}", said(how=value), CheckpointError, (file, "is no internal LM of this model"))
    for value in (3, 99, "2", None, [2]):
        yield Case(f"version {value!r}", said(version=value), CheckpointError, (file, "format version"))
    for value in ("aed", None, 5):
        yield Case(f"kind {value!r}", said(kind=value), CheckpointError, (file, "made for another model"))
    for value in (13, -1, "12", None):
        yield Case(f"tokens {value!r}", said(tokens=value), CheckpointError, (file, "made for another model"))
    for name in ("version", "kind", "tokens", "scale"):
        yield Case(f"no {name}", internal(lambda _, a, n=name: a.pop(n)), CheckpointError, (file,))
    for name, content in JUNK.items():
        words = (file, "entry 'ilme-internal' of its header,")
        yield Case(f"its description is {name}", described(content), CheckpointError, words)


@attacks(list(internal_cases()))
def test_internal_lms(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, lambda file: load_internal_lm(file, host()))


def test_without_damage_they_load(tmp_path: Path) -> None:
    assert load_internal_lm(internal(lambda *_: None)(tmp_path), host()).scale == 1
    assert load_ngram(ngram(lambda *_: None)(tmp_path)).order == 3
    assert load_ngram(text(ARPA)(tmp_path), TOKENS).order == 3
    assert read_mixture(mixture(lambda _: None)(tmp_path)).weights == (0.25, 0.75)
