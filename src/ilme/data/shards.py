"""Lhotse Shar: cuts and their audio in tar shards that are read from front to back, not file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ilme.data.manifests import is_shar, open_cuts
from ilme.errors import BadInputError, UsageError
from ilme.runtime.files import replace_folder

__all__ = ["write_shards"]


def write_shards(
    cuts: str | Path, out: Path, size: int = 1000, audio: Literal["flac", "wav", "mp3", "original"] = "flac"
) -> int:
    """Writes `cuts.NNNNNN.jsonl.gz` and `recording.NNNNNN.tar` of `size` utterances each; returns how many shards.

    `ilme.data.batches.Batches` and `ilme.data.manifests.open_cuts` read the folder back.

    Args:
        cuts: A manifest or an import's folder.
        out: A folder that is empty or not there; it appears when all shards are written.
        size: Utterances in a shard.
        audio: How the audio is stored; `original` copies the bytes of whole files as they are.
    """
    if size < 1:
        raise UsageError(f"size={size} must be at least 1")
    if is_shar(out):
        raise BadInputError(f"{out} already holds shards; give another folder, or remove them first")
    if out.is_dir() and any(out.iterdir()):
        raise BadInputError(f"{out} holds other files; give the shards a folder of their own")
    with replace_folder(out) as fresh:
        written = open_cuts(cuts).to_shar(str(fresh), fields={"recording": audio}, shard_size=size)
    return len(written["cuts"])
