"""The first act on a tiny random Whisper; on the real one where its weights are in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ilme.evaluation.results import Results
from ilme.fusion import FusionWeights
from ilme.recogniser.domain import load_domain
from ilme.recogniser.recogniser import Recogniser
from ilme.workflows.demo import DemoOptions
from ilme.workflows.speech_bundle import METHODS, SPEECH, SpeechBundle, utterances_of
from ilme.workflows.speech_demo import LABEL, run_speech
from ilme.workflows.whisper_weights import FILES, cache_folder, is_whole
from tests.workflows.speech_example import COUNT, tiny_everywhere, write_speech_bundle

WEIGHTS = cache_folder() / "models" / "whisper-tiny.en"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> SpeechBundle:
    pytest.importorskip("transformers")
    with tiny_everywhere() as model:
        return write_speech_bundle(tmp_path_factory.mktemp("bundle"), model)


@pytest.fixture
def bundle(written: SpeechBundle) -> Iterator[SpeechBundle]:
    """The bundle, with the tiny model for as long as one test runs: the last one here loads a real model."""
    with tiny_everywhere():
        yield written


def test_every_domain_is_decoded_with_every_method(bundle: SpeechBundle, tmp_path: Path) -> None:
    begun: list[str] = []
    parts = run_speech("tiny", tmp_path, DemoOptions(processes=1), bundle, progress=lambda name: begun.append(name))
    assert [p.name for p in parts] == ["bank calls", "audiobooks"]
    assert begun == [f"{LABEL} {m}, {d}" for d in ("audiobooks", "bank calls") for m in METHODS[::-1]]
    for part, name in zip(parts, ("calls", "books"), strict=True):
        assert [s.method for s in part.systems] == list(METHODS) and len(part.references) == COUNT
        assert Results.load(tmp_path / f"{name}.json").to_json()["results"] == part.to_json()["results"]
        weights = {s.method: s.weights for s in part.systems}
        whole = load_domain(tmp_path / "speech" / name / "domain")
        assert weights["BS"] == FusionWeights() and weights["SF"] == FusionWeights(lm=0.1)
        assert weights["ILME"].subtracted > 0 == weights["ILME"].phrases
        assert weights["ILME + phrases"] == whole.weights
        for system in (part.systems[0], part.systems[3]):  # as the recogniser alone says
            alone = Recogniser(whole.model, options=whole.options) if system.method == "BS" else whole
            for u in utterances_of(tmp_path / "speech" / name):
                assert system.hypotheses[u.id] == alone.nbest([u.samples(alone.rate)])[0][0].text


def test_some_methods_and_some_utterances(bundle: SpeechBundle, tmp_path: Path) -> None:
    parts = run_speech("tiny", tmp_path, DemoOptions(method="ILME", utterances=1, processes=1), bundle)
    assert [[s.method for s in p.systems] for p in parts] == [["ILME", "ILME + phrases"]] * 2
    assert [len(p.references) for p in parts] == [1, 1]


@pytest.mark.slow
@pytest.mark.skipif(
    not is_whole(WEIGHTS, FILES), reason="Whisper's weights are not in the cache; `ilme demo` gets them"
)
@pytest.mark.skipif(not (SPEECH / "speech.json").is_file(), reason="no recordings; make bundle-speech")
def test_the_real_model_hears_real_speech(tmp_path: Path) -> None:
    parts = run_speech(str(WEIGHTS), tmp_path, DemoOptions(method="BS", utterances=3, processes=1))
    assert all(part.measurements[f"{LABEL} BS"].total.rate < 60 for part in parts)
