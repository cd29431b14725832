"""Which text a study speaks and learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ilme.errors import BadInputError
from ilme.study.config import read_config
from ilme.study.stages import build_study
from ilme.study.texts import _rare_first, read_lines

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "configs" / "study" / "tiny.yaml"
WORDS = [
    "a lantern is a light in a case",
    "to meander is to wander as a river does",
    "tepid means neither hot nor cold",
]


def test_another_domains_training_text_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs/study").mkdir(parents=True)
    (tmp_path / "configs/study/tiny-text").symlink_to(ROOT / "configs/study/tiny-text")
    plain = build_study(read_config(PLAN), tmp_path / "plain", "cpu")
    plain.run(only=["text"])
    texts = tmp_path / "texts"
    for name in ("speeches", "novels"):
        (texts / name).parent.mkdir(exist_ok=True)
        (texts / name).symlink_to(ROOT / "configs/study/tiny-text" / name)
    folder = {"text.source.folder": "texts/{name}", "text.target.folder": "texts/{name}"}
    more = read_config(PLAN, {**folder, "text.source.also": ["words"], "text.held_out": 0, "speech.hours": 1.0})
    with pytest.raises(BadInputError, match="ilme data domains words"):
        build_study(more, tmp_path / "more", "cpu")
    (texts / "words").mkdir()
    (texts / "words/train.txt").write_text("\n".join(WORDS))
    study = build_study(more, tmp_path / "more", "cpu")
    assert study.keys["text"] != plain.keys["text"]
    study.run(only=["text"])
    first, second = (tmp_path / name / "text" for name in ("plain", "more"))
    assert set(WORDS) < set(read_lines(second / "spoken.txt")) and set(WORDS) < set(
        read_lines(second / "source-train.txt")
    )
    for name in ("source-dev", "source-test", "target-dev", "target-test"):
        assert read_lines(first / f"{name}.txt") == read_lines(second / f"{name}.txt")
    same = build_study(read_config(PLAN, folder), tmp_path / "same", "cpu")
    assert same.keys["text"] == plain.keys["text"]  # where the text lies does not matter


def test_longer_sentences_may_be_spoken_in_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    changes: dict[str, Any] = {"text.longest": 10, "speech.hours": 1.0, "speech.dev": 2, "speech.test": 2}
    spoken = {}
    for longest in (0, 14):
        config = read_config(PLAN, changes | {"text.train_longest": longest})
        build_study(config, tmp_path / str(longest), "cpu").run(only=["text"])
        texts = {path.stem: read_lines(path) for path in sorted((tmp_path / str(longest) / "text").glob("*.txt"))}
        spoken[longest] = texts.pop("spoken"), texts.pop("transcripts"), texts
    assert max(len(sentence.split()) for sentence in spoken[0][0]) == 10
    assert max(len(sentence.split()) for sentence in spoken[14][0]) == 14
    assert set(spoken[0][1]) < set(spoken[14][1])
    assert spoken[0][2] == spoken[14][2]  # dev, test, held-out and LM text stay


def test_sentences_with_rare_words_come_first() -> None:
    sentences = ["the cat", "the dog", "the cat", "a cat sat", "the dog", "the cat"]
    assert _rare_first(sentences, 1) == ["the cat", "the dog", "a cat sat", "the cat", "the dog", "the cat"]
    assert _rare_first(sentences, 2) == ["the cat", "the dog", "the cat", "a cat sat", "the dog", "the cat"]
    assert _rare_first(sentences, 0) == sentences
