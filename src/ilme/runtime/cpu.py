"""What this processor really can do: some virtual machines announce AMX and trap it.

oneDNN believes the announcement, and every bf16 and int8 product then ends the process with SIGILL. So before torch
first uses oneDNN a child process tries the instructions; if it dies, oneDNN is told to do without them. A processor
that does not announce AMX costs a look into /proc/cpuinfo and nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["LIMIT", "WITHOUT_AMX", "amx_is_announced", "amx_works", "avoid_trapped_amx"]

LIMIT = "ONEDNN_MAX_CPU_ISA"  # read by oneDNN when it is first used
WITHOUT_AMX = "AVX512_CORE_FP16"
CHECKED = "ILME_AMX_WORKS"  # so that child processes need not try again
CPUINFO = Path("/proc/cpuinfo")

# Asks the kernel for the tile registers, then: ldtilecfg [rdi]; tilezero tmm0; tilerelease; ret.
PROBE = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(158, 0x1023, 18):  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
    raise SystemExit(1)
code = bytes.fromhex("c4e2784907" "c4e27b49c0" "c4e27849c0" "c3")
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
tiles = (ctypes.c_uint8 * 64)(1)  # palette 1
tiles[16], tiles[48] = 64, 16     # tile 0: 16 rows of 64 bytes
run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
run(ctypes.addressof(tiles))
"""


def avoid_trapped_amx() -> None:
    """Tells oneDNN to do without AMX where the processor announces it and it does not work."""
    if LIMIT in os.environ or os.environ.get(CHECKED) == "1":
        return
    if not amx_is_announced():
        return
    if amx_works():
        os.environ[CHECKED] = "1"
    else:
        os.environ[LIMIT] = WITHOUT_AMX


def amx_is_announced() -> bool:
    """Whether the processor's flags name the tile registers."""
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return "amx_tile" in flags.split()


def amx_works() -> bool:
    """Whether a child process survives a few tile instructions."""
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", PROBE], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
