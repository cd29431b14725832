"""`ilme tune` with tiny models on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ilme.cli import main
from ilme.evaluation.tuning_result import TuningResult
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.workflows import evaluate as workflow
from tests.commands.conftest import Decoded


@pytest.mark.parametrize("model", ["rnnt", "aed"])
def test_weights_are_written(decoded: Decoded, model: str) -> None:
    tuning = TuningResult.load(decoded.tuned("ILME", model))
    assert tuning.method == "ILME" and tuning.beam == 3 and tuning.decodes <= 3
    assert tuning.baseline is not None and tuning.dev.errors <= tuning.baseline.errors


def test_tuned_search_options_reach_the_evaluation(
    decoded: Decoded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = decoded.folder, decoded.folder / "tune-options"
    options = [
        "--lm", str(folder / "lm"), "--tuning.beam", "3", "--tuning.replicates", "0", "--tuning.grid", "3",
        "--tuning.max_decodes", "2", "--tuning.restarts", "1", "--tuning.search.length_normalisation", "0.5", "1.0",
        "--tuning.search.end_margin", "0.5", "--tuning.search.decodes", "2",
    ]  # fmt: skip
    length = ["--search.max_length", "6"]
    assert main(["tune", str(folder / "aed"), str(decoded.dev), str(out), *options, *length]) == 0
    assert "options" in capsys.readouterr().out
    result = TuningResult.load(out / "tuning.json")
    assert [s.search["end_margin"] for s in result.steps if "end_margin" in s.search] == [0.5]
    assert result.decodes <= 4
    replace(result, search={"length_normalisation": 0.5, "end_margin": 0.5}).save(out / "tuning.json")
    seen = []
    plain = workflow.evaluate_decoder

    def look(plan: Any, recogniser: Recogniser, decoder: Any, *rest: Any, **named: Any) -> Any:
        seen.append((recogniser.options, decoder.recogniser.options))
        return plain(plan, recogniser, decoder, *rest, **named)

    monkeypatch.setattr(workflow, "evaluate_decoder", look)
    test = ["evaluate", str(folder / "aed"), str(decoded.test), str(folder / "test-options"), "--details", "0"]
    assert main([*test, "--lm", str(folder / "lm"), "--weights", str(out / "tuning.json"), *length]) == 0
    own = default_options(load_model(folder / "aed"))
    wanted = replace(own, max_length=6, length_normalisation=0.5, end_margin=0.5)  # type: ignore[call-arg]
    assert seen == [(wanted, wanted)]

    other = ["tune", str(folder / "rnnt"), str(decoded.dev), str(folder / "tune-none"), *options]
    assert main(other) == 1
    assert "TransducerOptions has no" in capsys.readouterr().err
    assert main([*other, *length]) == 1
    assert "search.max_length is an option for attention decoders" in capsys.readouterr().err


def test_mistakes_are_explained(decoded: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    folder, dev, out = decoded.folder, str(decoded.dev), str(decoded.folder / "mistake")
    assert main(["tune", str(folder / "rnnt"), dev, out]) == 1
    assert "needs an external LM" in capsys.readouterr().err
    assert main(["tune", str(folder / "lm"), dev, out, "--lm", str(folder / "lm")]) == 1
    assert "is a language model" in capsys.readouterr().err
    assert main(["tune", str(folder / "rnnt"), dev, out, "--workers", "0"]) == 2
    assert "--workers" in capsys.readouterr().err
