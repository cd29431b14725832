"""What a part of a study was made with: the code, the libraries and the device."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

__all__ = ["commit", "versions"]


def versions(device: str) -> dict[str, str]:
    """Python, torch, and the device by its name."""
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"python": platform.python_version(), "torch": torch.__version__, "device": name}


def commit() -> str:
    """What ILME_COMMIT says; else the commit of the checkout that runs."""
    git = shutil.which("git")
    if "ILME_COMMIT" in os.environ or git is None:
        return os.environ.get("ILME_COMMIT", "")
    asked = [git, "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""
