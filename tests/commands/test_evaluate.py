"""`ilme evaluate` with weights that `ilme tune` found, then compare and report, with tiny models on disk."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from ilme.cli import main
from ilme.errors import BadInputError
from ilme.evaluation.ledger import looks_at
from ilme.evaluation.results import Results
from ilme.evaluation.tuning_result import TuningResult
from tests.checkpoints import TEXTS
from tests.commands.conftest import Decoded, short
from tests.models.test_packed import available
from tests.ray_cluster import Cluster


@pytest.mark.parametrize("model", ["rnnt", "aed"])
def test_it_uses_the_weights_that_tune_wrote(decoded: Decoded, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = TuningResult.load(decoded.tuned("ILME", model))
    results = Results.load(decoded.evaluated("ILME", model))
    (system,) = results.systems
    assert (system.model, system.method, system.weights) == (model, "ILME", tuning.weights)
    assert system.dev_wer == pytest.approx(tuning.dev.rate, abs=1e-3) and system.parameters > 1000
    assert set(system.hypotheses) == {f"test{k}" for k in range(6)}
    assert system.oracle_wer is not None and system.oracle_wer <= results.measurements[system.name].rate
    assert system.search_errors is not None and sum(system.search_errors.values()) == 4
    for told in system.details.values():
        assert told["choices"][0]["labels"][0] == "chosen"
    printed = capsys.readouterr().out
    assert "Test WER" in printed and "lost by the scores" in printed


def test_looks_at_the_test_set_are_counted(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    folder = decoded.folder
    first = Results.load(decoded.evaluated("ILME"))
    ledger = folder / "test-looks.json"
    before = len(looks_at(ledger, first))
    decoded.evaluated("ILME")  # the same decode again is no new look
    assert len(looks_at(ledger, first)) == before
    main(["evaluate", str(folder / "rnnt"), str(decoded.test), str(folder / "bs"), "--beam", "3"])
    assert len(looks_at(ledger, first)) == before  # nothing tuned
    capsys.readouterr()
    ledger.write_text("{}")
    with pytest.raises(BadInputError, match="not a ledger"):
        looks_at(ledger, first)
    ledger.unlink()


def test_compare_and_report(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    folder = decoded.folder
    parts = [str(decoded.evaluated(method)) for method in ("BS", "SF", "ILME")]
    capsys.readouterr()
    assert main(["compare", *parts, "--out", str(folder / "all.json"), "--style", "markdown"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| rnnt") >= 3 and "p MAPSSWE" in printed and "fixed" in printed
    assert [s.method for s in Results.load(folder / "all.json").systems] == ["BS", "SF", "ILME"]
    assert main(["report", *parts, "--out", str(folder / "report.html"), "--title", "Tiny"]) == 0
    page = (folder / "report.html").read_text()
    assert "<title>Tiny</title>" in page and "data:audio/ogg" in page
    source = folder / "source.txt"
    source.write_text("the sea\n" * 20)
    assert main(["compare", *parts, "--source", str(source), "--target", str(source)]) == 0
    assert "never in the source" in capsys.readouterr().out
    assert main(["compare", parts[0], parts[0]]) == 1
    assert "two systems are called" in capsys.readouterr().err


def test_texts_of_another_program_can_be_measured(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    folder = decoded.folder
    hypotheses = folder / "theirs.jsonl"
    hypotheses.write_text("".join(json.dumps({"id": f"test{k}", "text": TEXTS[k]}) + "\n" for k in range(6)))
    arguments = ["evaluate", "theirs", str(decoded.test), str(folder / "theirs"), "--style", "csv"]
    assert main([*arguments, "--hypotheses", str(hypotheses), "--method", "other", "--normaliser", "spoken"]) == 0
    assert "theirs,other" in capsys.readouterr().out
    assert Results.load(folder / "theirs" / "results.json").measurements["theirs other"].rate == 0
    hypotheses.write_text('{"id": "test0"}\n')
    assert main([*arguments, "--hypotheses", str(hypotheses)]) == 1
    assert "line 1" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["rnnt", "aed"])
def test_weights_in_8_bits(decoded: Decoded, model: str) -> None:
    available("int8")
    out = decoded.folder / f"int8-{model}"
    arguments = ["evaluate", str(decoded.folder / model), str(decoded.test), str(out), *short(model)]
    assert main([*arguments, "--beam", "3", "--format", "int8"]) == 0
    (system,) = Results.load(out / "results.json").systems
    assert len(system.hypotheses) == 6


def test_ray_gives_what_one_process_gives(decoded: Decoded, monkeypatch: pytest.MonkeyPatch) -> None:
    import ilme.recogniser.ray_decoder

    folder, arguments = decoded.folder, ["evaluate", str(decoded.folder / "rnnt"), str(decoded.test)]
    assert main([*arguments, str(folder / "alone"), "--beam", "3"]) == 0
    cluster, asked = Cluster(), []
    monkeypatch.setattr(
        ilme.recogniser.ray_decoder, "connect", lambda address: asked.append(address) or (cluster, True)
    )
    assert main([*arguments, str(folder / "ray"), "--beam", "3", "--ray", "10.0.0.1:6379", "--workers", "2"]) == 0
    assert asked == ["10.0.0.1:6379"] and cluster.resources == [{"num_cpus": 1, "num_gpus": 0}] * 2
    one, many = (Results.load(folder / name / "results.json").systems[0] for name in ("alone", "ray"))
    assert many.hypotheses == one.hypotheses and many.oracle_wer == one.oracle_wer


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    out = decoded.folder / "none"
    arguments = ["evaluate", str(decoded.folder / "rnnt"), str(decoded.test), str(out), "--ray", "local"]
    assert main(arguments) == 1
    assert "ilme[ray]" in capsys.readouterr().err


def test_mistakes_are_explained(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    out, missing = str(decoded.folder / "mistake"), str(decoded.folder / "none.json")
    arguments = ["evaluate", str(decoded.folder / "rnnt"), str(decoded.test), out]
    assert main([*arguments, "--weights", missing]) == 1
    assert "no tuning result" in capsys.readouterr().err
    assert main([*arguments, "--search.certain_end", "3"]) == 1
    assert "search.certain_end is an option for attention decoders" in capsys.readouterr().err
    assert main([*arguments, "--domain", "true", "--lm", "other"]) == 2
    assert "a domain folder has its own LM" in capsys.readouterr().err
    assert main([*arguments, "--domain", "--head", "ctc"]) == 2
    assert "--head was chosen when the domain folder was made" in capsys.readouterr().err
