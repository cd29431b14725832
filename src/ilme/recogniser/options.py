"""How each family of models is searched unless told otherwise. The guards are the same for every fusion method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ilme.errors import BadInputError
from ilme.runtime.configs import config_from_json
from ilme.search.attention import AttentionOptions
from ilme.search.ctc import CTCOptions
from ilme.search.length import LABELS_PER_SECOND
from ilme.search.transducer import TransducerOptions

__all__ = [
    "Options",
    "SearchSettings",
    "default_options",
    "options_from_json",
    "options_to_json",
    "safe_boost",
    "with_beam",
]

Options = TransducerOptions | CTCOptions | AttentionOptions
KINDS: dict[str, type[Options]] = {  # what a search is called in files
    "transducer": TransducerOptions,
    "ctc": CTCOptions,
    "attention": AttentionOptions,
}

SPELLED = 200  # an inventory of fewer units spells words out, and needs more of them
SPELLED_PER_SECOND = 40.0

# As openai-whisper: length normalisation, and done when as many hypotheses have ended as the beam is wide. Nothing is
# said more than four times in a row; where the model itself puts the end at twenty times any label, it is the end, and
# where it puts it at less than a twentieth of its best label, it is not.
TRANSFORMER = AttentionOptions(
    beam=8,
    length_normalisation=1.0,
    max_repeats=4,
    max_length=448,
    end_margin=3.0,
    certain_end=3.0,
    stop_after=8,
    labels_per_second=LABELS_PER_SECOND,
    plausible_length=True,
)
# The paper's AED ends where its attention does: what a search ranks by the mean score per label needs no other end.
AED = AttentionOptions(
    beam=8, length_normalisation=1.0, max_repeats=4, labels_per_second=LABELS_PER_SECOND, plausible_length=True
)
# A transducer emits labels frame by frame, so it cannot loop after the audio has ended, and has no end to be sure of.
TRANSDUCER = TransducerOptions(beam=8, labels_per_second=LABELS_PER_SECOND, plausible_length=True)
CTC = CTCOptions(beam=8, labels_per_second=LABELS_PER_SECOND, plausible_length=True)  # as a transducer
# What a search can still do with a machine's memory; a file, or a slip of the finger, asks for more.
MOST = {
    **{"beam": 10_000, "nbest": 10_000, "stop_after": 10_000, "max_length": 100_000, "max_symbols": 1000},
    **{"max_repeats": 100_000, "repeat_span": 1000, "look_back": 1_000_000, "shortlist": 1_000_000},
    **{"length_normalisation": 10.0, "blank_gate": 1000.0, "consensus": 1000.0, "repeat_ignores": 100_000},
}
BOOST = 1.5  # nats for each label of a listed phrase: on dev 1 and 2 left other words as they are, 3 did not
RENAMED = {"enough": "stop_after"}  # as files of version 0.1 have it


def default_options(model: Any, beam: int = 0) -> Options:
    """The options for a model; with another beam, where one is given.

    A model of a kind that is not known here is searched without guards.
    """
    kind = getattr(model, "kind", "")
    options: Options
    if hasattr(model, "join"):
        options = TRANSDUCER if kind else TransducerOptions()
    elif hasattr(model, "emit"):
        options = CTC if kind else CTCOptions()
    else:
        options = {"aed": AED, "": AttentionOptions()}.get(kind, TRANSFORMER)
    if len(model.tokens) < SPELLED and not math.isinf(options.labels_per_second):
        options = replace(options, labels_per_second=SPELLED_PER_SECOND)
    if not beam or beam == options.beam:
        return options
    if isinstance(options, AttentionOptions) and options.stop_after:
        return bounded(replace(options, beam=beam, stop_after=beam))
    return bounded(replace(options, beam=beam))


def safe_boost(model: Any) -> float:
    """κ for listed phrases where no dev speech says more."""
    return BOOST


def with_beam(options: Options, beam: int) -> Options:
    """The same options with another beam, which may hold fewer hypotheses than were to be returned."""
    nbest = min(options.nbest, beam)
    if not isinstance(options, AttentionOptions):
        return bounded(replace(options, beam=beam, nbest=nbest))
    return bounded(replace(options, beam=beam, nbest=nbest, stop_after=min(options.stop_after, nbest or beam)))


def bounded(options: Options) -> Options:
    """The options, if each is one that a machine can search with."""
    if not options.consensus >= 0:
        raise BadInputError(f"search.consensus must be a temperature of at least 0, got {options.consensus!r}")
    if options.joined and not options.consensus:
        raise BadInputError("search.joined takes the consensus of two lists: give search.consensus a temperature too")
    for name, most in MOST.items():
        value = getattr(options, name, 0)
        if (len(value) if isinstance(value, tuple) else value) > most:
            raise BadInputError(f"search.{name} must be at most {most}, got {str(value)[:40]}")
    return options


@dataclass(frozen=True)
class SearchSettings:
    """Search options that are to differ from the model's own; what is not given stays as it is.

    Attributes:
        nbest: Hypotheses returned for each utterance; 0 means as many as the beam.
        labels_per_second: Most labels for a second of audio; inf does not count.
        plausible_length: Leave out hypotheses far shorter or longer than the one that the model itself likes best.
        consensus: Temperature of the consensus of the list that is taken; 0 takes the best hypothesis.
        joined: Whether a second search, without LMs, has its say in the consensus.
        max_repeats: Most times in a row that a run of labels may stand; 0 does not count.
        repeat_span: Longest run of labels that is watched for repetition.
        lm_eos: Whether the LM that is added scores the end of the sentence too.
        subtracted_eos: Whether the LM that is subtracted does; as `lm_eos` if not given.
        max_length: Attention: most labels of a hypothesis.
        length_normalisation: Attention: α, rank by score / (|y| + 1)^α.
        end_margin: Attention: the end is allowed only where the model puts it within this many nats of its best label.
        certain_end: Attention: only the end is allowed where the model puts it this many nats above its best label.
        look_back: Attention: most frames that the attention may go back; 0 does not limit it.
        ctc_weight: Attention: share of the CTC layer's score, 0 to 1, where the network has kept one.
        stop_margin: Attention: done when no open hypothesis is within this many nats of the best ended one.
        stop_after: Attention: done when this many hypotheses have ended; 0 does not count.
        max_symbols: Transducer: most labels emitted at one frame.
        blank_aware: Transducer: scale the LM's view of blank.
        blank_gate: Transducer: take a frame as blank when its log P(blank) is above minus this; 0 computes everything.
        shortlist: Transducer: output units that the gate's estimate is made from.
    """

    nbest: int | None = None
    labels_per_second: float | None = None
    plausible_length: bool | None = None
    consensus: float | None = None
    joined: bool | None = None
    max_repeats: int | None = None
    repeat_span: int | None = None
    lm_eos: bool | None = None
    subtracted_eos: bool | None = None
    max_length: int | None = None
    length_normalisation: float | None = None
    end_margin: float | None = None
    certain_end: float | None = None
    look_back: int | None = None
    ctc_weight: float | None = None
    stop_margin: float | None = None
    stop_after: int | None = None
    max_symbols: int | None = None
    blank_aware: bool | None = None
    blank_gate: float | None = None
    shortlist: int | None = None

    def given(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v is not None}

    def apply(self, options: Options) -> Options:
        """The options with these changed; one that the model's search does not have is an error."""
        return changed(options, self.given())


