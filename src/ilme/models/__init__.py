"""The paper's networks, each in one file with its config and presets beside it.

energies and energy_kernels: what the AED's attention computes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ilme.errors import BadInputError
from ilme.tokens import Tokens

__all__ = ["KINDS", "build", "preset"]

KINDS = ("rnnt", "aed", "lm")


def preset(kind: str, name: str) -> Any:
    """The config of a network at a named size."""
    presets = _module(kind).PRESETS
    if name not in presets:
        raise BadInputError(f"no preset {name!r} for {kind}; there are {', '.join(presets)}")
    return presets[name]


def build(kind: str, config: Any, tokens: Tokens) -> Any:
    """A network with fresh weights."""
    from ilme.models.fused_lm import attention_network
    from ilme.models.lstm_lm import LSTMLM
    from ilme.models.tdt import transducer_network

    makers: dict[str, Callable[[Any, Tokens], Any]] = {
        "rnnt": transducer_network,
        "aed": attention_network,
        "lm": LSTMLM,
    }
    return makers[kind](config, tokens)


def config_class(kind: str) -> type:
    return type(preset(kind, "paper"))


def _module(kind: str) -> Any:
    from ilme.models import aed, lstm_lm, rnnt

    modules = {"rnnt": rnnt, "aed": aed, "lm": lstm_lm}
    if kind not in modules:
        raise BadInputError(f"no network {kind!r}; there are {', '.join(modules)}")
    return modules[kind]
