"""`ilme info`: what a network is made of."""

from __future__ import annotations

import json as json_format
from typing import Literal


def info(
    model: Literal["rnnt", "aed", "lm"],
    preset: Literal["paper", "small", "tiny"] = "paper",
    vocabulary: int = 4000,
    json: bool = False,
) -> None:
    """Count the parameters of a network.

    Example:
        ilme info rnnt --preset paper

    Args:
        model: Which network.
        preset: Its size; `paper` is the size of Meng et al. 2020.
        vocabulary: Output units, with blank or eos.
        json: Print JSON instead of a table.
    """
    import torch

    from ilme import models
    from ilme.testing import numbered_tokens

    tokens = numbered_tokens(vocabulary, "transducer" if model == "rnnt" else "attention")
    with torch.device("meta"):
        network = models.build(model, models.preset(model, preset), tokens)
    counted = {name: _count(part) for name, part in network.components().items()}
    total = _count(network)
    if json:
        print(json_format.dumps({"model": model, "preset": preset, "parameters": total, "components": counted}))
        return
    print(f"{model} ({preset}, {vocabulary} output units)")
    for name, number in [*counted.items(), ("total", total)]:
        print(f"  {name:<12} {number / 1e6:8.2f} M")


def _count(module: object) -> int:
    return sum({id(p): p.numel() for p in module.parameters()}.values())  # type: ignore[attr-defined]
