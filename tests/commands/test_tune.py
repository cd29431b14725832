"""tune → evaluate → compare → report on the command line, with a tiny model on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import soundfile
import torch

from ilme import models
from ilme.cli import main
from ilme.data.features import FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError
from ilme.evaluation.ledger import looks_at
from ilme.evaluation.results import Results
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.models.checkpoint import save_model
from ilme.models.packed import PackedLinear, PackedLSTMStack, PackingError, is_packed
from ilme.recogniser.decoder import Processes, SearchDecoder
from ilme.recogniser.loading import Parts, describe, load_recogniser
from ilme.recogniser.packing import run_time_parameters
from ilme.recogniser.recogniser import Recogniser
from ilme.search.attention import AttentionOptions
from ilme.search.hypothesis import NBest
from tests.models.test_packed import available

TEXTS = ["the whale swam", "the sea was calm", "a whale of a time", "the captain saw the sea"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of an untrained RNN-T, AED and LM over one tokenizer, and two small sets."""
    folder = tmp_path_factory.mktemp("commands")
    tokenizer = SentencePieceTokenizer.train(TEXTS, 32)
    torch.manual_seed(0)
    for kind, role in (("rnnt", "transducer"), ("aed", "attention"), ("lm", "lm")):
        own = tokenizer.for_role(role)  # type: ignore[arg-type]
        model = models.build(kind, models.preset(kind, "tiny"), own.tokens)
        for parameter in model.parameters():
            parameter.data.mul_(2.0)
        save_model(folder / kind, model, own, FrontendConfig() if kind != "lm" else None)
    g = np.random.default_rng(0)
    for name, count in (("dev", 5), ("test", 6)):
        rows = []
        for k in range(count):
            path = f"{name}{k}.wav"
            soundfile.write(folder / path, g.normal(0, 0.1, 9000 + 700 * k).astype(np.float32), 16000)
            rows.append({"audio_filepath": path, "text": TEXTS[k], "speaker": f"s{k % 3}", "duration": 0.6})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def tuned(folder: Path, method: str, model: str = "rnnt") -> Path:
    out = folder / f"tune-{model}-{method}"
    if not (out / "tuning.json").exists():
        arguments = [
            "tune", str(folder / model), str(folder / "dev.jsonl"), str(out), "--lm", str(folder / "lm"),
            "--tuning.method", method, "--tuning.beam", "3", "--tuning.replicates", "2", "--tuning.grid", "3",
            "--tuning.max_decodes", "3", "--tuning.restarts", "1", "--attention.max_length", "6",
        ]  # fmt: skip
        assert main(arguments) == 0
    return out / "tuning.json"


def evaluated(folder: Path, method: str, model: str = "rnnt") -> Path:
    out = folder / f"test-{model}-{method}"
    arguments = [
        "evaluate", str(folder / model), str(folder / "test.jsonl"), str(out), "--weights",
        str(tuned(folder, method, model)), "--lm", str(folder / "lm"), "--label", model, "--details", "2",
        "--search_errors", "4",
        "--attention.max_length", "6",
    ]  # fmt: skip
    assert main(arguments) == 0
    return out / "results.json"


