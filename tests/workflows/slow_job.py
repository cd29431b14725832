"""`ilme` whose searches take PAUSE seconds more, in its workers too, for tests that kill it."""

from __future__ import annotations

import os
import sys
import time

from ilme.cli import main
from ilme.recogniser.recogniser import Recogniser

recognise = Recogniser.recognise


def slowly(self, *asked):  # type: ignore[no-untyped-def]
    time.sleep(float(os.environ["PAUSE"]))
    return recognise(self, *asked)


Recogniser.recognise = slowly  # type: ignore[method-assign]
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
