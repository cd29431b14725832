"""Make any end-to-end speech recogniser good at a new domain, from text alone.

    import ilme
    recogniser = ilme.load_domain("my-domain")              # a folder that `ilme adapt` wrote
    print(recogniser.transcribe("call.wav").text)

Names are imported when they are first used, so that `import ilme` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ilme.runtime.cpu import avoid_trapped_amx

if TYPE_CHECKING:
    from ilme.fusion import Fusion, FusionWeights
    from ilme.ilm import internal_lm
    from ilme.models.checkpoint import save_model
    from ilme.recogniser.domain import load_domain
    from ilme.recogniser.loading import load_lm, load_model
    from ilme.recogniser.recogniser import Recogniser
    from ilme.search.attention import AttentionOptions, AttentionSearch
    from ilme.search.ctc import CTCOptions, CTCSearch
    from ilme.search.tdt import TDTSearch
    from ilme.search.transducer import TransducerOptions, TransducerSearch
    from ilme.workflows.adapt import adapt
    from ilme.workflows.evaluate import evaluate
    from ilme.workflows.transcribe import transcribe
    from ilme.workflows.tune import tune


_WHERE = {
    "AttentionOptions": "ilme.search.attention",
    "AttentionSearch": "ilme.search.attention",
    "CTCOptions": "ilme.search.ctc",
    "CTCSearch": "ilme.search.ctc",
    "Fusion": "ilme.fusion",
    "FusionWeights": "ilme.fusion",
    "Recogniser": "ilme.recogniser.recogniser",
    "TDTSearch": "ilme.search.tdt",
    "TransducerOptions": "ilme.search.transducer",
    "TransducerSearch": "ilme.search.transducer",
    "adapt": "ilme.workflows.adapt",
    "evaluate": "ilme.workflows.evaluate",
    "internal_lm": "ilme.ilm",
    "load_domain": "ilme.recogniser.domain",
    "load_lm": "ilme.recogniser.loading",
    "load_model": "ilme.recogniser.loading",
    "save_model": "ilme.models.checkpoint",
    "transcribe": "ilme.workflows.transcribe",
    "tune": "ilme.workflows.tune",
}

__all__ = [
    "AttentionOptions",
    "AttentionSearch",
    "CTCOptions",
    "CTCSearch",
    "Fusion",
    "FusionWeights",
    "Recogniser",
    "TDTSearch",
    "TransducerOptions",
    "TransducerSearch",
    "__version__",
    "adapt",
    "evaluate",
    "internal_lm",
    "load_domain",
    "load_lm",
    "load_model",
    "save_model",
    "transcribe",
    "tune",
]


__version__ = "0.3.0"

avoid_trapped_amx()  # before torch first uses oneDNN


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'ilme' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
