"""Several processes on this machine: the command starts itself again under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

from ilme.errors import BadInputError, UsageError

__all__ = ["share_among"]


def share_among(workers: int) -> bool:
    """True if the work was done by `workers` processes that this call started; False if this process is to do it."""
    if workers < 1:
        raise UsageError(f"--workers must be at least 1, got {workers}")
    if workers == 1 or "RANK" in os.environ:
        return False
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)), **os.environ}
    code = _run([sys.executable, *launcher, "-m", "ilme.cli", *sys.argv[1:]], environment)
    if code:
        raise BadInputError(f"a worker ended with status {code}; what was decoded is kept, run the command again")
    return True


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
