"""Domains of one model share its weights, and write what they write alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ilme.errors import BadInputError
from ilme.recogniser.domain import load_domain
from ilme.recogniser.shared_models import SharedModels
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.transcribe import Job
from tests.checkpoints import write_checkpoints, write_wave


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of one model, one of them by a link to it."""
    folder = write_checkpoints(tmp_path_factory.mktemp("models"), ["rnnt", "aed"])
    (folder / "link").symlink_to("rnnt")
    for name, model, text in (("sea", "rnnt", "the sea was calm\n"), ("whale", "link", "the whale swam\n")):
        (folder / f"{name}.txt").write_text(text * 9)
        options = AdaptOptions(order=2, prune=(0,), beam=3)
        adapt(folder / model, [str(folder / f"{name}.txt")], folder / name, options=options)
    return folder


def test_domains_of_one_model_share_it_and_write_what_they_write_alone(folder: Path, tmp_path: Path) -> None:
    models, wave = SharedModels(), write_wave(tmp_path / "a.wav", 1.2, 3)
    together = {name: load_domain(folder / name, load=models) for name in ("sea", "whale")}
    plain = Job(model=str(folder / "rnnt")).load(models)
    assert together["sea"].model is together["whale"].model is plain.model
    assert together["sea"].lm is not together["whale"].lm
    for _ in range(2):  # one after the other, and again: nothing is left of what the other heard
        for name, recogniser in together.items():
            assert recogniser.transcribe(wave) == load_domain(folder / name).transcribe(wave)
        assert plain.transcribe(wave) == Job(model=str(folder / "rnnt")).load().transcribe(wave)


def test_another_model_other_options_and_a_changed_file_are_loaded(folder: Path) -> None:
    models = SharedModels()
    first = models(str(folder / "rnnt"))
    assert models(folder / "rnnt") is first and models("bundled/rnnt") is models("bundled/rnnt")
    assert models(str(folder / "aed")) is not first
    with pytest.raises(BadInputError, match="no CTC layer"):  # it was tried: the AED that is there has another head
        models(str(folder / "aed"), head="ctc")
    for file in (folder / "rnnt").iterdir():
        os.utime(file, ns=(1, file.stat().st_mtime_ns + 10**9))
    assert models(str(folder / "rnnt")) is not first


def test_a_shared_model_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing again makes a second copy of the weights, which may stay for a while."""
    from ilme.adapters import decoder

    linear = decoder.Linear(torch.randn(4, 3), None)
    made: list[str] = []
    monkeypatch.setattr(decoder, "packed_product", lambda weight, bias, format, *rest: made.append(format))
    for format in ("float32", "float32", "int8", "int8"):
        linear.pack(format)
    assert made == ["float32", "int8"]
