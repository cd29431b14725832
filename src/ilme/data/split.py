"""Splits a corpus by speaker, call or chapter, so that no one heard in training is heard in a test."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ilme.data.manifests import ManifestWriter, file_name, open_cuts
from ilme.errors import BadInputError

__all__ = ["Part", "assign_groups", "split_cuts"]


@dataclass(frozen=True)
class Part:
    """One part of a split: its name, the share wanted, and what it got."""

    name: str
    share: float
    utterances: int
    seconds: float
    groups: int
    speakers: int
    file: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def split_cuts(cuts: str | Path, out: Path, shares: dict[str, float], by: str = "speaker", seed: int = 0) -> list[Part]:
    """Writes `cuts-PART.jsonl.gz` for each part; whole groups go to one part.

    Args:
        cuts: A manifest or an import's folder.
        out: Folder for the parts.
        shares: Name and share of the audio of each part; they are scaled to sum to 1.
        by: What a group is: `speaker`, or a field such as `call` or `chapter`. Never the utterance itself.
        seed: Another seed, another split.
    """
    _check(shares, by)
    found = list(open_cuts(cuts))
    groups: dict[str, list[Any]] = {}
    for cut in found:
        groups.setdefault(_group_of(cut, by), []).append(cut)
    seconds = {name: sum(cut.duration for cut in members) for name, members in groups.items()}
    part_of = assign_groups(seconds, shares, seed)
    with ManifestWriter(out) as files:
        for part in shares:
            files.open(f"cuts-{file_name(part)}.jsonl.gz")
        for cut in found:
            files.write(f"cuts-{file_name(part_of[_group_of(cut, by)])}.jsonl.gz", cut.to_dict())
    parts = []
    for part, share in shares.items():
        mine = [cut for cut in found if part_of[_group_of(cut, by)] == part]
        parts.append(
            Part(
                part,
                share / sum(shares.values()),
                len(mine),
                round(sum(cut.duration for cut in mine), 3),
                sum(p == part for p in part_of.values()),
                len({s.speaker for cut in mine for s in cut.supervisions if s.speaker}),
                str(out / f"cuts-{file_name(part)}.jsonl.gz"),
            )
        )
    return parts


def assign_groups(seconds: dict[str, float], shares: dict[str, float], seed: int) -> dict[str, str]:
    """The part of each group: drawn in a random order, each goes where most is still lacking of the share.

    The order is random within classes of size, the largest first: a large group placed last would spoil the shares.
    """
    if len(seconds) < len(shares):
        raise BadInputError(f"{len(seconds)} groups cannot fill {len(shares)} parts; split by a smaller unit")
    draw = random.Random(seed)
    order = sorted(seconds)
    draw.shuffle(order)
    order.sort(key=lambda name: -_size_class(seconds[name]))
    total, weight = sum(seconds.values()), sum(shares.values())
    lacking = {part: total * share / weight for part, share in shares.items()}
    part_of: dict[str, str] = {}
    empty = set(shares)
    for position, name in enumerate(order):
        # When as many groups are left as parts are empty, each of these parts gets one.
        choice = sorted(empty) if len(order) - position <= len(empty) else list(shares)
        part = max(choice, key=lambda p: lacking[p])
        part_of[name] = part
        lacking[part] -= seconds[name]
        empty.discard(part)
    return part_of


def shared_speakers(parts: Sequence[Path]) -> list[str]:
    """Speakers that are heard in more than one of the manifests."""
    heard = [{s.speaker for cut in open_cuts(p) for s in cut.supervisions if s.speaker} for p in parts]
    return sorted({name for i, a in enumerate(heard) for b in heard[i + 1 :] for name in a & b})


def _size_class(seconds: float) -> int:
    """⌊log₂ seconds⌋: groups of the same class are drawn in random order."""
    return math.floor(math.log2(max(seconds, 1e-3)))


def _check(shares: dict[str, float], by: str) -> None:
    if len(shares) < 2 or not all(math.isfinite(s) and s > 0 for s in shares.values()):
        raise BadInputError(f"shares={shares} must name at least two parts, each with a share above 0")
    if len({file_name(name) for name in shares}) < len(shares):
        raise BadInputError(f"the parts {list(shares)} do not differ as file names")
    if by in ("id", "utterance", "cut"):
        raise BadInputError("a split by utterance puts the same speaker into training and test; split by speaker")


def _group_of(cut: Any, by: str) -> str:
    supervision = cut.supervisions[0] if cut.supervisions else None
    value = None
    if supervision is not None:
        value = supervision.speaker if by == "speaker" else (supervision.custom or {}).get(by)
    if value is None or value == "":
        fields = sorted((supervision.custom or {}) if supervision is not None else {})
        raise BadInputError(
            f"cut {cut.id} has no {by}; its fields are {', '.join(fields) or 'none'}. Split by one that every cut has."
        )
    return str(value)
