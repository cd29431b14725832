"""Domain folders whose card, or what it names, is not as `ilme adapt` wrote it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.ilm.files import save_internal_lm
from ilme.lm.mixing import Mixture, write_mixture
from ilme.lm.ngram import NGramScorer, lm_tokens
from ilme.recogniser.domain import CARD, INTERNAL_LM, LM, Domain, load_domain
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import MOST, default_options, options_from_json, with_beam
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import file_hash
from ilme.search.attention import AttentionOptions
from tests.attacks.cases import Case, attacks, check_call
from tests.checkpoints import write_checkpoints

NESTED = "[" * 100_000
JUNK = {"a list": "[]", "nothing": "null", "a number": "1", "a text": '"x"', "half of it": '{"format"', "deep": NESTED}
SECRET = "root:x:0:0:a secret of another file"
GOOD: dict[str, Any] = {
    "format": "ilme-domain",
    "version": 2,
    "model": "some/model",
    "model_options": {"language": "en"},
    "kind": "whisper",
    "weights": {"lm": 0.3, "subtracted": 0.1, "length": 0.0},
    "internal": "silence",
    "search": {"kind": "attention", "beam": 4},
    "lm": LM,
    "style": "restore",
    "report": {},
    "files": {},
}


def card(where: str, value: Any) -> Callable[[Path], Path]:
    """Writes a card that has another value at a path such as search.beam."""

    def make(folder: Path) -> Path:
        data = json.loads(json.dumps(GOOD))
        *path, last = where.split(".")
        at = data
        for name in path:
            at = at[name]
        at[last] = value
        (folder / CARD).write_text(json.dumps(data), encoding="utf-8")
        return folder

    return make


def written(content: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / CARD).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return make


NOT_A_TEXT = {"nothing": None, "a number": 5, "true": True, "a list": ["x"], "a mapping": {"x": 1}}
NOT_A_NUMBER = {"nothing": None, "a text": "4", "true": True, "a list": [4], "NaN": float("nan")}
NOT_A_MAPPING = {"a text": "x", "a number": 5, "a list": [1], "true": True}
NOT_A_SWITCH = {"a text": "no", "a number": 0, "nothing": None, "a list": []}


def card_cases() -> Iterator[Case]:
    again = (CARD, "is damaged", "run `ilme adapt` again")
    for name, content in JUNK.items():
        words = (CARD, "deeply" if name == "deep" else "JSON")
        yield Case(f"the card is {name}", written(content), CheckpointError, words)
    yield Case("the card is empty", written(""), CheckpointError, (CARD, "is not JSON"))
    yield Case("the card is not UTF-8", written(b"\xff\xfe\xfa"), CheckpointError, (CARD, "is not JSON"))
    yield Case("a number of 5,000 digits", written('{"version": ' + "9" * 5000 + "}"), CheckpointError, (CARD,))
    yield Case("no card", lambda folder: folder, CheckpointError, ("is no domain folder",))
    for field in ("model", "internal", "lm", "style", "kind"):
        for name, value in NOT_A_TEXT.items():
            yield Case(f"{field} is {name}", card(field, value), CheckpointError, (*again, f"{field} must be a text"))
    for field in ("model_options", "report", "files", "weights"):
        for name, value in NOT_A_MAPPING.items():
            yield Case(f"{field} is {name}", card(field, value), CheckpointError, again)
    for name, value in NOT_A_MAPPING.items():
        yield Case(f"search is {name}", card("search", value), CheckpointError, (*again, "search must be a mapping"))
    for field in ("lm", "subtracted", "length"):
        for name, value in NOT_A_NUMBER.items():
            yield Case(f"weights.{field} is {name}", card(f"weights.{field}", value), CheckpointError, (*again, field))
        for value in (1e9, 100.5, float("inf"), -float("inf"), -1e9):
            yield Case(f"weights.{field} is {value}", card(f"weights.{field}", value), CheckpointError, (*again, field))
    yield Case("weights.lm is below 0", card("weights.lm", -0.1), CheckpointError, (*again, "must not be negative"))
    for name in ("lm", "subtracted", "length"):
        rest = {n: value for n, value in GOOD["weights"].items() if n != name}
        told = (*again, f"weights holds no {name}")
        yield Case(f"weights without {name}", card("weights", rest), CheckpointError, told)
    yield Case("version is true", card("version", True), CheckpointError, ("version True", "run `ilme adapt` again"))
    yield Case("weights.more", card("weights.more", 1), CheckpointError, (*again, "no field 'more'"))
    for field in ("beam", "nbest", "max_length", "max_repeats", "repeat_span", "look_back", "stop_after"):
        for name, value in (NOT_A_NUMBER | {"a half": 2.5, "negative": -1}).items():
            yield Case(f"search.{field} is {name}", card(f"search.{field}", value), CheckpointError, (*again, field))
        for value in (MOST[field] + 1, 10**9, 10**30):
            said = f"{field} is a number with 31 digits" if value == 10**30 else f"search.{field} must be at most"
            words = (*again, said) if field in ("beam", "max_length") else again
            yield Case(f"search.{field} is {value}", card(f"search.{field}", value), CheckpointError, words)
    for field in ("length_normalisation", "end_margin", "certain_end", "stop_margin", "labels_per_second"):
        for name, value in (NOT_A_NUMBER | {"negative": -0.5}).items():
            yield Case(f"search.{field} is {name}", card(f"search.{field}", value), CheckpointError, (*again, field))
    for field in ("lm_eos", "plausible_length"):
        for name, value in NOT_A_SWITCH.items():
            words = (*again, f"{field} must be true or false")
            yield Case(f"search.{field} is {name}", card(f"search.{field}", value), CheckpointError, words)
    for name, value in {"a text": "ab", "of texts": ["a"], "a number": 3, "of halves": [1.5]}.items():
        yield Case(f"repeat_ignores is {name}", card("search.repeat_ignores", value), CheckpointError, again)
    for value in ("", "greedy", None, 5, ["attention"]):
        yield Case(f"search.kind is {value!r}", card("search.kind", value), CheckpointError, (*again, "search.kind"))
    yield Case("an unknown option", card("search.speed", 1), CheckpointError, (*again, "no field 'speed'"))
    yield Case("a transducer's option", card("search.max_symbols", 1), CheckpointError, (*again, "max_symbols"))
    for value in ("foo", "", "Restore", "auto", "restore "):
        yield Case(f"style {value!r}", card("style", value), CheckpointError, (*again, "style must be one of"))
    for value in ("telepathy", "Silence", "../silence", "x" * 10_000):
        yield Case(
            f"internal {value[:20]!r}", card("internal", value), CheckpointError, (*again, "no internal LM is called")
        )
    yield Case("no internal LM named", card("internal", ""), CheckpointError, (*again, "does not name"))
    yield Case("no LM named", card("lm", ""), CheckpointError, (*again, "does not name"))
    for value in ("", "a\0b"):
        yield Case(f"model {value!r}", card("model", value), CheckpointError, (*again, "names no model"))
    for name, value in {"NUL": "a\0b", "endless": "a" * 300, "half a character": "\ud800"}.items():
        yield Case(f"lm is {name}", card("lm", value), CheckpointError, again)
        yield Case(f"a file is {name}", card("files", {value: "0" * 64}), CheckpointError, again)
    for value in ("", "0" * 63, "z" * 64, None, 5, ["0" * 64]):
        yield Case(f"the hash is {value!r}", card("files", {LM: value}), CheckpointError, (*again, "no SHA-256"))
    for name in ("name", "device", "dtype"):
        words = (*again, f"model_options.{name} is no option")
        yield Case(f"model_options.{name}", card(f"model_options.{name}", "x"), CheckpointError, words)
    for name, value in {"nothing": None, "a list": [1], "a mapping": {}}.items():
        yield Case(f"language is {name}", card("model_options.language", value), CheckpointError, again)
    for value in (0, 3, 99, "2", None, [2], 2.5, -1):
        yield Case(f"version {value!r}", card("version", value), CheckpointError, (CARD, "this version of ilme reads"))
    for value in ("other", None, 5, [], "x" * 10_000):
        yield Case(f"format {str(value)[:20]}", card("format", value), CheckpointError, ("reads ilme-domain 2",))
    for name in ("model", "model_options", "weights", "internal", "search", "lm", "report"):
        text = json.dumps({k: v for k, v in GOOD.items() if k != name})
        yield Case(f"no {name}", written(text), CheckpointError, (*again, name))
    first = json.dumps(GOOD | {"version": 1, "search": None})
    yield Case("no search in the first version", written(first), CheckpointError, again)


@attacks(list(card_cases()))
def test_cards(case: Case, tmp_path: Path) -> None:
    error = check_call(case, tmp_path, Domain.read)
    assert len(str(error)) < 800


@pytest.mark.parametrize("data", [GOOD, GOOD | {"version": 1}, {k: v for k, v in GOOD.items() if k != "style"}])
def test_good_cards_are_read(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / CARD).write_text(json.dumps(data))
    domain = Domain.read(tmp_path)
    assert domain.search is not None and domain.search.beam == 4 and domain.weights == FusionWeights(0.3, 0.1)


# --- what a card names ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bigram and an internal LM; beside it a tiny RNN-T, and a file that is no business of its card."""
    base = tmp_path_factory.mktemp("cards")
    write_checkpoints(base, ("rnnt",))
    model = load_model(base / "rnnt")
    folder = base / "domain"
    folder.mkdir()
    names = [str(i) for i in range(1, len(model.tokens))]
    unigrams = "".join(f"-1.5\t{name}\t-0.1\n" for name in ("</s>", "<s>", *names))
    head = f"# units=ids\n\\data\\\nngram 1={len(names) + 2}\nngram 2=1\n\n\\1-grams:\n"
    (base / "lm.arpa").write_text(f"{head}{unigrams}\n\\2-grams:\n-0.5\t2 3\n\n\\end\\\n")
    NGramScorer.from_arpa(base / "lm.arpa", lm_tokens(model.tokens)).save(folder / LM)
    save_internal_lm(folder / INTERNAL_LM, internal_lm(model, "removed"))
    weights = FusionWeights(lm=0.3, subtracted=0.1)
    Domain("../rnnt", kind="rnnt", weights=weights, internal="removed", search=default_options(model, 2)).save(folder)
    (base / "secret.arpa").write_text(SECRET)
    return folder


