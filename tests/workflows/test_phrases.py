"""Listed phrases in adaptation, tuning, evaluation and transcription, with a tiny network."""

from __future__ import annotations

import pytest

from ilme.cli import main
from ilme.errors import BadInputError, CheckpointError
from ilme.evaluation.metrics import ErrorCounts
from ilme.evaluation.results import Results
from ilme.evaluation.tuning_result import Balance, HeatMap, TuningResult
from ilme.fusion import FusionWeights
from ilme.recogniser.domain import PHRASES, Domain, load_domain
from ilme.recogniser.loading import Parts, describe, load_model, load_recogniser
from ilme.recogniser.options import safe_boost
from ilme.tuning.boost import BoostStep
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.decoding import read_set
from ilme.workflows.evaluate import evaluate
from ilme.workflows.transcribe import Job
from tests.checkpoints import TEXTS, write_checkpoints, write_set

OPTIONS = AdaptOptions(order=2, prune=(0,), beam=3, max_decodes=2, calibration=2, normaliser="spoken")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint, text of a domain, dev speech and a file of phrases."""
    made = write_checkpoints(tmp_path_factory.mktemp("networks"))
    (made / "domain.txt").write_text("the sea was calm\nthe whale swam in the sea\n" * 5)
    (made / "names.txt").write_text("# words\nwhale\nthe sea\t2\n")
    write_set(made, "dev", TEXTS[:5])
    return made


def adapted(folder, out, **how):
    return adapt(folder / "rnnt", [str(folder / "domain.txt")], out, options=OPTIONS, **how)


def test_without_dev_the_safe_boost_is_used(folder, tmp_path):
    found = adapted(folder, tmp_path / "out", phrases=folder / "names.txt")
    assert found.domain.weights.phrases == safe_boost(load_model(folder / "rnnt"))
    assert PHRASES in found.domain.files and "κ" in (tmp_path / "out" / "card.md").read_text()
    again = load_domain(tmp_path / "out")
    assert [(p.text, p.weight) for p in again.listed] == [("whale", 1.0), ("the sea", 2.0)]
    assert again.weights == found.domain.weights
    (tmp_path / "out" / PHRASES).write_text("another\n")
    with pytest.raises(CheckpointError, match="is not the file"):
        load_domain(tmp_path / "out")
    without = adapted(folder, tmp_path / "out")
    assert not (tmp_path / "out" / PHRASES).exists() and not without.domain.weights.phrases


def test_with_dev_the_boost_is_tuned(folder, tmp_path):
    said = []
    found = adapted(
        folder, tmp_path / "out", phrases=["whale", ("the sea", 2.0)], dev=folder / "dev.jsonl", say=said.append
    )
    report = found.domain.report["phrases"]
    assert report["listed"] == 2 and report["boost"] == found.domain.weights.phrases
    assert len(report["dev"]) == 4 and report["why"] in (tmp_path / "out" / "card.md").read_text()
    assert any("phrases: 2 listed" in line for line in said)
    assert Domain.read(tmp_path / "out").weights == found.domain.weights
    assert load_domain(tmp_path / "out").weights == found.domain.weights


def test_the_card_says_how_dev_is_heard_with_the_list(folder, tmp_path, monkeypatch):
    """Not without it, as dev was heard when the other weights were found."""
    step = BoostStep(20.0, ErrorCounts(), ErrorCounts(), None)
    told = {"listed": 1, "boost": 20.0, "why": "so it is", "dev": {}}
    monkeypatch.setattr("ilme.workflows.with_dev.boost_on_dev", lambda *given: (step, told))
    found = adapted(folder, tmp_path / "out", phrases=["whale"], dev=folder / "dev.jsonl")
    assert found.domain.weights.phrases == 20.0
    assert found.domain.report["after"]["WER"] == round(found.after.rate, 4)
    again = load_domain(tmp_path / "out")
    heard = {u.id: again.transcribe(u.samples(again.rate)).text for u in read_set(folder / "dev.jsonl")}
    assert heard == {u.id: u.hypothesis for u in found.after.utterances}
    assert all("whale" in text for text in heard.values())
    assert not all("whale" in u.hypothesis for u in found.before.utterances)


def tuning(weights: FusionWeights, phrases: bool) -> TuningResult:
    drawn = HeatMap((0.0,), (0.0,), ((50.0,),), 0.0), Balance(*[(0.0,)] * 5)
    return TuningResult(
        "BS", weights, ErrorCounts(hits=1), None, 3, "none", 0.0, 5, (), *drawn, None, 1.0, phrases=phrases
    )


@pytest.mark.parametrize("loaded", [False, True])
def test_a_weight_that_was_tuned_to_nothing_stays_so(folder, loaded):
    """And one that was not tuned is the safe one; whether the model is named or is a recogniser already."""
    names, dev = folder / "names.txt", read_set(folder / "dev.jsonl")
    model = load_recogniser(Parts(str(folder / "rnnt"))) if loaded else folder / "rnnt"

    def used(phrases: bool, boost: float = 0.0, listed=names) -> float:
        weights = tuning(FusionWeights(phrases=boost), phrases)
        return evaluate(model, dev[:2], weights=weights, phrases=listed).systems[0].weights.phrases

    assert used(phrases=True) == 0.0
    assert used(phrases=True, boost=0.7) == used(phrases=False, boost=0.7) == 0.7
    assert used(phrases=False) == safe_boost(load_model(folder / "rnnt"))
    assert used(phrases=True, boost=0.7, listed="") == 0.0


def test_a_card_with_a_boost_and_no_list_is_damaged(folder, tmp_path):
    found = adapted(folder, tmp_path / "out", phrases=folder / "names.txt")
    (tmp_path / "out" / PHRASES).unlink()
    found.domain.save(tmp_path / "out")
    with pytest.raises(CheckpointError, match="gives a weight to phrases"):
        load_domain(tmp_path / "out")


def test_commands(folder, tmp_path, capsys):
    """tune finds κ, evaluate uses it, transcribe takes the file; each describes what it read by its content."""
    names, model, dev = str(folder / "names.txt"), str(folder / "rnnt"), str(folder / "dev.jsonl")
    small = ["--tuning.method", "BS", "--tuning.beam", "3", "--tuning.replicates", "2", "--tuning.grid", "3"]
    assert main(["tune", model, dev, str(tmp_path / "tuned"), "--phrases", names, *small]) == 0
    tuning = tmp_path / "tuned" / "tuning.json"
    found = TuningResult.load(tuning)
    assert found.phrases
    assert main(["evaluate", model, dev, str(tmp_path / "out"), "--phrases", names, "--weights", str(tuning)]) == 0
    (system,) = Results.load(tmp_path / "out" / "results.json").systems
    assert system.weights.phrases == found.weights.phrases
    assert main(["evaluate", model, dev, str(tmp_path / "safe"), "--phrases", names, "--beam", "3"]) == 0
    (system,) = Results.load(tmp_path / "safe" / "results.json").systems
    assert system.weights.phrases == safe_boost(load_model(model))
    assert "listed words" in capsys.readouterr().out
    assert main(["transcribe", str(folder / "dev0.wav"), "--model", model, "--phrases", names]) == 0
    assert main(["transcribe", str(folder / "dev0.wav"), "--model", model, "--phrases", "nothing.txt"]) == 1
    assert "there is no file of phrases" in capsys.readouterr().err


def test_what_was_listed_is_part_of_the_description(folder, tmp_path):
    first = Job(model=str(folder / "rnnt"), phrases=str(folder / "names.txt"))
    other = tmp_path / "names.txt"
    other.write_text("somebody\n")
    assert first.describe() != Job(model=str(folder / "rnnt"), phrases=str(other)).describe()
    assert "phrases" not in Job(model=str(folder / "rnnt")).describe()
    assert first.load().phrases is not None
    parts = Parts(str(folder / "rnnt"), phrases=str(other))
    assert "phrases_content" in describe(parts) and "phrases" not in describe(Parts(str(folder / "rnnt")))
    with pytest.raises(BadInputError, match="no file of phrases"):
        Job(model=str(folder / "rnnt"), phrases=str(tmp_path / "none")).load()
