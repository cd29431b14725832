"""Another LM inside a trained decoder: what Component Fusion does for a domain, and Cold Fusion can."""

from __future__ import annotations

from pathlib import Path

from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.fused_lm import replace_lm

__all__ = ["replace_inner_lm"]


def replace_inner_lm(model: str | Path, lm: str | Path, out: str | Path) -> Path:
    """Writes the model with another LM inside; the file.

    Args:
        model: An AED of `ilme train aed --fusion`.
        lm: An LSTM-LM over the same tokens, of `ilme train lm`.
        out: The folder or .safetensors file to write.
    """
    loaded = load_checkpoint(model, "aed")
    made = replace_lm(loaded.model, load_checkpoint(lm, "lm").model)
    return save_model(out, made, loaded.tokenizer, loaded.frontend)