def named(**changes: Any) -> Callable[[Path], None]:
    """Changes a folder's card."""

    def change(folder: Path) -> None:
        data = json.loads((folder / CARD).read_text())
        (folder / CARD).write_text(json.dumps(data | changes))

    return change


def link(folder: Path) -> None:
    (folder / LM).unlink()
    (folder / LM).symlink_to(folder.parent / "secret.arpa")
    named(files={})(folder)


def link_internal(folder: Path) -> None:
    shutil.move(folder / INTERNAL_LM, folder.parent / "elsewhere.safetensors")
    (folder / INTERNAL_LM).symlink_to(folder.parent / "elsewhere.safetensors")
    named(files={})(folder)


def mixed(folder: Path) -> None:
    """A mixture in the folder of an LM that is not."""
    shutil.copy(folder / LM, folder.parent / "other.safetensors")
    write_mixture(folder / "mix.json", Mixture((folder.parent / "other.safetensors",), (1.0,)))
    named(lm="mix.json", files={})(folder)


def unlisted(name: str) -> Callable[[Path], None]:
    """Takes a file's hash out of the card."""

    def change(folder: Path) -> None:
        files = json.loads((folder / CARD).read_text())["files"]
        named(files={n: digest for n, digest in files.items() if n != name})(folder)

    return change


