"""The plan of a decoder: what another process makes of it, and what a folder of earlier results must match."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import Processes
from ilme.recogniser.loading import Parts
from ilme.recogniser.options import SearchSettings
from ilme.workflows.decoding import DecoderPlan, check_whole, planned, read_set
from tests.checkpoints import TEXTS, write_checkpoints, write_set

WEIGHTS = FusionWeights(lm=0.2, subtracted=0.1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> DecoderPlan:
    folder = write_checkpoints(tmp_path_factory.mktemp("plan"), ["rnnt", "lm"])
    utterances = tuple(read_set(write_set(folder, "dev", TEXTS[:3])))
    return DecoderPlan(Parts(str(folder / "rnnt"), str(folder / "lm"), "internal"), utterances)


def test_another_process_makes_the_same_decoder(plan):
    plan = replace(plan, search=SearchSettings(max_symbols=2))
    ours, theirs = plan.make(Processes()), pickle.loads(pickle.dumps(plan)).make(Processes())
    assert ours.recogniser.options.max_symbols == 2
    assert ours.decode(WEIGHTS, 3) == theirs.decode(WEIGHTS, 3)


def test_a_folder_is_for_one_language(plan, tmp_path):
    """Lists of another language, prompt or model are not taken for this one's."""
    recogniser = plan.load()
    changes = [{"model_options": options} for options in ({}, {"language": "de"}, {"language": "en"})]
    plans = [replace(plan, folder=tmp_path, **change) for change in (*changes, {"about": {"model": "other"}})]
    stores = {made.make(Processes(), None, recogniser)._store(WEIGHTS, 3).folder for made in plans}
    assert len(stores) == 4


def test_sets_are_files_or_utterances(plan, tmp_path):
    manifest = write_set(tmp_path, "test", TEXTS[:4])
    assert [u.id for u in read_set(str(manifest), limit=2)] == ["test0", "test1"]
    assert read_set(plan.utterances) == list(plan.utterances)
    with pytest.raises(BadInputError, match="limit must not be negative"):
        read_set(Path(manifest), limit=-1)


def test_a_recogniser_is_planned_with_other_options_and_stays_as_it_is(plan, tmp_path):
    recogniser, phrases = plan.load(), tmp_path / "phrases.txt"
    phrases.write_text("whale\n")
    made, work = planned(recogniser, plan.utterances, None, phrases=phrases, search=SearchSettings(max_symbols=2))
    assert [p.text for p in made.listed] == ["whale"] and made.options.max_symbols == 2
    assert work.make(Processes(), None, made).recogniser.options.max_symbols == 2
    assert not recogniser.listed and recogniser.options.max_symbols != 2
    assert planned(recogniser, plan.utterances, None)[0].options == recogniser.options
    with pytest.raises(BadInputError, match="model_options go with the name of a model"):
        planned(recogniser, plan.utterances, None, model_options={"language": "de"})
    for name in {"lm": "lm.safetensors", "subtracted": ""}, {"lm": "", "subtracted": "removed"}:
        with pytest.raises(BadInputError, match="goes with the name of a model"):
            check_whole(**name)
    check_whole("", "internal")
