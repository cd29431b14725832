"""Property-based tests draw the same cases on every run, so that a commit passes or fails for good.

`make fuzz` draws new ones: where it finds a failure, mend the code or the property. What a test draws itself is the
same too, whichever tests ran before it. Torch computes on one thread, as processes that tests start do: some tests
compare numbers to the last bit. Ctrl-C counts in a background job too, where shells let it be ignored. Tests marked
`cuda` are left out where there is no CUDA device.
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import settings

import ilme  # noqa: F401  (before torch first uses oneDNN: some processors trap what they announce)

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("fixed", derandomize=True)
settings.register_profile("fuzz", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device: `make cuda` runs this where there is one"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (for what draws from the shared generator)
    torch.manual_seed(0)
