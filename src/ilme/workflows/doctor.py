"""What this machine has for speech recognition, and what to do about each thing that is missing or wrong."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from ilme import __version__, bundle
from ilme.models.packed import PackingError, packed_product
from ilme.runtime import cpu
from ilme.runtime.formats import Format
from ilme.runtime.network import silent_because

__all__ = ["Finding", "Verdict", "examine"]

Verdict = Literal["fine", "note", "problem"]
GIB = 1 << 30
LEAST_SPACE = 2 * GIB  # a domain of a large text, with what is written beside it before it takes its place
LEAST_MEMORY = 2 * GIB
HUB = "https://huggingface.co"
OURS = ("dev", "docs")  # extras of those who work on the package itself
# Where the flags of /proc/cpuinfo matter to the products of a network.
FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "bf16", "amx_tile": "AMX"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: What it is.
        found: What is there.
        verdict: `problem` if something will fail or be needlessly slow, `note` if something is not there that may be
            wanted.
        advice: What to do about it; empty where all is well.
    """

    what: str
    found: str
    verdict: Verdict = "fine"
    advice: str = ""


def examine() -> list[Finding]:
    """Looks at the processor, threads, memory, GPU, extras, weights and folders of this machine."""
    return [
        _versions(),
        _processor(),
        _formats(),
        _threads(),
        _memory(),
        _gpu(),
        _space("here", Path.cwd()),
        _space("temporary files", Path(tempfile.gettempdir())),
        _audio(),
        *_extras(),
        _bundle(),
        _hub_cache(),
        _hub(),
    ]


def _versions() -> Finding:
    versions = f"ilme {__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    return Finding("versions", f"{versions}, {platform.system()} {platform.machine()}")


# --- the machine ------------------------------------------------------------------------------------------------------


def _processor() -> Finding:
    name, flags = _cpuinfo()
    features = [label for flag, label in FEATURES.items() if flag in flags]
    found = f"{name or platform.processor() or 'unknown'}; {', '.join(features) or 'no vector features announced'}"
    if cpu.amx_is_announced() and not cpu.amx_works():
        return Finding(
            "processor",
            f"{found}; AMX is announced but traps",
            "note",
            f"nothing: products are made without it ({cpu.LIMIT}={os.environ.get(cpu.LIMIT, cpu.WITHOUT_AMX)})",
        )
    if flags and "avx2" not in flags:
        return Finding("processor", found, "note", "without AVX2 decoding is several times slower; use another machine")
    return Finding("processor", found)


def _formats() -> Finding:
    """Which formats of weights run here, each tried on a small product."""
    refused = []
    for name in get_args(Format):
        try:
            packed_product(torch.ones(16, 16), torch.zeros(16), name)(torch.ones(2, 16))
        except PackingError:
            refused.append(name)
    works = ", ".join(name for name in get_args(Format) if name not in refused)
    if refused:
        return Finding(
            "weight formats", works or "none", "note", f"--format {refused[0]} does not run here: take another"
        )
    return Finding("weight formats", works)


def _cpuinfo() -> tuple[str, set[str]]:
    """Name and flags of the first processor; empty where /proc does not say."""
    try:
        text = cpu.CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", set()
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    return (name[1].strip() if name else ""), set(flags[1].split() if flags else ())


def _threads() -> Finding:
    cores, threads = usable_cores(), torch.get_num_threads()
    found = f"{cores:g} cores to use, {threads} {'thread' if threads == 1 else 'threads'}"
    if threads > max(1, round(cores)):
        advice = f"more threads than cores slow each other down: export OMP_NUM_THREADS={max(1, round(cores))}"
        return Finding("threads", found, "problem", advice)
    return Finding("threads", found)


def usable_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Cores that this process may use: by its affinity, and by the container's share where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = limit.read_text().split()
        return min(float(cores), int(quota) / int(period))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return float(cores)


def _memory() -> Finding:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return Finding("memory", "unknown")
    found = f"{total / GIB:.1f} GiB, {free / GIB:.1f} free"
    if total < LEAST_MEMORY:
        return Finding("memory", found, "problem", "2 GiB are the least for a small model with its LM")
    return Finding("memory", found)


