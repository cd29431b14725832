"""The process that adapts for the service: a request as JSON at its input, a line for each thing done at its output.

It runs `ilme.adapt` and nothing else, at a low priority, and ends when the service does, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ilme.errors import IlmeError

__all__ = ["main"]

NICENESS = 10
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies


def main() -> int:
    """Adapts as the request says; the exit status, with the reason in the last line if it is 1."""
    if sys.platform == "linux":  # at once, before what takes long to import
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # the service died before that
        return 1
    os.nice(NICENESS)
    request: dict[str, Any] = json.loads(sys.stdin.read())
    lines = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no progress
            _adapt(request, lambda line: print(json.dumps({"done": line}), file=lines, flush=True))
    except IlmeError as error:
        print(json.dumps({"error": str(error)}), file=lines, flush=True)
        return 1
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=lines, flush=True)
        return 1
    return 0


def _adapt(request: dict[str, Any], say: Any) -> None:
    from ilme.recogniser.domain import Domain, model_of
    from ilme.workflows.adapt import adapt

    model, options = request["model"], request["model_options"]
    if request["domain"]:
        folder = Path(request["domain"])
        model, options = model_of(folder, Domain.read(folder), model)
    adapt(
        model,
        [request["text"]],
        request["out"],
        device=request["device"],
        format=request["format"],
        model_options=options,
        say=say,
    )


if __name__ == "__main__":
    sys.exit(main())
