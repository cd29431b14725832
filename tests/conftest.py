"""Property-based tests draw the same cases on every run, so that a commit passes or fails for good.

`make fuzz` draws new ones: where it finds a failure, mend the code or the property.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("fuzz", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
