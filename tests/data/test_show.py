"""Statistics of a corpus, and their picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ilme.data.importing import import_corpus
from ilme.data.show import draw_picture, measure_corpus
from tests.data.speech_corpora import Spoken, utterances, write_folder, write_nemo


@pytest.fixture(scope="module")
def spoken() -> list[Spoken]:
    return utterances(40, speakers=10, seconds=(1.0, 1.4))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, spoken: list[Spoken]) -> Path:
    folder = tmp_path_factory.mktemp("show")
    write_nemo(folder / "corpus", spoken, extension="wav")
    (folder / "corpus" / "audio" / f"{spoken[-1].id}.wav").write_bytes(b"")
    import_corpus(str(folder / "corpus"), folder / "out")
    return folder / "out"


def test_statistics_are_those_of_the_corpus(corpus: Path, spoken: list[Spoken]) -> None:
    kept = spoken[:-1]
    words = Counter(word for item in kept for word in item.text.split())
    found = measure_corpus(corpus)
    assert found.utterances == 39
    assert found.hours == pytest.approx(sum(s.seconds for s in kept) / 3600, abs=1e-4)
    assert found.speakers == 10
    assert found.words == words.total()
    assert found.vocabulary == len(words)
    assert set(found.characters) == set(" ".join(words)) | {" "}
    assert found.rates == {16000: 39}
    assert found.rejected == {"zero bytes": 1}
    for histogram in (found.seconds, found.words_each, found.letters_a_second):
        assert sum(histogram.counts) == 39
        assert len(histogram.edges) == len(histogram.counts) + 1
        assert histogram.quantiles == sorted(histogram.quantiles)
    assert found.words_each.quantiles[0] == min(len(s.text.split()) for s in kept)
    assert found.seconds.quantiles[-1] == pytest.approx(max(s.seconds for s in kept), abs=1e-3)


def test_problems_are_named(tmp_path: Path) -> None:
    import_corpus(str(write_folder(tmp_path / "corpus", utterances(3))), tmp_path / "out")
    next((tmp_path / "corpus").rglob("*.ogg")).unlink()
    problems = " ".join(measure_corpus(tmp_path / "out").problems)
    assert "1 audio files are missing" in problems
    assert "no speaker is named" in problems


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_drawn(corpus: Path, tmp_path: Path, suffix: str) -> None:
    draw_picture(measure_corpus(corpus), tmp_path / f"picture.{suffix}", "corpus")
    head = (tmp_path / f"picture.{suffix}").read_bytes()[:100]
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in head
