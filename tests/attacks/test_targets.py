"""Outputs that are inputs: they are refused, and what was to be read is as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.attacks.cases import run_here
from tests.attacks.jobs import make_inputs

CASES = [  # HERE is the file that is both read and written
    ("text.txt", "text bpe HERE HERE --vocab_size 20"),
    ("text.txt", "text bpe te*.txt HERE --vocab_size 20"),
    ("text.txt", "text tokenize HERE bpe.model HERE"),
    ("bpe.model", "text tokenize text.txt HERE HERE"),
    ("train.txt", "text prepare HERE ."),
    ("heldout.txt", "text prepare text.txt . --exclude HERE"),
    ("text.tok", "ngram train HERE --out HERE"),
    ("text.tok", "ngram train HERE --out ./link/../HERE"),
    ("lm.safetensors", "lm mix HERE lm HERE --text text.txt"),
    ("mix.json", "lm mix lm lm HERE --text HERE"),
    ("component/model.safetensors", "lm replace component inner component"),
    ("component/model.safetensors", "lm replace component inner HERE"),
    ("inner/model.safetensors", "lm replace component inner inner"),
    ("rnnt/model.safetensors", "ilm learn rnnt text.txt HERE"),
    ("results.json", "compare HERE --out HERE"),
    ("results.json", "report HERE --out HERE --audio 0"),
    ("cuts-train.jsonl.gz", "data split HERE . --shares train:0.5 dev:0.5"),
    ("cuts.jsonl.gz", "data import HERE ."),
    ("cuts.jsonl.gz", "data show HERE --picture HERE"),
]
COPIES = {
    "train.txt": "text.txt", "heldout.txt": "text.txt", "lm.safetensors": "lm/model.safetensors",
    "mix.json": "text.txt", "cuts-train.jsonl.gz": "cuts.jsonl.gz",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_inputs(tmp_path_factory.mktemp("inputs"))
    for name, source in COPIES.items():
        shutil.copyfile(place / source, place / name)
    (place / "link").mkdir()
    return place


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("file", "words"), CASES, ids=[words for _, words in CASES])
def test_an_output_that_is_an_input(file: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    result = run_here(words.replace("HERE", file).split())
    assert result.status == 2, result.err
    assert len(result.err.strip().splitlines()) == 1 and Path(file).parts[0] in result.err
    assert any(said in result.err for said in ("would be lost", "is a .json file", "is a .png")), result.err
    assert contents(folder) == before
