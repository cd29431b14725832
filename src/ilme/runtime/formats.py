"""The number formats in which a network's weights can run on a CPU."""

from __future__ import annotations

from typing import Literal

__all__ = ["Format"]

Format = Literal["float32", "float16", "bfloat16", "int8"]