@pytest.mark.parametrize("model", ["rnnt", "aed"])
def test_tune_writes_weights_that_evaluate_uses(folder: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = TuningResult.load(tuned(folder, "ILME", model))
    assert tuning.method == "ILME" and tuning.beam == 3 and tuning.decodes <= 3
    assert tuning.baseline is not None and tuning.dev.errors <= tuning.baseline.errors
    results = Results.load(evaluated(folder, "ILME", model))
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


def test_looks_at_the_test_set_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Results.load(evaluated(folder, "ILME"))
    ledger = folder / "test-looks.json"
    before = len(looks_at(ledger, first))
    evaluated(folder, "ILME")  # the same decode again is no new look
    assert len(looks_at(ledger, first)) == before
    main(["evaluate", str(folder / "rnnt"), str(folder / "test.jsonl"), str(folder / "bs"), "--beam", "3"])
    assert len(looks_at(ledger, first)) == before  # nothing tuned
    capsys.readouterr()
    ledger.write_text("{}")
    with pytest.raises(BadInputError, match="not a ledger"):
        looks_at(ledger, first)
    ledger.unlink()


def test_compare_and_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("BS", "SF", "ILME"):
        evaluated(folder, method)
    parts = [str(folder / f"test-rnnt-{m}" / "results.json") for m in ("BS", "SF", "ILME")]
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


def test_texts_of_another_program_can_be_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hypotheses = folder / "theirs.jsonl"
    hypotheses.write_text("".join(json.dumps({"id": f"test{k}", "text": TEXTS[k]}) + "\n" for k in range(6)))
    arguments = ["evaluate", "theirs", str(folder / "test.jsonl"), str(folder / "theirs"), "--style", "csv"]
    assert main([*arguments, "--hypotheses", str(hypotheses), "--method", "other", "--normaliser", "spoken"]) == 0
    assert "theirs,other" in capsys.readouterr().out
    assert Results.load(folder / "theirs" / "results.json").measurements["theirs other"].rate == 0
    hypotheses.write_text('{"id": "test0"}\n')
    assert main([*arguments, "--hypotheses", str(hypotheses)]) == 1
    assert "line 1" in capsys.readouterr().err


def test_tuned_search_options_reach_the_evaluation(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "tune-options"
    arguments = [
        "tune", str(folder / "aed"), str(folder / "dev.jsonl"), str(out), "--lm", str(folder / "lm"),
        "--tuning.beam", "3", "--tuning.replicates", "0", "--tuning.grid", "3", "--tuning.max_decodes", "2",
        "--tuning.restarts", "1", "--attention.max_length", "6", "--tuning.search.length_normalisation", "0.5", "1.0",
        "--tuning.search.end_margin", "0.5", "--tuning.search.decodes", "2",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "options" in capsys.readouterr().out
    result = TuningResult.load(out / "tuning.json")
    assert [s.search["end_margin"] for s in result.steps if "end_margin" in s.search] == [0.5]
    assert result.decodes <= 4
    replace(result, search={"length_normalisation": 1.0, "end_margin": 0.5}).save(out / "tuning.json")
    seen = []

    def load(parts: Parts, transducer: object, attention: AttentionOptions) -> Recogniser:
        seen.append(attention)
        return load_recogniser(parts, attention=attention)

    monkeypatch.setattr("ilme.workflows.evaluate.load_recogniser", load)
    test = ["evaluate", str(folder / "aed"), str(folder / "test.jsonl"), str(folder / "test-options"), "--lm"]
    test += [str(folder / "lm"), "--weights", str(out / "tuning.json"), "--attention.max_length", "6", "--details", "0"]
    assert main(test) == 0
    assert seen == [AttentionOptions(max_length=6, length_normalisation=1.0, end_margin=0.5)]
    transducer = [*arguments[:1], str(folder / "rnnt"), arguments[2], str(folder / "tune-none"), *arguments[4:]]
    assert main(transducer) == 1
    assert "TransducerOptions has no" in capsys.readouterr().err


class LocalRay:
    """What `RayDecoder` does with its shares, without Ray: one decoder after the other in this process."""

    worlds: ClassVar[list[int]] = []

    def __init__(self, make: Callable[[Processes], SearchDecoder], workers: int) -> None:
        self.worlds.append(workers)
        self.shares = [make(Processes(rank, workers)) for rank in range(workers)]

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        parts = [share.share(weights, beam) for share in self.shares]
        return {i: next(p[i] for p in parts if i in p) for i in self.shares[0].ids}

    def __enter__(self) -> LocalRay:
        return self

    def __exit__(self, *_: object) -> None:
        self.shares = []


def test_evaluate_over_ray_gives_what_one_process_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ilme.recogniser.ray_decoder

    arguments = ["evaluate", str(folder / "rnnt"), str(folder / "test.jsonl")]
    assert main([*arguments, str(folder / "alone"), "--beam", "3"]) == 0
    monkeypatch.setattr(ilme.recogniser.ray_decoder, "RayDecoder", LocalRay)
    assert main([*arguments, str(folder / "ray"), "--beam", "3", "--ray", "2"]) == 0
    assert LocalRay.worlds == [2]
    one, many = (Results.load(folder / name / "results.json").systems[0] for name in ("alone", "ray"))
    assert many.hypotheses == one.hypotheses and many.oracle_wer == one.oracle_wer


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", str(folder / "rnnt"), str(folder / "test.jsonl"), str(folder / "none"), "--ray", "2"]
    assert main(arguments) == 1
    assert "ilme[ray]" in capsys.readouterr().err


def test_parameters_count_what_runs(folder: Path) -> None:
    recogniser = load_recogniser(Parts(str(folder / "rnnt"), str(folder / "lm"), "internal"))
    alone = run_time_parameters(recogniser, lm=False, subtracted=False)
    assert run_time_parameters(recogniser, lm=False) == alone  # the internal LM is the model itself
    with_lm = run_time_parameters(recogniser)
    source = load_recogniser(Parts(str(folder / "rnnt"), str(folder / "lm"), str(folder / "lm")))
    assert run_time_parameters(source) - with_lm == with_lm - alone > 0


@pytest.mark.parametrize("model", ["rnnt", "aed"])
def test_formats_of_the_weights_are_chosen_by_name(folder: Path, model: str) -> None:
    available("int8")
    arguments = ["evaluate", str(folder / model), str(folder / "test.jsonl"), str(folder / f"int8-{model}")]
    assert main([*arguments, "--beam", "3", "--attention.max_length", "6", "--format", "int8"]) == 0
    (system,) = Results.load(folder / f"int8-{model}" / "results.json").systems
    assert len(system.hypotheses) == 6
    parts = Parts(str(folder / model), format="int8")
    rounded, exact = load_recogniser(parts), load_recogniser(Parts(str(folder / model)))
    formats = [{m.format for m in r.model.modules() if isinstance(m, PackedLSTMStack)} for r in (rounded, exact)]
    assert formats == [{"int8"}, {"float32"}]
    linear = {m.format for m in rounded.model.modules() if isinstance(m, PackedLinear)}
    assert linear == {"int8" if model == "rnnt" else "float32"}
    assert describe(parts)["format"] == "int8" and "format" not in describe(Parts(str(folder / model)))
    with pytest.raises(BadInputError, match="for the CPU"):
        Parts(str(folder / model), device="cuda", format="int8")


def test_a_build_that_cannot_pack_float32_decodes_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PackingError("no kernels")

    monkeypatch.setattr("ilme.models.packed._check_available", refuse)
    assert not is_packed(load_recogniser(Parts(str(folder / "rnnt"), str(folder / "lm"))).model)
    with pytest.raises(PackingError, match="no kernels"):
        load_recogniser(Parts(str(folder / "rnnt"), format="int8"))


def test_a_model_trained_again_is_another_model(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.safetensors"
    copy.write_bytes((folder / "rnnt" / "model.safetensors").read_bytes())
    before = describe(Parts(str(tmp_path), str(folder / "lm"), "internal"))
    assert before["model_content"] == describe(Parts(str(folder / "rnnt")))["model_content"]
    copy.write_bytes(copy.read_bytes()[:-4] + b"abcd")
    after = describe(Parts(str(tmp_path), str(folder / "lm"), "internal"))
    assert after["model_content"] != before["model_content"] and after["lm_content"] == before["lm_content"]
    assert "subtracted_content" not in after


def test_mistakes_are_explained(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dev = str(folder / "dev.jsonl")
    assert main(["tune", str(folder / "rnnt"), dev, str(tmp_path / "x")]) == 1
    assert "needs an external LM" in capsys.readouterr().err
    assert main(["tune", str(folder / "lm"), dev, str(tmp_path / "x"), "--lm", str(folder / "lm")]) == 1
    assert "is a language model" in capsys.readouterr().err
    missing = str(tmp_path / "none.json")
    assert main(["evaluate", str(folder / "rnnt"), dev, str(tmp_path / "x"), "--weights", missing]) == 1
    assert "no tuning result" in capsys.readouterr().err
    assert main(["tune", str(folder / "rnnt"), dev, str(tmp_path / "x"), "--workers", "0"]) == 1
    assert "--workers" in capsys.readouterr().err