def damaged(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)

    return change


OUTSIDE = ("not inside the folder", "if you trust it, name it yourself")
PLACES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "the LM is a file elsewhere": (named(lm="../secret.arpa"), (*OUTSIDE, "lm='../secret.arpa'")),
    "the LM is a path in full": (named(lm="/etc/passwd"), (*OUTSIDE, "lm='/etc/passwd'")),
    "the LM is a way around": (named(lm="x/../../secret.arpa"), OUTSIDE),
    "the LM is the folder above": (named(lm=".."), OUTSIDE),
    "the LM is a device": (named(lm="/dev/zero"), OUTSIDE),
    "the LM is a link that leads out": (link, OUTSIDE),
    "the LM mixes others": (mixed, ("which is not inside the folder", "lm=")),
    "the internal LM is a link that leads out": (link_internal, ("which is not inside the folder",)),
    "the ranks are elsewhere": (named(model_options={"ranks": "../secret.arpa"}), (*OUTSIDE, "ranks='../secret.arpa'")),
    "the ranks are a path in full": (named(model_options={"ranks": "/etc/passwd"}), OUTSIDE),
    "the ranks are a number": (named(model_options={"ranks": 5}), ("rnnt", "ranks")),
    "a hash of a file elsewhere": (named(files={"../secret.arpa": "0" * 64}), ("not inside the folder",)),
    "a hash of /etc/passwd": (named(files={"/etc/passwd": "0" * 64}), ("not inside the folder",)),
    "a hash of a missing file": (named(files={"gone": "0" * 64}), ("lacks gone", "copy the whole folder")),
    "another LM": (damaged(LM), ("is not the file that domain.json was written for",)),
    "another internal LM": (damaged(INTERNAL_LM), ("is not the file that domain.json was written for",)),
    "an LM without a hash": (unlisted(LM), ("holds no hash of lm.safetensors",)),
    "an internal LM without a hash": (unlisted(INTERNAL_LM), ("holds no hash of internal.safetensors",)),
    "no LM": (lambda folder: (folder / LM).unlink(), (f"lacks {LM}",)),
    "no internal LM": (lambda folder: (folder / INTERNAL_LM).unlink(), (f"lacks {INTERNAL_LM}",)),
    "an LM that is not there": (named(lm="other.arpa"), ("other.arpa",)),
    "the card as LM": (named(lm=CARD), ("no mixture of LMs",)),
    "the internal LM of another way": (named(internal="learned"), ("names the internal LM 'learned'", "is 'removed'")),
    "a model of another kind": (named(kind="whisper"), ("made for a model of kind 'whisper'",)),
    "a model that is no file": (named(model="x" * 5000), ("names a model that cannot be one",)),
    "the card as model": (named(model=CARD), ("is no model",)),
    "options that the model does not take": (named(model_options={"language": "en"}), ("takes no language",)),
    "too wide a beam": (named(search={"kind": "transducer", "beam": 10**6}), ("search.beam must be at most 10000",)),
}


