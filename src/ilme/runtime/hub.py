"""The hub of models, asked once whether it is there.

`transformers` asks again and again where there is no network: half a minute for a name that was misspelt.
"""

from __future__ import annotations

from pathlib import Path

from ilme.errors import CheckpointError

__all__ = ["check_reachable"]

PATIENCE = 10  # seconds


def check_reachable(name: str) -> None:
    """A CheckpointError where `name` is neither here nor in the hub's cache, and the hub gives no answer."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    if Path(name).exists() or constants.HF_HUB_OFFLINE:
        return
    try:
        known = try_to_load_from_cache(name, "config.json")
    except ValueError:  # a name that the hub would not take, of which the loader tells more
        return
    if known is not None:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception as error:  # each version of the hub's client has its own
        raise CheckpointError(
            f"{name} is not here, and the hub ({constants.ENDPOINT}) cannot be reached: {error}; check the name"
        ) from error
