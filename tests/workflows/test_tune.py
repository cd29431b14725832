"""Tuning as a job: what a folder of decodes must match."""

from __future__ import annotations

import importlib
import types

import pytest

from ilme.data.utterances import Utterance
from ilme.recogniser.loading import Parts, load_recogniser
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.decoding import read_set
from ilme.workflows.tune import tune
from tests.checkpoints import TEXTS, write_checkpoints, write_set

module = importlib.import_module("ilme.workflows.tune")
OPTIONS = TuningOptions(beam=2, max_decodes=1, replicates=0, grid=2, restarts=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoints(tmp_path_factory.mktemp("tune"), ["rnnt", "lm"])


def test_decodes_of_another_recogniser_are_not_continued(folder, tmp_path):
    recogniser = load_recogniser(Parts(str(folder / "rnnt"), str(folder / "lm"), "internal"))
    dev = read_set(write_set(tmp_path, "dev", TEXTS[:3]))

    def decodes(about):
        tune(recogniser, dev, out=tmp_path / "out", options=OPTIONS, about=about)
        return {path.parent.name for path in (tmp_path / "out" / "decodes").glob("*/part-*.jsonl")}

    first = decodes({"model": "first"})
    assert len(first) >= 1 and decodes({"model": "first"}) == first
    both = decodes({"model": "second"})
    assert len(both) == 2 * len(first) and first < both


@pytest.mark.parametrize(("asked", "used"), [(0, 7), (3, 3)])
def test_weights_are_tuned_as_the_search_ranks(monkeypatch, asked, used):
    """The exponent of the length is the recogniser's, the beam too unless one is asked for; speakers are told."""
    given = {}
    monkeypatch.setattr(
        module, "find_weights", lambda decoder, references, **rest: given.update(rest, references=references)
    )
    recogniser = types.SimpleNamespace(
        options=types.SimpleNamespace(beam=7), length_exponent=0.75, subtracted=None, listed=()
    )
    utterances = [Utterance("a", "one", None, speaker="x"), Utterance("b", "two", None)]
    module.tune_decoder(None, recogniser, utterances, TuningOptions(beam=asked))
    assert (given["options"].beam, given["options"].length_exponent) == (used, 0.75)
    assert given["references"] == {"a": "one", "b": "two"} and given["speakers"] == {"a": "x", "b": ""}
    assert "on_step" not in given
