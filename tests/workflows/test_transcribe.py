"""Many files as one job: batches over files, files that fail alone, jobs that are killed and go on."""

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
import soundfile

import ilme
from ilme.data.audio_files import find_audio
from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.models.speech import SpeechNetwork
from ilme.recogniser import options
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.transcripts import render
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.transcribe import Job, TranscribeOptions, run_job, transcribe_files
from ilme.workflows.transcribe_output import JOURNAL, Output
from tests.checkpoints import RATE, write_checkpoints, write_wave

SLOW = str(Path(__file__).parent / "slow_job.py")
KINDS = pytest.mark.parametrize("kind", ["rnnt", "aed"])
SECONDS = {  # file: seconds; windows are of at most one
    "a.wav": 0.6, "b.flac": 0.3, "long.wav": 3.3, "calls/c.wav": 0.9, "calls/d.wav": 0.5, "calls/late/e.wav": 0.7,
    "calls/late/f.flac": 2.2, "music/a.wav": 0.4, "music/tiny.wav": 0.01,
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Checkpoints rnnt and aed, and a domain of the first."""
    folder = write_checkpoints(tmp_path_factory.mktemp("models"))
    (folder / "text.txt").write_text("the sea was calm\nthe whale swam\n" * 5)
    how = AdaptOptions(order=2, prune=(0,), beam=3)
    adapt(folder / "rnnt", [str(folder / "text.txt")], folder / "domain", options=how)
    return folder


@pytest.fixture(scope="module")
def audio(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audio")
    for seed, (name, seconds) in enumerate(SECONDS.items()):
        write_wave(folder / name, seconds, seed)
    soundfile.write(folder / "silence.wav", np.zeros(RATE, np.float32), RATE)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Short windows and narrow beams, in this process."""
    monkeypatch.setattr(SpeechNetwork, "window", 1.0)
    for name in ("TRANSDUCER", "AED"):
        monkeypatch.setattr(options, name, replace(getattr(options, name), beam=2))


@pytest.fixture
def heard(monkeypatch) -> list[int]:
    """How many windows each search of this process hears."""
    sizes: list[int] = []
    recognise = Recogniser.recognise

    def count(self, windows, *rest):
        sizes.append(len(windows))
        return recognise(self, windows, *rest)

    monkeypatch.setattr(Recogniser, "recognise", count)
    return sizes


def texts(folder: Path) -> dict[str, str]:
    """What a folder of transcripts holds, by path below it."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.*")) if JOURNAL not in p.parts}


def assert_went_on(again, whole, folder):
    """What was killed and started again has written what a whole run writes, and did one file at most twice."""
    for process in (again, whole):
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    assert texts(folder / "out") == texts(folder / "whole")
    names = done(folder / "out")
    assert len(set(names)) == len(SECONDS) + 1 and len(names) <= len(set(names)) + 1, "one file at most was done twice"


def done(folder: Path) -> list[str]:
    """The files that the journals of a folder say are done, as often as they say it."""
    rows = [row for p in (folder / JOURNAL).glob("*.jsonl") for row in p.read_text().splitlines()]
    whole = [json.loads(row) for row in rows if row.endswith("}")]
    return [row["name"] for row in whole if row["state"] is not None]


# --- batches ----------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(("size", "seconds"), [(1, 240.0), (3, 2.0), (16, 240.0)])
def test_a_batch_over_files_gives_what_each_file_gives(kind, size, seconds, models, audio):
    recogniser = Job(model=str(models / kind)).load()
    files = find_audio([audio])
    seen = []
    how = TranscribeOptions(batch_seconds=seconds, batch_size=size)
    found = {o.file: o for o in transcribe_files(recogniser, files, how, lambda *done: seen.append(done))}
    assert set(found) == set(files) and not any(o.error for o in found.values())
    assert all(o.baseline is None for o in found.values())
    for file in files:
        alone = recogniser.transcribe(file.path)
        ours = found[file].transcript
        assert (ours.text, ours.seconds, ours.source) == (alone.text, alone.seconds, alone.source)
        assert [(s.start, s.end, s.text) for s in ours.segments] == [(s.start, s.end, s.text) for s in alone.segments]
        scores = [s.score for s in ours.segments]
        assert scores == pytest.approx([s.score for s in alone.segments], abs=1e-3)
    done, total = zip(*seen, strict=True)
    assert list(done) == sorted(done) and done[-1] == pytest.approx(total[-1])
    assert total[-1] == pytest.approx(sum(SECONDS.values()) + 1, abs=0.01)
    assert len({o.transcript.text for o in found.values()}) > 4, "files that sound differently are written differently"


@pytest.mark.cuda
@KINDS
def test_many_files_on_a_gpu_give_what_they_give_on_a_cpu(kind, models, audio):
    """The same windows and scores; the same text, unless two have one score."""
    files, found = find_audio([audio]), []
    for device in ("cpu", "cuda"):
        recogniser = Job(model=str(models / kind), device=device).load()
        assert recogniser.model.device.type == device
        found.append({o.file: o for o in transcribe_files(recogniser, files, TranscribeOptions(batch_size=3))})
    for file in files:
        here, there = (outputs[file].transcript for outputs in found)
        assert [(s.start, s.end) for s in there.segments] == [(s.start, s.end) for s in here.segments]
        assert [s.score for s in there.segments] == pytest.approx([s.score for s in here.segments], rel=1e-3)
    same = sum(a[f].transcript.text == b[f].transcript.text for a, b in [found] for f in files)
    assert same >= 0.8 * len(files)


def test_batches_hold_windows_of_many_files(models, audio, heard):
    recogniser = Job(model=str(models / "rnnt")).load()
    list(transcribe_files(recogniser, find_audio([audio]), TranscribeOptions(batch_size=4)))
    windows = sum(heard)
    assert windows >= 14 and max(heard) == 4 and len(heard) == -(-windows // 4), "no batch but the last is part full"
    heard.clear()
    list(transcribe_files(recogniser, find_audio([audio]), TranscribeOptions(batch_seconds=2.0)))
    assert sum(heard) == windows and len(heard) >= sum(SECONDS.values()) / 2


def test_the_outcomes_come_in_the_order_of_the_files(models, audio):
    """Though short files are ready before long ones."""
    names = ["long.wav", "music/tiny.wav", "calls/late/f.flac", "a.wav", "b.flac"]
    files = find_audio([audio / name for name in names])
    job, how = Job(model=str(models / "rnnt")), TranscribeOptions(batch_size=2)
    assert [o.file for o in run_job(job, files, how)] == files
    found = ilme.transcribe([audio / name for name in names], model=models / "rnnt", options=how)
    assert [o.file.path.name for o in found] == [Path(name).name for name in names]


def test_a_job_needs_a_domain_or_a_model(models, audio):
    with pytest.raises(BadInputError, match="name a domain folder"):
        ilme.transcribe(audio)
    with pytest.raises(BadInputError, match="language was chosen when the domain"):
        ilme.transcribe(audio, domain=models / "domain", model_options={"language": "de"})
    with pytest.raises(BadInputError, match="takes no timestamps"):
        ilme.transcribe(audio, model=models / "rnnt", timestamps=True)
    with pytest.raises(BadInputError, match="takes no language"):
        ilme.transcribe(audio, model=models / "rnnt", model_options={"language": "de"})
    with pytest.raises(BadInputError, match="int4"):
        ilme.transcribe(audio, model=models / "rnnt", format="int4")
    with pytest.raises(BadInputError, match="no format is called 'pdf'"):
        ilme.transcribe(audio, model=models / "rnnt", out=audio / "x", formats=["pdf"])
    with pytest.raises(BadInputError, match="a batch needs seconds and size"):
        TranscribeOptions(batch_size=0)
    assert list(run_job(Job(model="nowhere"), [], TranscribeOptions())) == [], "nothing to do needs no model"


# --- files that fail --------------------------------------------------------------------------------------------------


def test_a_broken_file_fails_alone(models, tmp_path):
    good = write_wave(tmp_path / "good.wav", 0.8, 1)
    whole = write_wave(tmp_path / "cut.flac", 6.0, 2).read_bytes()
    (tmp_path / "cut.flac").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("this is no audio\n" * 50)
    (tmp_path / "cut.wav").write_bytes(good.read_bytes()[:20])
    soundfile.write(tmp_path / "nothing.wav", np.zeros(0, np.float32), RATE)
    names = ["empty.wav", "good.wav", "text.wav", "cut.wav", "missing.wav", "nothing.wav", "cut.flac"]
    outcomes = ilme.transcribe([tmp_path / name for name in names], model=models / "rnnt", out=tmp_path / "out")
    by_name = {o.file.path.name: o for o in outcomes}
    assert list(by_name) == names
    recogniser = Job(model=str(models / "rnnt")).load()
    assert by_name["good.wav"].transcript.text == recogniser.transcribe(good).text
    for name in names:
        if name not in ("good.wav", "cut.flac"):
            assert by_name[name].transcript is None and name in by_name[name].error, name
    assert "there is no file" in by_name["missing.wav"].error
    assert "zero bytes" in by_name["empty.wav"].error
    written = texts(tmp_path / "out")
    assert "good.txt" in written and set(written) <= {"good.txt", "cut.flac.txt"}
    assert bool(by_name["cut.flac"].error) == ("cut.flac.txt" not in written)


def test_a_recording_that_cannot_be_searched_fails_alone(models, audio, monkeypatch):
    """The whole batch fails, then its parts are tried one by one."""
    files = find_audio([audio / name for name in ("a.wav", "b.flac", "calls/d.wav")])
    recogniser = Job(model=str(models / "rnnt")).load()
    nbest = recogniser.nbest
    odd = round(SECONDS["b.flac"] * RATE)

    def fail(waves):
        if any(len(w) == odd for w in waves):
            raise RuntimeError("not enough memory")
        return nbest(waves)

    monkeypatch.setattr(recogniser, "nbest", fail)
    found = {o.file.path.name: o for o in transcribe_files(recogniser, files)}
    assert found["b.flac"].error == "it could not be recognised: not enough memory"
    assert found["a.wav"].transcript.text and not found["a.wav"].error and not found["d.wav"].error


# --- the output folder ------------------------------------------------------------------------------------------------


def test_paths_are_kept_below_the_output_folder(models, audio, tmp_path):
    outcomes = ilme.transcribe(audio, model=models / "rnnt", out=tmp_path, formats=["txt", "json"])
    names = {str(Path(name).with_suffix("")) for name in (*SECONDS, "silence.wav")}
    assert set(texts(tmp_path)) == {f"{name}.{suffix}" for name in names for suffix in ("txt", "json")}
    for outcome in outcomes:
        for suffix in ("txt", "json"):
            assert (tmp_path / f"{outcome.file.name}.{suffix}").read_text() == render(outcome.transcript, suffix)
    assert (tmp_path / "silence.txt").read_text() == "\n"


def test_files_that_differ_in_their_suffix_alone_keep_it(models, tmp_path):
    for seed, name in enumerate(("x/a.wav", "x/a.flac", "x/b.wav")):
        write_wave(tmp_path / "audio" / name, 0.5, seed)
    ilme.transcribe(tmp_path / "audio", model=models / "rnnt", out=tmp_path / "out")
    assert set(texts(tmp_path / "out")) == {"x/a.flac.txt", "x/a.wav.txt", "x/b.txt"}


def test_files_that_would_be_written_to_one_place_are_refused_before_any_is_heard(models, tmp_path, heard):
    first, second = (write_wave(tmp_path / "audio" / name, 0.3) for name in ("p/same.wav", "q/same.wav"))
    with pytest.raises(
        BadInputError, match=r"p/same\.wav and .*q/same\.wav would both be written to .*same\.txt; name"
    ):
        ilme.transcribe([first, second], model=models / "rnnt", out=tmp_path / "out")
    assert not heard and not texts(tmp_path / "out")
    ilme.transcribe(tmp_path / "audio", model=models / "rnnt", out=tmp_path / "out")
    assert set(texts(tmp_path / "out")) == {"p/same.txt", "q/same.txt"}


def test_the_baseline_is_written_beside_it(models, audio, tmp_path):
    how = TranscribeOptions(baseline=True)
    outcomes = ilme.transcribe(audio / "calls", domain=models / "domain", out=tmp_path, options=how)
    fused = Job(domain=str(models / "domain")).load()
    plain = Recogniser(fused.model, options=fused.options)
    assert fused.weights != FusionWeights()
    for outcome in outcomes:
        assert outcome.transcript.text == fused.transcribe(outcome.file.path).text
        assert outcome.baseline.text == plain.transcribe(outcome.file.path).text
        assert (tmp_path / f"{outcome.file.name}.txt").read_text() == outcome.transcript.text + "\n"
        assert (tmp_path / f"{outcome.file.name}.baseline.txt").read_text() == outcome.baseline.text + "\n"
    assert any(o.transcript.text != o.baseline.text for o in outcomes)


def test_what_another_run_wrote_is_not_overwritten_unasked(models, audio, tmp_path, heard):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(BadInputError, match=r"a\.txt is there already, and this run did not write it"):
        ilme.transcribe(audio, model=models / "rnnt", out=tmp_path)
    assert texts(tmp_path) == {"a.txt": "mine"} and not heard, "it is said before anything is done"
    ilme.transcribe(audio, model=models / "rnnt", out=tmp_path, overwrite=True)
    before = texts(tmp_path)
    assert before["a.txt"] != "mine"
    for settings in (
        {"domain": models / "domain"},
        {"options": TranscribeOptions(baseline=True)},
        {"model": models / "aed"},
    ):
        with pytest.raises(BadInputError, match="is there already"):
            ilme.transcribe(audio, **({"model": models / "rnnt"} | settings), out=tmp_path)
    assert texts(tmp_path) == before
    with pytest.raises(BadInputError, match="is a file; name a folder"):
        ilme.transcribe(audio, model=models / "rnnt", out=tmp_path / "a.txt")


def test_what_was_overwritten_is_not_taken_for_done(models, audio, tmp_path):
    ilme.transcribe(audio / "calls", model=models / "rnnt", out=tmp_path)
    ilme.transcribe(audio / "calls", model=models / "aed", out=tmp_path, overwrite=True)
    with pytest.raises(BadInputError, match="is there already"):
        ilme.transcribe(audio / "calls", model=models / "rnnt", out=tmp_path)
    assert ilme.transcribe(audio / "calls", model=models / "aed", out=tmp_path) == []


# --- killed, and started again ----------------------------------------------------------------------------------------


def test_a_second_run_does_the_rest(models, audio, tmp_path, heard, monkeypatch):
    whole = tmp_path / "whole"
    ilme.transcribe(audio, model=models / "rnnt", out=whole)
    plain, written = Output.write, []

    def stop(self, outcome):
        if len(written) == 4:
            raise KeyboardInterrupt
        plain(self, outcome)
        written.append(outcome.file)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Output, "write", stop)
        ilme.transcribe(audio, model=models / "rnnt", out=tmp_path / "out")
    assert len(texts(tmp_path / "out")) == 4
    kept = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in texts(tmp_path / "out")}
    outcomes = ilme.transcribe(audio, model=models / "rnnt", out=tmp_path / "out")
    assert len(outcomes) == len(SECONDS) + 1 - 4 and not {o.file for o in outcomes} & set(written)
    assert texts(tmp_path / "out") == texts(whole)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == when for name, when in kept.items())
    heard.clear()
    assert ilme.transcribe(audio, model=models / "rnnt", out=tmp_path / "out") == [] and not heard


@pytest.mark.parametrize("files", [1, 2])
def test_a_kill_between_two_writes_of_a_file_does_that_file_again(files, models, audio, tmp_path, monkeypatch):
    """One of its formats is there, or both and no line in the journal: this job wrote them, so it may write them."""
    from ilme.workflows import transcribe_output as module

    plain = module.write_transcript

    def die(transcript, folder, name, formats):
        plain(transcript, folder, name, formats[:files])
        raise KeyboardInterrupt

    arguments = {"model": models / "rnnt", "out": tmp_path / "out", "formats": ["txt", "srt"]}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write_transcript", die)
        ilme.transcribe(audio / "calls", **arguments)
    assert len(texts(tmp_path / "out")) == files
    outcomes = ilme.transcribe(audio / "calls", **arguments)
    assert len(outcomes) == 4
    ilme.transcribe(audio / "calls", **arguments | {"out": tmp_path / "whole"})
    assert texts(tmp_path / "out") == texts(tmp_path / "whole")


def test_a_torn_journal_line_is_not_there(models, audio, tmp_path):
    ilme.transcribe(audio / "calls", model=models / "rnnt", out=tmp_path)
    before = texts(tmp_path)
    (journal,) = (tmp_path / JOURNAL).glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-9])
    for left in (1, 0):  # what is noted after a torn line counts
        outcomes = ilme.transcribe(audio / "calls", model=models / "rnnt", out=tmp_path)
        assert len(outcomes) == left and texts(tmp_path) == before


def test_changed_audio_is_transcribed_again(models, tmp_path):
    for seed, name in enumerate(("a.wav", "b.wav")):
        write_wave(tmp_path / "audio" / name, 1.0, seed)
    arguments = {"model": models / "rnnt", "out": tmp_path / "out"}
    ilme.transcribe(tmp_path / "audio", **arguments)
    before = texts(tmp_path / "out")
    write_wave(tmp_path / "audio" / "b.wav", 1.5, 7)
    (outcome,) = ilme.transcribe(tmp_path / "audio", **arguments)
    assert outcome.file.name == "b" and texts(tmp_path / "out") == before | {"b.txt": outcome.transcript.text + "\n"}
    assert outcome.transcript.seconds == 1.5
    (tmp_path / "out" / "a.txt").unlink()
    (outcome,) = ilme.transcribe(tmp_path / "audio", **arguments)
    assert outcome.file.name == "a" and texts(tmp_path / "out")["a.txt"] == before["a.txt"]


def test_a_model_trained_again_is_another_job(models, tmp_path):
    write_wave(tmp_path / "audio" / "a.wav", 1.0)
    copy = write_checkpoints(tmp_path, ["rnnt"]) / "rnnt"
    ilme.transcribe(tmp_path / "audio", model=copy, out=tmp_path / "out")
    write_checkpoints(tmp_path, ["lm", "rnnt"])  # other draws of the same seed
    with pytest.raises(BadInputError, match="is there already"):
        ilme.transcribe(tmp_path / "audio", model=copy, out=tmp_path / "out")


def run(*arguments: str, pause: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SLOW, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PAUSE": str(pause)},
    )


@pytest.mark.slow
def test_a_job_survives_kill_minus_nine(models, audio, tmp_path):
    arguments = ["transcribe", "--model", str(models / "rnnt"), str(audio), "--batch_size", "1", "--out"]
    process = run(*arguments, str(tmp_path / "out"), pause=0.2)
    while len(done(tmp_path / "out")) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 3 <= len(done(tmp_path / "out")) < len(SECONDS)
    again, whole = run(*arguments, str(tmp_path / "out")), run(*arguments, str(tmp_path / "whole"))
    assert_went_on(again, whole, tmp_path)


@pytest.mark.slow
def test_two_workers_write_what_one_writes(models, audio, tmp_path):
    """A file that cannot be read takes nothing from the others; what two have done is done for one."""
    (audio / "broken.wav").write_bytes(b"RIFF")
    arguments = [sys.executable, "-m", "ilme.cli", "transcribe", "--model", str(models / "rnnt"), str(audio)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = [
        subprocess.run([*arguments, *more], capture_output=True, text=True, env=environment, timeout=300)
        for more in (["--out", str(tmp_path / "one")], ["--out", str(tmp_path / "two"), "--workers", "2"])
    ]
    (audio / "broken.wav").unlink()
    for ended in found:
        assert ended.returncode == 1 and "broken.wav" in ended.stderr, ended.stderr
    assert texts(tmp_path / "two") == texts(tmp_path / "one")
    assert len(texts(tmp_path / "two")) == len(SECONDS) + 1
    with_one = subprocess.run(
        [*arguments, "--out", str(tmp_path / "two")], capture_output=True, text=True, env=environment, timeout=300
    )
    assert with_one.returncode == 0 and len(done(tmp_path / "two")) == len(SECONDS) + 1, "nothing is left to do"


def test_processes_find_in_one_long_file_what_one_finds(models, tmp_path, monkeypatch):
    monkeypatch.undo()  # other processes have windows as long as ever
    write_wave(tmp_path / "long.wav", 65.0)
    job, options = Job(model=str(models / "rnnt")), TranscribeOptions(batch_size=1)
    files = find_audio([tmp_path / "long.wav"])
    done: list[tuple[float, float]] = []
    (shared,) = run_job(job, files, options, lambda *seconds: done.append(seconds), workers=2)
    (alone,) = run_job(job, files, options)
    assert shared == alone and len(shared.transcript.segments) == len(done) == 3
    assert done[-1] == (65.0, 65.0)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_command_and_what_they_found_is_kept(models, audio, tmp_path, kill):
    arguments = ["transcribe", "--model", str(models / "rnnt"), str(audio), "--batch_size", "1", "--workers", "2"]
    process = run(*arguments, "--out", str(tmp_path / "out"), pause=0.2)
    while len(done(tmp_path / "out")) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(kill)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    again, whole = run(*arguments, "--out", str(tmp_path / "out")), run(*arguments, "--out", str(tmp_path / "whole"))
    assert_went_on(again, whole, tmp_path)
