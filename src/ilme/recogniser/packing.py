"""Weights packed for the CPU, for every network that a recogniser runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ilme.errors import BadInputError
from ilme.lm.mixture import MixtureScorer
from ilme.models.packed import pack, worth_packing
from ilme.runtime.formats import Format

__all__ = ["pack_networks", "run_time_parameters", "unmixed"]


def pack_networks(model: Any, scorers: Iterable[Any], format: Format) -> None:
    """Packs the networks in place; an attention decoder's linear layers stay in float32.

    Where this build of torch cannot pack float32, the networks stay as they are: slower, with the same results.
    """
    if not worth_packing(format):
        return
    if isinstance(model, nn.Module):
        pack(model, format, None if hasattr(model, "join") else "float32")
    elif hasattr(model, "pack"):
        model.pack(format)
    elif format != "float32":
        raise BadInputError(f"a model of kind {getattr(model, 'kind', '?')!r} cannot run in {format}: it is not packed")
    for scorer in scorers:
        for lm in unmixed(scorer):
            if hasattr(lm, "pack"):
                lm.pack(format)
            elif isinstance(lm, nn.Module):
                pack(lm, format)


def unmixed(scorer: Any) -> tuple[Any, ...]:
    """The LMs of a mixture; anything else is itself."""
    return tuple(scorer.scorers) if isinstance(scorer, MixtureScorer) else (scorer,)


def run_time_parameters(recogniser: Any, *, lm: bool = True, subtracted: bool = True) -> int:
    """Parameters of every network that runs at recognition time; an internal LM shares its host's."""
    networks = [recogniser.model]
    networks += unmixed(recogniser.lm) if lm else ()
    networks += unmixed(recogniser.subtracted) if subtracted and not hasattr(recogniser.subtracted, "host") else ()
    unique: dict[int, int] = {}
    for network in networks:
        for module in _modules(network):
            unique.update({id(p): p.numel() for p in module.parameters()})
    return sum(unique.values())


def _modules(network: Any) -> list[nn.Module]:
    """The torch modules of a network: itself, or those it keeps as attributes."""
    if network is None:
        return []
    if isinstance(network, nn.Module):
        return [network]
    return [v for v in vars(network).values() if isinstance(v, nn.Module)]
