"""Make any end-to-end speech recogniser good at a new domain, from text alone.

    import ilme
    recogniser = ilme.load("my-domain")              # a folder that `ilme adapt` wrote
    print(recogniser.transcribe("call.wav").text)

Names are imported when they are first used, so that `import ilme` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "AttentionOptions": "ilme.search.attention",
    "AttentionSearch": "ilme.search.attention",
    "Fusion": "ilme.fusion",
    "FusionWeights": "ilme.fusion",
    "TransducerOptions": "ilme.search.transducer",
    "TransducerSearch": "ilme.search.transducer",
    "internal_lm": "ilme.ilm",
    "load": "ilme.recogniser.domain",
    "load_model": "ilme.models.checkpoint",
    "save_model": "ilme.models.checkpoint",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'ilme' has no attribute {name!r}")
