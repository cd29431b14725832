"""Tuning as a job: what a folder of decodes must match."""

from __future__ import annotations

import pytest

from ilme.recogniser.loading import Parts, load_recogniser
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.decoding import read_set
from ilme.workflows.tune import tune
from tests.checkpoints import TEXTS, write_checkpoints, write_set

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
