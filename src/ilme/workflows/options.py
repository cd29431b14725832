"""The options of whole jobs. They stand apart so that the command line can show them without loading torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ilme.errors import BadInputError

__all__ = ["AdaptOptions", "Style", "TranscribeOptions"]

NORMALISERS = ("auto", "none", "spoken", "basic", "whisper")
LONGEST_NGRAM = 10
Style = Literal["auto", "restore", "fold", "keep", "spoken"]
Decoding = Literal["auto", "best", "consensus", "joined"]


@dataclass(frozen=True)
class AdaptOptions:
    """How a model is adapted.

    Attributes:
        style: What is done about text whose case and punctuation are not the model's. `restore` gives text without
            case the model's; `fold` makes an LM that passes over case and punctuation; `spoken` writes words as they
            are said, without case and punctuation; `keep` leaves the text as it is. `auto` is `spoken` for a model
            whose tokens have no case, else `restore`.
        order: Order of the n-gram LM.
        prune: Counts up to which n-grams of each order are left out, unigrams first; the last stands for the rest.
        internal: The internal LM: a name, or auto to let dev speech choose.
        normaliser: What is done to texts before errors are counted; auto takes Whisper's own if it is installed.
        beam: Beam of every decode; 0 takes the model's own.
        max_decodes: How often dev may be decoded for the weights.
        calibration: Utterances over which internal LMs are averaged or learned.
        overlap: A sentence that shares this many words in a row with dev is left out of the text; 0 leaves none out,
            for domains where everybody says the same phrases.
        exclude: Texts or manifests, beside dev, that must not be learned, such as a test set's: a sentence that shares
            `overlap` words in a row with them is left out of the text.
        batch_seconds: Seconds of audio that are decoded at once; 0 takes what suits the device.
        smoothing: Errors are averaged over weights ± this much, so that a lucky narrow pit is not chosen.
        seed: Seed of every draw.
        background: Values of ε, the share of a uniform background in what is subtracted, of which dev chooses one with
            the weights.
        decoding: What is taken of each n-best list: the best hypothesis, the consensus of the list (see
            `ilme.search.consensus`), that of this list and of one searched without LMs (joined), or, with auto, what
            makes fewer errors on dev.
        joined: Words, on average, to which neighbouring sentences of the text are joined, so that to the LM an end is
            an end of speech: about 75 for speech that fills windows of thirty seconds. 0 joins running text alone, to
            lines as long as short utterances.
        spoken_lines: With `--dev speak`, how many lines of the text are spoken; at most a fifth of them.
    """

    style: Style = "auto"
    order: int = 4
    prune: tuple[int, ...] = (0, 0, 1)
    internal: str = "auto"
    normaliser: str = "auto"
    beam: int = 0
    max_decodes: int = 4
    calibration: int = 40
    overlap: int = 8
    exclude: tuple[str, ...] = ()
    batch_seconds: float = 0.0
    smoothing: float = 0.01
    seed: int = 0
    background: tuple[float, ...] = (0.0,)
    joined: float = 0.0
    decoding: Decoding = "auto"
    spoken_lines: int = 60

    def __post_init__(self) -> None:
        if self.style not in get_args(Style):
            raise BadInputError(f"style is one of {', '.join(get_args(Style))}, not {self.style!r}")
        if self.decoding not in get_args(Decoding):
            raise BadInputError(f"decoding is one of {', '.join(get_args(Decoding))}, not {self.decoding!r}")
        if self.normaliser not in NORMALISERS:
            raise BadInputError(f"normaliser is one of {', '.join(NORMALISERS)}, not {self.normaliser!r}")
        leasts = {"order": 1, "beam": 0, "max_decodes": 1, "calibration": 2, "overlap": 0, "seed": 0, "spoken_lines": 1}
        for name, least in leasts.items():
            if getattr(self, name) < least:
                raise BadInputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.order > LONGEST_NGRAM:
            raise BadInputError(f"order must be at most {LONGEST_NGRAM}, got {self.order}")
        if not self.prune or min(self.prune) < 0:
            raise BadInputError(f"prune holds counts of at least 0, got {self.prune}")
        if not 0 <= self.batch_seconds < math.inf or not 0 <= self.smoothing < math.inf:
            got = f"{self.batch_seconds} and {self.smoothing}"
            raise BadInputError(f"batch_seconds and smoothing must not be negative, got {got}")
        if not self.background or not all(0 <= share < 1 for share in self.background):
            raise BadInputError(f"background holds shares of at least 0 and below 1, got {self.background}")
        if not 0 <= self.joined < math.inf:
            raise BadInputError(f"joined must be a number of words, or 0, got {self.joined}")


@dataclass(frozen=True)
class TranscribeOptions:
    """How many files are transcribed.

    Attributes:
        batch_seconds: Seconds of audio that are searched at once.
        batch_size: Most windows that are searched at once.
        baseline: Also transcribe with the model as it is, without LM and internal LM; files are NAME.baseline.
        words: Also say when each word was said, and how sure it is; JSON holds that.
    """

    batch_seconds: float = 240.0
    batch_size: int = 16
    baseline: bool = False
    words: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.batch_seconds < math.inf or self.batch_size < 1:
            raise BadInputError(f"a batch needs seconds and size, got {self.batch_seconds} and {self.batch_size}")
