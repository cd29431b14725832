"""Options that `ilme tune` and `ilme evaluate` have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from ilme.recogniser.decoder import DecodingOptions
from ilme.recogniser.options import SearchSettings

__all__ = ["SearchOptions"]


@dataclass(frozen=True)
class SearchOptions:
    """What stands beside the model, how it is searched, and which part of a set.

    Attributes:
        lm: The external LM: a checkpoint of ours, an n-gram file, or a mixture of such (`ilme lm mix`).
        subtracted: What is subtracted: internal, another internal LM of the model by name, the file of a learned one
            (`ilme ilm learn`), or a source-domain LM.
        phrases: A file of names and terms that may be said, one a line; `ilme tune` finds their weight last, and `ilme
            evaluate` tells errors on their words apart.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        decoding: Batches and cache.
        search: Search options that differ from the model's own.
    """

    lm: str = ""
    subtracted: str = "internal"
    phrases: str = ""
    split: str = ""
    limit: int = 0
    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    search: SearchSettings = field(default_factory=SearchSettings)
