"""The search that is replayed from CUDA graphs, against the plain one."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from ilme.runtime.cuda import Executor
from ilme.search.transducer import WIDEST, Idle, TransducerOptions, TransducerSearch
from tests.losses.test_kernels import needs_triton, told
from tests.search.test_transducer import transducer


@needs_triton
@pytest.mark.slow
def test_with_interpreted_kernels_it_finds_the_same():
    # the interpreter is slow: a GPU, or the command without names, checks all of the cases
    names = "phrases, smoothed", "HAT", "blank-aware, with the end", "no repeats, few labels"
    assert "searches agree" in told("search.recorded_check", "cpu", *names, TRITON_INTERPRET="1")


@pytest.mark.cuda
def test_on_a_gpu_it_finds_the_same():
    assert "searches agree" in told("search.recorded_check", "cuda", TRITON_INTERPRET="0")


def test_what_can_be_recorded(monkeypatch):
    model = transducer(1)
    assert not TransducerSearch(model).records  # on a CPU
    monkeypatch.setattr("ilme.search.transducer.kernels_run_on", lambda device: True)
    assert TransducerSearch(model).records
    assert not TransducerSearch(model, options=TransducerOptions(beam=WIDEST // 4 + 1)).records
    model.capturable = False
    assert not TransducerSearch(model).records


def test_what_is_idle_is_not_copied():
    idle = Idle([object()])
    assert copy.deepcopy(idle) == pickle.loads(pickle.dumps(idle)) == []


def test_without_a_gpu_work_is_done_each_time():
    done = []
    executor = Executor(torch.device("cpu"))
    for _ in range(3):
        executor("work", lambda: done.append(1))
    executor.wait()
    assert len(done) == 3 and not executor.graphs
