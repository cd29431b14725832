"""`import ilme`: every name is there, shown, and costs nothing before it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import ilme

NEEDED = {
    "AttentionOptions", "AttentionSearch", "Fusion", "FusionWeights", "Recogniser", "TransducerOptions",
    "TransducerSearch", "__version__", "adapt", "evaluate", "internal_lm", "load_domain", "load_lm", "load_model",
    "transcribe", "tune",
}  # fmt: skip


def test_every_name_is_shown_and_there():
    assert set(ilme.__all__) >= NEEDED
    assert dir(ilme) == sorted(ilme.__all__)
    for name in ilme.__all__:
        assert getattr(ilme, name) is not None
    assert ilme.__version__ == version("ilme")
    with pytest.raises(AttributeError, match="module 'ilme' has no attribute 'load'"):
        _ = ilme.load  # type: ignore[attr-defined]


def test_names_are_those_of_their_modules():
    from ilme.ilm import internal_lm
    from ilme.recogniser.domain import load_domain
    from ilme.recogniser.loading import load_model
    from ilme.workflows.adapt import adapt

    assert ilme.load_domain is load_domain and ilme.load_model is load_model
    assert ilme.adapt is adapt and ilme.internal_lm is internal_lm


def test_importing_costs_nothing():
    code = "import sys, ilme; dir(ilme); sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