def copied(source: Path, change: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        shutil.copytree(source.parent, folder / "all", symlinks=True)
        change(folder / "all" / source.name)
        return folder / "all" / source.name

    return make


@pytest.mark.parametrize("name", PLACES)
def test_what_a_card_names(name: str, domain: Path, tmp_path: Path) -> None:
    change, words = PLACES[name]
    case = Case(name, copied(domain, change), (CheckpointError, BadInputError), words)  # type: ignore[arg-type]
    error = check_call(case, tmp_path, load_domain)
    assert "secret of" not in str(error) and "root:" not in str(error)


@pytest.mark.parametrize(
    "name", ["the LM is a file elsewhere", "the LM mixes others", "the LM is a link that leads out"]
)
def test_an_lm_elsewhere_is_named_by_who_loads_it(name: str, domain: Path, tmp_path: Path) -> None:
    folder = copied(domain, PLACES[name][0])(tmp_path)
    assert load_domain(folder, lm=folder.parent / "lm.arpa").lm is not None


def test_without_damage_it_loads(domain: Path) -> None:
    recogniser = load_domain(domain)
    assert isinstance(recogniser, Recogniser) and recogniser.lm is not None


# --- the same bounds for options that do not come from a file ---------------------------------------------------------


def test_a_beam_beyond_all_memory_is_refused(domain: Path) -> None:
    for make in (
        lambda: default_options(load_domain(domain).model, 10_001),
        lambda: with_beam(AttentionOptions(), 10**9),
    ):
        with pytest.raises(BadInputError, match=r"search\.beam must be at most 10000"):
            make()
    assert with_beam(AttentionOptions(), 10_000).beam == 10_000
    with pytest.raises(BadInputError, match="search must be a mapping"):
        options_from_json([])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 101, -101, True, "1", None])
@pytest.mark.parametrize("name", ["lm", "subtracted", "length"])
def test_weights_are_numbers_in_a_sane_range(name: str, value: Any) -> None:
    with pytest.raises(BadInputError, match=f"FusionWeights.{name} must be"):
        FusionWeights(**{name: value})


def test_the_cards_hash_is_of_the_whole_file(domain: Path) -> None:
    assert Domain.read(domain).files == {name: file_hash(domain / name) for name in (LM, INTERNAL_LM)}


def test_the_card_has_the_hash_of_all_that_is_read(domain: Path, tmp_path: Path) -> None:
    folder = copied(domain, lambda folder: None)(tmp_path)
    for name in ("card.md", "tuning.json", "ranks.tiktoken"):
        (folder / name).write_text(name)
    (folder / "lm").mkdir()
    (folder / "lm" / "config.json").write_text("{}")
    assert set(Domain.read(folder).save(folder).files) == {LM, INTERNAL_LM, "ranks.tiktoken", "lm/config.json"}
    (folder / "card.md").write_text("notes of somebody")
    load_domain(folder)
    (folder / "lm" / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json is not the file that domain.json was written for"):
        load_domain(folder)
