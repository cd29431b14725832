"""Several processes on this machine: the command starts itself again under torchrun."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from ilme.errors import BadInputError, UsageError

__all__ = ["share_among"]


def share_among(workers: int) -> int | None:
    """The exit status of `workers` processes that did the work; None if this process is to do it.

    A worker that ends with 1 or 2 has said why, as this process would have.
    """
    if workers < 1:
        raise UsageError(f"--workers must be at least 1, got {workers}")
    if workers == 1 or "RANK" in os.environ:
        return None
    launcher = ["-m", "ilme.commands.workers", "--standalone", f"--nproc-per-node={workers}"]
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)), **os.environ}
    code = _status(_run([sys.executable, *launcher, "-m", "ilme.cli", *sys.argv[1:]], environment))
    if code not in (0, 1, 2):
        raise BadInputError(
            f"a worker {_ending(code)}; what was decoded is kept, run the command again, with fewer workers if memory "
            "was short"
        )
    return code


def _status(code: int) -> int:
    """As shells write it: 128 + the signal's number."""
    return 128 - code if code < 0 else code


def _ending(code: int) -> str:
    known = {s.value: s.name for s in signal.Signals}
    number = code - 128 if code > 128 else code
    return f"was ended by {known[number]}" if code > 128 and number in known else f"ended with status {code}"


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Runs the launcher; whatever ends this process ends it too, and it ends its workers.

    It has a process group of its own, so that Ctrl-C in a terminal reaches it once, through this process: a second
    signal would break off the ending of its workers.
    """
    with subprocess.Popen(command, env=environment, process_group=0) as launched:
        try:
            return launched.wait()
        except BaseException:
            launched.terminate()
            launched.wait()
            raise


def _launch(arguments: Sequence[str]) -> int:
    """torchrun without its traces and its log: a worker that fails says itself why."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        main(list(arguments))
        return 0
    except SignalException as stop:
        return 128 + stop.sigval
    except ChildFailedError as error:
        return _status(error.get_first_failure()[1].exitcode)


if __name__ == "__main__":
    sys.exit(_launch(sys.argv[1:]))
