"""Decoding a set: cached, resumed after kill -9, shared between processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder, joined, make_batches
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.search.rescoring import sequence_scores
from ilme.tuning.tuner import TuningOptions, tune
from tests.recogniser.job import BEAM, WEIGHTS, make_recogniser, make_utterances

JOB = str(Path(__file__).parent / "job.py")
SMALL = DecodingOptions(batch_size=2)


def same(a: dict[str, NBest], b: dict[str, NBest]) -> bool:
    return list(a) == list(b) and all(
        [h.tokens for h in a[i]] == [h.tokens for h in b[i]]
        and np.allclose([h.score for h in a[i]], [h.score for h in b[i]], atol=1e-4)
        for i in a
    )


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_equals_a_search_of_each_utterance_alone(kind: str) -> None:
    recogniser = make_recogniser(kind)
    utterances = make_utterances()
    lists = SearchDecoder(recogniser, utterances, options=SMALL).decode(WEIGHTS, BEAM)
    assert list(lists) == [u.id for u in utterances]
    alone = {u.id: recogniser.search(recogniser.encode([u.samples(16000)]), WEIGHTS, BEAM)[0] for u in utterances}
    assert same(lists, alone)
    assert all(h.text == recogniser.tokenizer.decode(list(h.tokens)) for nbest in lists.values() for h in nbest)


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_what_an_encoder_hears_in_pieces_is_what_it_hears_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    recogniser, utterances = make_recogniser(kind), make_utterances()
    plain = recogniser.model.encode
    recogniser.model.encode = lambda x, n: calls.append(len(x)) or plain(x, n)
    whole = SearchDecoder(recogniser, utterances).decode(WEIGHTS, BEAM)
    monkeypatch.setattr("ilme.recogniser.recogniser.HEARD", 2.2)
    pieces = SearchDecoder(recogniser, utterances).decode(WEIGHTS, BEAM)
    assert same(pieces, whole) and calls == [7, 2, 2, 2, 1]


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
@pytest.mark.parametrize("weights", [FusionWeights(), FusionWeights(lm=0.2), WEIGHTS])
def test_every_component_is_filled_in_whatever_the_weights(kind: str, weights: FusionWeights) -> None:
    recogniser = make_recogniser(kind)
    lists = SearchDecoder(recogniser, make_utterances(3), options=SMALL).decode(weights, BEAM)
    for nbest in lists.values():
        tokens = [h.tokens for h in nbest]
        for name in ("lm", "subtracted"):
            expected = sequence_scores(getattr(recogniser, name), tokens, finish=kind == "aed").tolist()
            assert [getattr(h.scores, name) for h in nbest] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_what_is_longer_than_a_window_is_searched_as_it_is_transcribed(kind: str) -> None:
    recogniser, utterances = make_recogniser(kind), make_utterances(4)
    recogniser.options = replace(recogniser.options, beam=BEAM)
    recogniser.weights = WEIGHTS
    recogniser.window = sorted(u.seconds for u in utterances)[1]
    lists = SearchDecoder(recogniser, utterances, options=SMALL).decode(WEIGHTS, BEAM)
    assert list(lists) == [u.id for u in utterances]
    cut = 0
    for u in utterances:
        transcript = recogniser.transcribe(u.samples(16000), rate=16000)
        best = lists[u.id][0]
        cut += len(transcript.segments) > 1
        assert best.text == transcript.text
        parts = [s.scores for s in transcript.segments if s.scores is not None]
        assert best.scores.asr == pytest.approx(sum(s.asr for s in parts), abs=1e-3)
        assert [h.score for h in lists[u.id]] == sorted((h.score for h in lists[u.id]), reverse=True)
        assert len(lists[u.id]) <= BEAM
    assert 0 < cut < len(utterances)


def test_lists_of_windows_are_joined_by_their_sums() -> None:
    def hypothesis(token: int, asr: float, text: str) -> Hypothesis:
        return Hypothesis((token,), asr + 0.5 * -1.0, Scores(asr=asr, lm=-1.0, length=1.0), (3,), text)

    first = [hypothesis(1, -1.0, "a"), hypothesis(2, -1.5, "b")]
    second = [hypothesis(3, -0.25, " c "), hypothesis(4, -3.0, "")]
    weights = FusionWeights(lm=0.5)
    assert joined([first], weights, 1.0) == first
    both = joined([first, second], weights, 1.0)
    assert [(h.tokens, h.text) for h in both] == [((1, 3), "a c"), ((2, 3), "b c")]
    assert both[0].scores == Scores(asr=-1.25, lm=-2.0, length=2.0) and both[0].times is None
    assert both[0].score == pytest.approx((-1.25 - 1.0) / 3)
    three = joined([first, second, second], weights, 0.0)
    assert three[0].text == "a c c" and three[0].score == pytest.approx(-1.5 - 1.5)


def test_a_narrow_beam_needs_no_more_ended_hypotheses_than_it_keeps() -> None:
    recogniser = make_recogniser("aed")
    recogniser.options = replace(recogniser.options, beam=8, nbest=8, stop_after=8)
    encoded = recogniser.encode([u.samples(16000) for u in make_utterances(2)])
    narrow = recogniser.search(encoded, WEIGHTS, 3)
    recogniser.options = replace(recogniser.options, nbest=3, stop_after=3)
    expected = recogniser.search(encoded, WEIGHTS, 3)
    assert [[h.tokens for h in nbest] for nbest in narrow] == [[h.tokens for h in nbest] for nbest in expected]


def test_the_encoder_runs_once() -> None:
    recogniser = make_recogniser()
    calls = []
    encode = recogniser.encode
    recogniser.encode = lambda audio: (calls.append(len(audio)), encode(audio))[1]  # type: ignore[method-assign]
    decoder = SearchDecoder(recogniser, make_utterances(), options=SMALL)
    first = decoder.decode(WEIGHTS, BEAM)
    assert same(decoder.decode(WEIGHTS, BEAM), first)
    decoder.decode(FusionWeights(), BEAM)
    assert calls == [2, 2, 2, 1]
    every_time = SearchDecoder(recogniser, make_utterances(), options=replace(SMALL, cache="none"))
    assert same(every_time.decode(WEIGHTS, BEAM), first)
    every_time.decode(WEIGHTS, BEAM)
    assert len(calls) == 12


def test_continues_after_a_torn_line(tmp_path: Path) -> None:
    utterances = make_utterances()
    whole = SearchDecoder(make_recogniser(), utterances, options=SMALL).decode(WEIGHTS, BEAM)
    decoder = SearchDecoder(make_recogniser(), utterances, options=SMALL, folder=tmp_path)
    decoder.decode(WEIGHTS, BEAM)
    (part,) = tmp_path.glob("*/part-0000.jsonl")
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:4]) + lines[4][:37])
    searched: list[int] = []
    recogniser = make_recogniser()
    search = recogniser.search
    recogniser.search = lambda e, w, b: (searched.append(len(e[1])), search(e, w, b))[1]  # type: ignore[method-assign]
    again = SearchDecoder(recogniser, utterances, options=SMALL, folder=tmp_path)
    assert same(again.decode(WEIGHTS, BEAM), whole)
    assert sum(searched) == len(utterances) - 3
    searched.clear()
    assert same(again.decode(WEIGHTS, BEAM), whole)
    assert not searched


def run_job(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launcher, JOB, str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finished(process: subprocess.Popen[str]) -> dict[str, NBest]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = json.loads(out.strip().splitlines()[-1])
    return {i: [Hypothesis.from_json(h) for h in nbest] for i, nbest in rows.items()}


@pytest.mark.slow
def test_survives_kill_minus_nine(tmp_path: Path) -> None:
    process = run_job(tmp_path, "0.7")
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        parts = list(tmp_path.glob("*/part-0000.jsonl"))
        if parts and parts[0].read_bytes().count(b"\n") >= 3:
            break
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (part,) = tmp_path.glob("*/part-0000.jsonl")
    before = part.read_bytes()
    assert 3 <= before.count(b"\n") < 8
    decoder = SearchDecoder(make_recogniser(), make_utterances(), options=SMALL, folder=tmp_path)
    whole = SearchDecoder(make_recogniser(), make_utterances(), options=SMALL).decode(WEIGHTS, BEAM)
    assert same(decoder.decode(WEIGHTS, BEAM), whole)
    assert part.read_bytes().startswith(before[: before.rfind(b"\n") + 1])


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    lists = finished(run_job(tmp_path, launcher=launcher))
    whole = SearchDecoder(make_recogniser(), make_utterances(), options=SMALL).decode(WEIGHTS, BEAM)
    assert lists == whole
    sizes = [p.read_bytes().count(b"\n") - 1 for p in sorted(tmp_path.glob("*/part-*.jsonl"))]
    assert len(sizes) == 2 and min(sizes) >= 2 and sum(sizes) == 7


def make_share(processes: Processes) -> SearchDecoder:
    return SearchDecoder(make_recogniser(), make_utterances(), options=SMALL, processes=processes)


def test_shares_in_memory_make_the_whole() -> None:
    whole = make_share(Processes()).decode(WEIGHTS, BEAM)
    parts = [SearchDecoder.share(_share_without_folder(k), WEIGHTS, BEAM) for k in range(3)]
    assert sum(map(len, parts)) == len(whole)
    assert {i: nbest for part in parts for i, nbest in part.items()} == whole


def _share_without_folder(rank: int) -> SearchDecoder:
    decoder = make_share(Processes())
    decoder.processes = Processes(rank, 3)
    return decoder


def test_the_tuner_runs_on_a_real_search(tmp_path: Path) -> None:
    recogniser, utterances = make_recogniser(), make_utterances()
    target = SearchDecoder(recogniser, utterances, options=SMALL).decode(WEIGHTS, BEAM)
    references = {i: nbest[0].text or "2" for i, nbest in target.items()}
    decoder = SearchDecoder(recogniser, utterances, options=SMALL, folder=tmp_path)
    options = TuningOptions(beam=BEAM, replicates=0, grid=3, restarts=3, smoothing=0.0)
    result = tune(decoder, references, options=options)
    assert result.baseline is not None and result.dev.errors <= result.baseline.errors
    assert result.decodes <= 5
    again = tune(decoder, references, options=options)
    assert replace(again, seconds=0.0) == replace(result, seconds=0.0)


def test_batches_do_not_depend_on_the_order() -> None:
    utterances = make_utterances(9)
    a, b = make_batches(utterances, SMALL), make_batches(utterances[::-1], SMALL)
    assert a == b
    assert sorted(u.id for batch in a for u in batch) == [f"u{k}" for k in range(9)]
    long = [Utterance(str(k), "", None, seconds=50.0) for k in range(5)]
    assert [len(x) for x in make_batches(long, DecodingOptions(batch_seconds=120))] == [2, 2, 1]
    with pytest.raises(BadInputError, match="no utterances"):
        make_batches([], SMALL)


def test_several_processes_need_a_folder() -> None:
    with pytest.raises(BadInputError, match="folder"):
        SearchDecoder(make_recogniser(), make_utterances(1), processes=Processes(0, 2))