def _gpu(driver: Path = Path("/proc/driver/nvidia/version")) -> Finding:
    if torch.cuda.is_available():
        try:
            names = [_device(i) for i in range(torch.cuda.device_count())]
            torch.ones(2, device="cuda").sum().item()
        except RuntimeError as error:
            advice = "driver and torch do not go together: install the torch that is built for the driver's CUDA"
            return Finding("GPU", str(error).splitlines()[0], "problem", advice)
        return Finding("GPU", f"{', '.join(names)}; use it with --device cuda")
    if driver.exists() or shutil.which("nvidia-smi"):
        return Finding(
            "GPU",
            f"there is a driver, but torch {torch.__version__} finds no CUDA",
            "problem",
            "install a CUDA build of torch, see https://pytorch.org/get-started",
        )
    return Finding("GPU", "none: everything runs on the processor")


def _device(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name} ({properties.total_memory / GIB:.0f} GiB)"


def _space(what: str, folder: Path) -> Finding:
    what = f"space, {what}"
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(what, f"{folder}: {error.strerror}", "problem", "work in a folder that exists")
    found = f"{folder}: {free / GIB:.1f} GiB free"
    if not os.access(folder, os.W_OK):
        return Finding(what, f"{folder} cannot be written to", "problem", "give --out a folder that is yours")
    if free < LEAST_SPACE:
        return Finding(what, found, "problem", "make room: a domain of a large text takes up to 2 GiB")
    return Finding(what, found)


# --- the software -----------------------------------------------------------------------------------------------------


def _audio() -> Finding:
    import soundfile

    formats = soundfile.available_formats()
    read = [name for name in ("WAV", "FLAC", "OGG", "MP3") if name in formats]
    found = f"libsndfile {soundfile.__libsndfile_version__} reads {', '.join(read)}"
    if "MP3" not in read:
        return Finding("audio", found, "note", "MP3 needs libsndfile 1.1: pip install --upgrade soundfile")
    return Finding("audio", found)


def _extras() -> Iterator[Finding]:
    """Which extras are whole, by the package's own metadata, and which are not."""
    extras = {extra: names for extra, names in extras_of("ilme").items() if extra not in OURS}
    lacking = {extra: [name for name in names if not _is_installed(name)] for extra, names in extras.items()}
    yield Finding("extras", ", ".join(extra for extra, names in lacking.items() if not names) or "none")
    missing = {extra: names for extra, names in lacking.items() if names}
    if missing:
        parts = [
            f"{extra} (lacks {', '.join(names)})" if len(names) < len(extras[extra]) else extra
            for extra, names in missing.items()
        ]
        advice = (
            "most models need hf: pip install 'ilme[hf]'; the others where a command asks for them"
            if "hf" in missing
            else f"where a command asks for one, such as: pip install 'ilme[{next(iter(missing))}]'"
        )
        yield Finding("extras, missing", ", ".join(parts), "note", advice)


def extras_of(package: str) -> Mapping[str, list[str]]:
    """The extras of a package, each with the packages that it installs."""
    extras: dict[str, list[str]] = {}
    required = importlib.metadata.requires(package) if _is_installed(package) else ()  # else run from its sources
    for line in required or ():
        requirement = re.match(r"([A-Za-z0-9._-]+).*\bextra\s*==\s*[\"']([\w.-]+)[\"']", line)
        if requirement:
            extras.setdefault(requirement[2], []).append(requirement[1])
    return extras


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# --- weights ----------------------------------------------------------------------------------------------------------


def _bundle() -> Finding:
    names = sorted(bundle.PREFIX + path.stem for path in bundle.FOLDER.glob("*.safetensors"))
    if not names:
        advice = "install the package again: its files are not complete"
        return Finding("bundled models", "none", "problem", advice)
    return Finding("bundled models", ", ".join(names))


def _hub_cache(environment: Mapping[str, str] = os.environ) -> Finding:
    """The models that hub ids are read from without the network."""
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(environment.get("HF_HUB_CACHE") or home / "hub")
    models = [p.name.removeprefix("models--").replace("--", "/") for p in sorted(cache.glob("models--*"))]
    more = f" and {len(models) - 5} more" if len(models) > 5 else ""
    return Finding("hub cache", f"{cache}: {', '.join(models[:5]) or 'no model yet'}{more}")


def _hub(environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether a hub id that is not in the cache could be fetched."""
    folder = "name a folder or a file of weights; bundled models need no hub"
    if environment.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub", "HF_HUB_OFFLINE is set: only the cache is read", "note", f"unset it, or {folder}")
    where = environment.get("HF_ENDPOINT") or HUB
    if why := silent_because(where):
        return Finding("hub", f"{where} does not answer ({why})", "note", f"for models outside the cache {folder}")
    return Finding("hub", f"{where} answers")
