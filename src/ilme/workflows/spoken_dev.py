"""Dev speech for a domain that has none: lines of its text, spoken by synthetic voices.

    lines are drawn from the text and kept out of the LM → spoken by the neural voice, or by espeak-ng where that is not
      installed → heard clean, in a room, or over the telephone, in turn → tuned on like any dev speech

espeak-ng is the second choice: Whisper hears it far worse than people, and what it chose was worse than no LM in three
domains of four (docs/results/weights-without-dev.md).
The voices are cached in a folder whose name depends on the lines and on how they are spoken, so that a run that was
killed goes on. The same text and seed give the same dev set.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ilme.data.channel import CHANNELS, heard_through
from ilme.data.exclude import Exclusion
from ilme.data.normalise import spoken
from ilme.data.synth import SynthOptions, synthesise
from ilme.data.utterances import Utterance, read_utterances
from ilme.errors import BadInputError, MissingExtraError
from ilme.runtime.files import write_text
from ilme.workflows.domain_lm import DomainText

__all__ = ["SPEAK", "check_voices", "hold_out_spoken", "speak_lines"]

SPEAK = "speak"  # in place of a manifest
SHARE = 5  # at most one line in so many is spoken, so that enough are left to learn from
WORDS = (4, 40)  # of a line that is spoken: "yes" tells nothing, and a paragraph takes minutes
RATE_HZ = 16_000


def check_voices(language: str = "") -> float:
    """The share of lines that the neural voice speaks: all where it is installed, else none.

    Args:
        language: Of the model, if it was told one.
    """
    if language and language.lower() not in ("en", "english"):
        raise BadInputError(f"--dev speak reads English alone, not {language!r}: give transcribed speech, or none")
    neural, espeak = (importlib.util.find_spec(name) is not None for name in ("hibari", "espeakng_loader"))
    if not espeak and not neural:
        raise MissingExtraError("hibari-tts", "natural")
    return float(neural)


def hold_out_spoken(text: DomainText, count: int, overlap: int, seed: int) -> tuple[list[str], DomainText]:
    """Lines to speak, and the text without them.

    What says the same as one of them goes too, and what shares `overlap` words in a row with them, as with any dev
    speech; 0 leaves such lines in.

    Args:
        text: The domain's text.
        count: How many lines; fewer where they would be more than a fifth of the text.
        overlap: Words.
        seed: Seed of the draw.
    """
    plain = [spoken(line) for line in text.lines]
    order = list(range(len(plain)))
    random.Random(seed).shuffle(order)
    chosen: dict[str, int] = {}
    for i in order:
        if len(chosen) == min(count, len(plain) // SHARE):
            break
        if WORDS[0] <= len(plain[i].split()) <= WORDS[1]:
            chosen.setdefault(plain[i], i)
    if not chosen:
        raise BadInputError(
            f"--dev speak needs lines of {WORDS[0]} to {WORDS[1]} words, {SHARE} at least, and the text has "
            f"{len(plain)} lines, none to spare; name more text, or leave --dev out"
        )
    held = [text.lines[i] for i in sorted(chosen.values())]
    shared = Exclusion.from_texts(held if overlap else (), overlap or 1).overlaps(plain, are_spoken=True)
    kept = [i for i, words in enumerate(plain) if words not in chosen and shared[i] is None]
    if not kept:
        raise BadInputError(
            f"no line of the text is left that does not share {overlap} words in a row with those to be spoken; name "
            "more text, leave --dev out, or add --options.overlap 0"
        )
    return held, replace(text, lines=[text.lines[i] for i in kept], ids=[text.ids[i] for i in kept])


def speak_lines(lines: Sequence[str], work: Path, natural: float, seed: int) -> list[Utterance]:
    """The lines as utterances, in memory; those without anything to say are left out.

    Args:
        lines: What is said.
        work: Where the voices are kept until the domain folder is written.
        natural: Share of the neural voice.
        seed: Seed of voices, rooms and noise.
    """
    options = SynthOptions(
        seed=seed, natural=natural, sample_rate=RATE_HZ, transcript="written", max_seconds=28.0, workers=1
    )
    folder = work / f"spoken-{hashlib.sha256(repr((lines, options)).encode()).hexdigest()[:16]}"
    write_text(folder / "lines.txt", "".join(f"{line}\n" for line in lines))
    synthesise([str(folder / "lines.txt")], folder / "speech", options)
    utterances = []
    for number, said in enumerate(read_utterances(folder / "speech")):
        channel = CHANNELS[number % len(CHANNELS)]
        draw = np.random.default_rng([seed, 3, number])
        heard = heard_through(channel, said.samples(RATE_HZ), RATE_HZ, draw)
        utterances.append(replace(said, id=f"spoken-{number:03}-{channel}", audio=heard, rate=RATE_HZ))
    return utterances
