"""Processors that announce AMX: oneDNN does without it where it is trapped. The probe is faked in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ilme.runtime import cpu

# The processor's flags and the probe are set before `ilme` is imported, as on such a machine.
CHILD = """
import os, sys
from pathlib import Path
import importlib.util
spec = importlib.util.find_spec("ilme")
source = Path(spec.origin).parent / "runtime" / "cpu.py"
text = source.read_text()
text = text.replace('Path("/proc/cpuinfo")', f'Path({sys.argv[1]!r})')
text = text.replace('PROBE = \"\"\"', 'PROBE = sys.argv[2]\\nOLD = \"\"\"', 1)
module_spec = importlib.util.spec_from_loader("ilme.runtime.cpu", loader=None)
module = importlib.util.module_from_spec(module_spec)
module.sys = sys
exec(compile(text, str(source), "exec"), module.__dict__)
sys.modules["ilme.runtime.cpu"] = module
import ilme
print(os.environ.get("ONEDNN_MAX_CPU_ISA", "unset"), "torch" in sys.modules)
"""
TRAPS = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def limit(tmp_path: Path, flags: str, probe: str, **environment: str) -> str:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\nflags\t\t: fpu {flags} avx512f\n")
    kept = {k: v for k, v in os.environ.items() if k not in (cpu.LIMIT, cpu.CHECKED)}
    command = [sys.executable, "-c", CHILD, str(info), probe]
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("flags", "probe", "expected"),
    [
        ("amx_bf16 amx_tile amx_int8", TRAPS, "AVX512_CORE_FP16 False"),
        ("amx_tile", "raise SystemExit(1)", "AVX512_CORE_FP16 False"),  # the kernel refuses
        ("amx_tile", "pass", "unset False"),
        ("avx2", TRAPS, "unset False"),  # nothing announced: nothing is tried
    ],
)
def test_importing_the_package_is_enough(tmp_path: Path, flags: str, probe: str, expected: str) -> None:
    assert limit(tmp_path, flags, probe) == expected


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    assert limit(tmp_path, "amx_tile", TRAPS, ONEDNN_MAX_CPU_ISA="AVX2") == "AVX2 False"


def test_the_real_probe_ends_one_way_or_the_other() -> None:
    if not cpu.amx_is_announced():
        pytest.skip("this processor announces no AMX: its tile instructions are not tried")
    assert cpu.amx_works() in (True, False)


def test_a_processor_that_cannot_be_read_announces_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "absent")
    assert not cpu.amx_is_announced()
