"""`ilme` whose searches take a while, for tests that kill it: python slow_job.py SECONDS COMMAND …"""

from __future__ import annotations

import sys
import time

from ilme.cli import main
from ilme.recogniser.recogniser import Recogniser

pause = float(sys.argv.pop(1))
recognise = Recogniser.recognise


def slowly(self, *asked):  # type: ignore[no-untyped-def]
    time.sleep(pause)
    return recognise(self, *asked)


Recogniser.recognise = slowly  # type: ignore[method-assign]
sys.exit(main(sys.argv[1:]))
