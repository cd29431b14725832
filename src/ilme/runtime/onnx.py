"""ONNX Runtime, which tells nobody what it runs."""

from __future__ import annotations

import os
from typing import Any

from ilme.errors import MissingExtraError

__all__ = ["import_onnxruntime"]


def import_onnxruntime(extra: str) -> Any:
    """The module, with its reports to its makers switched off.

    Args:
        extra: The one that is to be installed if it is missing.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when it is first imported; later calls come too late
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", extra) from error
    return onnxruntime