def changed(options: Options, changes: Mapping[str, Any]) -> Options:
    """The options with some fields changed, by name."""
    known = {f.name for f in fields(options)}
    foreign = [name for name in changes if name not in known]
    if foreign:
        others = {"transducer": "transducers", "ctc": "CTC models", "attention": "attention decoders"}
        has = [others[k] for k, kind in KINDS.items() if foreign[0] in {f.name for f in fields(kind)}]
        other = " and ".join(has) or "other models"
        raise BadInputError(f"search.{foreign[0]} is an option for {other}; this model is searched without it")
    return bounded(replace(options, **changes))


def options_to_json(options: Options) -> dict[str, Any]:
    """Every option that JSON can hold; what is infinite is left out, and is the default."""
    kind = next(name for name, found in KINDS.items() if isinstance(options, found))
    return {"kind": kind} | {k: v for k, v in asdict(options).items() if v != math.inf}


def options_from_json(data: Mapping[str, Any]) -> Options:
    """Reads what `options_to_json` wrote, now or in version 0.1."""
    if not isinstance(data, Mapping):
        raise BadInputError(f"search must be a mapping of options, got a {type(data).__name__}")
    values = {RENAMED.get(k, k): v for k, v in data.items()}
    kind = values.pop("kind", "attention")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadInputError(f"search.kind must be one of {', '.join(KINDS)}, got {str(kind)[:40]!r}")
    return bounded(config_from_json(KINDS[kind], values))
