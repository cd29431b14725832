"""What is suggested as phrases: names and rare words, those that matter most first."""

from __future__ import annotations

import pytest

from ilme.cli import main
from ilme.errors import BadInputError
from ilme.ilm import internal_lm
from ilme.lm.phrase_list import read_phrases
from ilme.recogniser.loading import load_model
from ilme.search.rescoring import sequence_scores
from ilme.workflows.suggest import _words, suggest_phrases
from tests.checkpoints import write_checkpoints

LINES = ["The whale swam. Fezziwig saw the whale.", "Then Fezziwig's boat came to the quay.", "the boat was calm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoints(tmp_path_factory.mktemp("networks"))


def test_capitals_at_the_beginning_say_nothing():
    words = _words(LINES)
    assert words["whale"] == 2 and words["Fezziwig"] == 2 and words["boat"] == 2
    assert words["the"] == 4 and "The" not in words
    assert _words(["Scrooge! he said to Scrooge"])["Scrooge"] == 2


def test_words_are_ranked_by_what_the_internal_lm_thinks_of_them(folder):
    model = load_model(folder / "rnnt")
    found = suggest_phrases(["whelm seam lase whelm"], model, least=1)
    assert {s.text for s in found} <= {"whelm", "seam", "lase"}
    worth = [s.times * s.surprise for s in found]
    assert worth == sorted(worth, reverse=True)
    for s in found:
        (score,) = sequence_scores(internal_lm(model), [model.tokenizer.encode(s.text)]).tolist()
        assert s.surprise == pytest.approx(-score, abs=0.01) and len(s.pieces) > 1
    assert suggest_phrases(["whelm seam lase whelm"], model, count=1) == found[:1]
    for lines, least in (["1 2"], 1), ([], 1), (["whelm"], 2), (["whelm" * 100], 1):
        with pytest.raises(BadInputError, match=f"no word of 3 to 200 letters stands in the text {least} times"):
            suggest_phrases(lines, model, least=least)
    with pytest.raises(BadInputError, match="nothing to suggest"):
        suggest_phrases(["the the"], model)


def test_the_command_writes_a_file_of_phrases(folder, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("whelm seam whelm seam lase\n")
    assert main(["phrases", "suggest", str(text), "--model", str(folder / "rnnt")]) == 0
    (tmp_path / "names.txt").write_text(capsys.readouterr().out)
    assert {p.text for p in read_phrases(tmp_path / "names.txt")} <= {"whelm", "seam"}
    assert main(["phrases", "suggest", str(text)]) == 2
    assert "name the model with --model" in capsys.readouterr().err
