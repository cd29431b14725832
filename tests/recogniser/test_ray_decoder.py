"""A decoder over Ray's workers gives what one process gives: a cluster that is played here, and Ray itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.recogniser import ray_decoder
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder
from ilme.recogniser.ray_decoder import RayDecoder
from tests.ray_cluster import Cluster
from tests.recogniser.job import BEAM, WEIGHTS, make_recogniser, make_utterances

SMALL = DecodingOptions(batch_size=2)


def make(processes: Processes, folder: Path | None = None) -> SearchDecoder:
    if processes.world == 1:
        return SearchDecoder(make_recogniser(), make_utterances(), options=SMALL)
    where = None if folder is None else folder / str(processes.rank)
    return SearchDecoder(make_recogniser(), make_utterances(), options=SMALL, processes=processes, folder=where)


def test_workers_give_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, alone = Cluster(), make(Processes())
    monkeypatch.setattr(ray_decoder, "connect", lambda address: (cluster, True))
    with RayDecoder(lambda p: make(p, tmp_path), 3, resources={"num_gpus": 1}) as decoder:
        assert decoder.decode(WEIGHTS, BEAM) == alone.decode(WEIGHTS, BEAM)
        changed = {"max_repeats": 1}
        assert decoder.adjusted(changed).decode(WEIGHTS, BEAM) == alone.adjusted(changed).decode(WEIGHTS, BEAM)
        assert decoder.decode(WEIGHTS, BEAM) == alone.decode(WEIGHTS, BEAM), "the options are the other decoder's"
    assert cluster.resources == [{"num_gpus": 1}] * 3
    assert not cluster.alive and not cluster.running


def test_a_cluster_that_ran_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(ray_decoder, "connect", lambda address: (cluster, False))
    RayDecoder(lambda p: make(p, tmp_path), 2).close()
    assert cluster.resources == [{"num_cpus": 1}] * 2 and not cluster.alive and cluster.running


def test_no_worker_is_a_mistake() -> None:
    with pytest.raises(BadInputError, match="at least one worker"):
        RayDecoder(make, 0)


def test_ray_itself(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'ilme[ray]')")
    with RayDecoder(lambda p: make(p, tmp_path), 2) as decoder:
        lists = decoder.decode(WEIGHTS, BEAM)
    assert lists == make(Processes()).decode(WEIGHTS, BEAM)
