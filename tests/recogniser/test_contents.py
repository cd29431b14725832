"""Lists in a folder belong to the weights that made them."""

from __future__ import annotations

import pytest
import torch

from ilme.fusion import FusionWeights
from ilme.recogniser.contents import contents
from ilme.recogniser.loading import Parts, load_recogniser
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.evaluate import evaluate
from ilme.workflows.tune import tune
from tests.checkpoints import TEXTS, write_checkpoints, write_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_checkpoints(tmp_path_factory.mktemp("networks"), ["rnnt", "lm"])
    write_set(made, "dev", TEXTS[:3])
    return made


@pytest.fixture
def recogniser(folder):
    return load_recogniser(Parts(str(folder / "rnnt"), str(folder / "lm"), "removed"))


def changed(module):
    with torch.no_grad():
        next(iter(module.parameters())).add_(0.5)


def test_the_same_weights_have_the_same_hashes_and_others_have_others(folder, recogniser):
    before = contents(recogniser)
    assert set(before) == {"model", "lm", "subtracted"}
    assert before == contents(load_recogniser(Parts(str(folder / "rnnt"), str(folder / "lm"), "removed")))
    changed(recogniser.lm)
    after = contents(recogniser)
    assert after["lm"] != before["lm"] and after["model"] == before["model"]
    changed(recogniser.model)
    assert contents(recogniser)["model"] != before["model"]


@pytest.mark.parametrize("job", ["tune", "evaluate"])
def test_lists_of_other_weights_are_not_taken_for_ones_own(job, folder, recogniser, tmp_path):
    options = TuningOptions(method="BS", beam=2, max_decodes=1, replicates=0)

    def run():
        if job == "tune":
            return tune(recogniser, folder / "dev.jsonl", out=tmp_path / "out", options=options)
        return evaluate(recogniser, folder / "dev.jsonl", out=tmp_path / "out", weights=FusionWeights(lm=0.1))

    def parts():
        return set(tmp_path.rglob("part-*.jsonl"))

    run()
    before = parts()
    run()
    assert before and parts() == before, "the same weights"
    changed(recogniser.model)
    run()
    assert parts() > before
