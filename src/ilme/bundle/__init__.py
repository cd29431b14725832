"""What ships with the package: small models with synthetic speech in `data`, recordings of real speech in `speech`."""

from __future__ import annotations

from pathlib import Path

from ilme.errors import CheckpointError

__all__ = ["FOLDER", "PREFIX", "SPEECH", "file"]

FOLDER = Path(__file__).parent / "data"
SPEECH = Path(__file__).parent / "speech"
PREFIX = "bundled/"  # `bundled/rnnt` names a bundled model wherever a model can be named


def file(name: str) -> Path:
    """The weights of a bundled network, such as `rnnt`."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        found = ", ".join(sorted(PREFIX + p.stem for p in FOLDER.glob("*.safetensors")))
        raise CheckpointError(f"there is no {PREFIX}{name}; bundled are {found or 'none: install the package again'}")
    return path
