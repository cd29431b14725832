"""Files shared over the workers of a cluster that is played in this process: Ray's calls, and workers that die."""

from __future__ import annotations

from collections import Counter

import pytest

from ilme.data.audio_files import find_audio
from ilme.errors import BadInputError
from ilme.workflows import transcribe_ray
from ilme.workflows.options import TranscribeOptions
from ilme.workflows.transcribe import Job, run_job
from tests.checkpoints import write_checkpoints, write_wave
from tests.ray_cluster import Cluster

FILES = 5


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(model=str(write_checkpoints(tmp_path_factory.mktemp("models")) / "rnnt"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    for number in range(FILES):
        write_wave(folder / f"{number}.wav", 0.3 + 0.1 * number, number)
    (folder / "broken.wav").write_bytes(b"no audio")
    return find_audio([folder])


@pytest.fixture(scope="module")
def alone(job, files):
    """What this process makes of each file."""
    return {o.file: (o.transcript, o.error) for o in run_job(job, files, TranscribeOptions())}


def deadly(**times):
    """A worker dies over a file of this name so many times."""
    left = Counter({f"{name.removeprefix('n')}.wav": count for name, count in times.items()})

    def dies(files):
        found = [f.path.name for f in files if left[f.path.name]]
        left.subtract(found[:1])
        return bool(found)

    return dies


def over(cluster, job, files, monkeypatch, workers=2, progress=None):
    monkeypatch.setattr(transcribe_ray, "connect", lambda address: (cluster, True))
    monkeypatch.setattr(transcribe_ray, "CHUNK_FILES", 2)
    return list(run_job(job, files, TranscribeOptions(), progress, "local", workers))


def test_workers_give_what_one_process_gives(job, files, alone, monkeypatch):
    cluster, seen = Cluster(), []
    outcomes = over(cluster, job, files, monkeypatch, progress=lambda done, total: seen.append(done / total))
    assert [o.file for o in outcomes] == files
    texts = {o.file: (o.transcript and o.transcript.text, o.error) for o in outcomes}
    assert texts == {file: (found and found.text, error) for file, (found, error) in alone.items()}
    assert sum(o.transcript is None for o in outcomes) == 1
    assert cluster.resources == [{"num_cpus": 1, "num_gpus": 0}] * 2 and not cluster.alive and not cluster.running
    assert seen == sorted(seen) and seen[-1] == pytest.approx(1.0)


def test_the_files_of_a_worker_that_died_are_given_to_another(job, files, alone, monkeypatch):
    cluster = Cluster(deadly(n0=2, n3=1))
    outcomes = over(cluster, job, files, monkeypatch)
    assert [(o.file, o.error) for o in outcomes] == [(file, alone[file][1]) for file in files]
    assert len(cluster.resources) == 2 + 3 and not cluster.alive


def test_files_over_which_every_worker_dies_fail_and_the_others_go_on(job, files, monkeypatch):
    outcomes = {o.file.path.name: o for o in over(Cluster(deadly(n2=99)), job, files, monkeypatch)}
    lost = {name for name, outcome in outcomes.items() if "3 workers died over it" in outcome.error}
    assert "2.wav" in lost and len(lost) == 2, "those that were sent together"
    assert sum(o.transcript is not None for o in outcomes.values()) == FILES - len(lost)


def test_no_worker_is_a_mistake(job, files, monkeypatch):
    with pytest.raises(BadInputError, match="at least one worker"):
        over(Cluster(), job, files, monkeypatch, workers=0)
