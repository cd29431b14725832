"""Weights packed for the CPU: chosen by name, harmless where they cannot be, counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.models.packed import PackedLinear, PackedLSTMStack, PackingError, is_packed
from ilme.recogniser.loading import Parts, describe, load_recogniser
from ilme.recogniser.packing import pack_networks, run_time_parameters
from tests.checkpoints import write_checkpoints
from tests.models.test_packed import available


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("packing"))


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


def test_a_model_that_cannot_be_packed_stays_in_float32() -> None:
    class Closed:
        kind = "closed"

    available("int8")
    pack_networks(Closed(), (), "float32")
    with pytest.raises(BadInputError, match="'closed' cannot run in int8"):
        pack_networks(Closed(), (), "int8")
