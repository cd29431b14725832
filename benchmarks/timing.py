"""Own CPU seconds of a piece of work, which other load on the machine disturbs least; what is measured, and on what."""

from __future__ import annotations

import json
import platform
import resource
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from ilme.study.provenance import commit as commit_of_code

Result = TypeVar("Result")


def own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def fastest(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """The least CPU time of `repeats` runs, of which the first also warms up, and the last result."""
    if repeats < 1:
        raise ValueError(f"nothing is measured in {repeats} runs")
    best = float("inf")
    for _ in range(repeats):
        before = own_cpu_seconds()
        result = work()
        best = min(best, own_cpu_seconds() - before)
    return best, result


def peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def forget_peak() -> float:
    """Starts the peak anew (Linux) and gives the memory now in use, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mb("VmRSS")


def peak_since_mb() -> float:
    """The peak since `forget_peak`."""
    return _status_mb("VmHWM")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def command() -> str:
    """What was typed: `python -m benchmarks.NAME …`, without the folder that this checkout lies in."""
    script = Path(sys.argv[0])
    return shlex.join(["python", "-m", f"{script.parent.name}.{script.stem}", *sys.argv[1:]])


def commit() -> str:
    """The commit that these benchmarks lie in, or what ILME_COMMIT says; `unknown` outside a git checkout."""
    return commit_of_code()[:7] or "unknown"


def publish(found: dict[str, Any], file: Path | None, **about: Any) -> None:
    """Prints a report as JSON, and writes it where a file is named: command, commit and machine before what was found.

    Args:
        found: The results.
        file: Where it is written as well.
        about: More about the run, such as its seed.
    """
    whole = {"command": command(), "commit": commit(), **about, "machine": machine(), **found}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    print(text)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    return {
        "processor": found.get("model name", platform.processor()),
        "instructions": [flag for flag in wanted if flag in found.get("flags", "").split()],
        "cores": len([line for line in lines if line.startswith("processor")]),
        "float32_gflops_25_rows": round(product_rate(), 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def product_rate() -> float:
    """GFLOP per CPU second of torch's own float32 product of 25 rows with a 4000 × 1024 matrix."""
    x, w = torch.randn(25, 1024), torch.randn(4000, 1024)
    with torch.no_grad():
        seconds, _ = fastest(lambda: [torch.nn.functional.linear(x, w) for _ in range(50)], 3)
    return 50 * 2 * 25 * 1024 * 4000 / seconds / 1e9
