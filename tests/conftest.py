"""Property-based tests draw the same cases on every run, so that a commit passes or fails for good.

`make fuzz` draws new ones: where it finds a failure, mend the code or the property. Torch computes on one thread, as
processes that tests start do: some tests compare numbers to the last bit.
"""

from __future__ import annotations

import os

import torch
from hypothesis import settings

import ilme  # noqa: F401  (before torch first uses oneDNN: some processors trap what they announce)

torch.set_num_threads(1)

settings.register_profile("fixed", derandomize=True)
settings.register_profile("fuzz", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
