"""`ilme doctor` finds what is wrong with a machine, and says what to do."""

from __future__ import annotations

import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import get_args

import pytest
import torch

from ilme import bundle
from ilme.models.packed import PackingError
from ilme.runtime import cpu
from ilme.runtime.formats import Format
from ilme.runtime.network import PATIENCE
from ilme.workflows import doctor


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def named(what: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.what == what)


def test_a_problem_or_a_note_has_advice_and_what_is_fine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    findings = doctor.examine()
    assert len({finding.what for finding in findings}) == len(findings)
    assert all(bool(finding.advice) == (finding.verdict != "fine") for finding in findings)
    assert named("threads").verdict == "problem" and "OMP_NUM_THREADS=" in named("threads").advice


@pytest.mark.parametrize(("limit", "cores"), [("150000 100000", 1.5), ("max 100000", None), ("", None)])
def test_a_containers_share_bounds_the_cores(limit: str, cores: float | None, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    file = tmp_path / "cpu.max"
    file.write_text(limit)
    assert doctor.usable_cores(file) == (8.0 if cores is None else cores)


def test_amx_that_traps_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Some Processor\nflags\t\t: fpu avx2 avx512f amx_tile\n")
    monkeypatch.setattr(cpu, "CPUINFO", info)
    monkeypatch.setattr(cpu, "amx_works", lambda: False)
    found = named("processor")
    assert found.verdict == "note" and found.found == "Some Processor; AVX2, AVX-512, AMX; AMX is announced but traps"
    monkeypatch.setattr(cpu, "amx_works", lambda: True)
    assert named("processor").verdict == "fine"
    info.write_text("model name\t: Old Processor\nflags\t\t: fpu sse2\n")
    assert "AVX2" in named("processor").advice


def test_a_driver_without_a_cuda_torch_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert doctor._gpu(tmp_path / "none").verdict == "fine"
    driver = tmp_path / "version"
    driver.write_text("NVRM version: 1\n")
    assert doctor._gpu(driver).verdict == "problem"


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "torch>=2.11",
        'transformers>=5; extra == "hf"',
        "tokenizers>=0.21; extra == 'hf'",
        'ray>=2; extra == "ray"',
        'pytest>=8; extra == "dev"',
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines)
    assert doctor.extras_of("ilme") == {"hf": ["transformers", "tokenizers"], "ray": ["ray"], "dev": ["pytest"]}
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name not in ("ray", "pytest"))
    whole, missing = doctor._extras()
    assert whole.found == "hf" and missing.found == "ray" and missing.advice.endswith("pip install 'ilme[ray]'")
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name in ("ilme", "transformers"))
    whole, missing = doctor._extras()
    assert whole.found == "none" and missing.found == "hf (lacks tokenizers), ray" and "'ilme[hf]'" in missing.advice


def test_formats_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(named("weight formats").found.split(", ")) <= {*get_args(Format)}
    whole = doctor.packed_product

    def without_bfloat16(weight: torch.Tensor, bias: torch.Tensor, format: Format) -> object:
        if format == "bfloat16":
            raise PackingError("no such kernels")
        return whole(weight, bias, format)

    monkeypatch.setattr(doctor, "packed_product", without_bfloat16)
    found = named("weight formats")
    assert "bfloat16" not in found.found and "float32" in found.found
    assert found.verdict == "note" and "--format bfloat16" in found.advice


def test_models_of_the_hub_are_looked_for_where_the_environment_says(tmp_path: Path) -> None:
    for name in ("models--openai--whisper-tiny.en", "models--gpt2", "datasets--x"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    found = doctor._hub_cache({"HF_HOME": str(tmp_path)})
    assert found.found == f"{tmp_path / 'hub'}: gpt2, openai/whisper-tiny.en"
    assert doctor._hub_cache({"HF_HUB_CACHE": str(tmp_path / "empty")}).found.endswith("no model yet")


def test_the_hub_is_asked_unless_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: list[Exception] = []

    def asked(request: urllib.request.Request, timeout: float) -> None:
        assert request.full_url == "http://hub.example" and timeout == PATIENCE
        raise answer[0]

    monkeypatch.setattr(urllib.request, "urlopen", asked)
    answer[:] = [urllib.error.HTTPError("http://hub.example", 403, "no", Message(), None)]
    assert doctor._hub({"HF_ENDPOINT": "http://hub.example"}).verdict == "fine"
    answer[:] = [urllib.error.URLError("no such name")]
    found = doctor._hub({"HF_ENDPOINT": "http://hub.example"})
    assert found.verdict == "note" and "no such name" in found.found and "folder" in found.advice
    assert "HF_HUB_OFFLINE" in doctor._hub({"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://hub.example"}).found


def test_missing_files_and_space_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._space("here", tmp_path / "gone").verdict == "problem"
    monkeypatch.setattr(doctor, "LEAST_SPACE", 1 << 60)
    assert doctor._space("here", tmp_path).advice.startswith("make room")
    monkeypatch.setattr(bundle, "FOLDER", tmp_path)
    assert named("bundled models").verdict == "problem"
