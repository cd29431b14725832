"""A set of utterances and a recogniser that decodes it: in this process, under torchrun, or over Ray's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError, UsageError
from ilme.lm.phrase_list import read_phrases
from ilme.recogniser.contents import contents
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder
from ilme.recogniser.loading import INTERNAL, Parts, describe, load_recogniser
from ilme.recogniser.options import Options, SearchSettings
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import remove_partials
from ilme.runtime.locks import only_run
from ilme.tuning.tuner import Decoder

__all__ = ["DecoderPlan", "Progress", "Ray", "batches_for", "check_whole", "held", "planned", "read_set"]

Progress = Callable[[int, int], None]  # (utterances done, of how many)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster that shares the work.

    Attributes:
        address: Of the cluster; `local` starts one on this machine, `auto` finds the one that is running.
        workers: How many actors.
    """

    address: str = "local"
    workers: int = 2


@dataclass(frozen=True)
class DecoderPlan:
    """All that another process needs to make the decoder again.

    Attributes:
        parts: The model and its scorers; None for a recogniser that is there already, in this process alone.
        utterances: The set.
        folder: Where n-best lists are written as they finish; None keeps them in memory.
        about: What a folder of earlier results must match.
        decoding: Batches and cache.
        search: How to search: all options, or those that differ from the model's own.
        model_options: What the model's own kind takes, such as a language.
    """

    parts: Parts | None
    utterances: tuple[Utterance, ...]
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    search: SearchSettings | Options | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Recogniser:
        return load_recogniser(self.named, self.search, dict(self.model_options))

    @property
    def named(self) -> Parts:
        """The parts; an error where there are none."""
        if self.parts is None:
            raise BadInputError("a recogniser cannot be sent to a Ray cluster: name its model and LM instead")
        return self.parts

    def make(
        self, processes: Processes, progress: Progress | None = None, recogniser: Recogniser | None = None
    ) -> SearchDecoder:
        """The decoder, as one of these processes."""
        return SearchDecoder(
            recogniser or self.load(),
            self.utterances,
            folder=self.folder,
            about={**self.about, **({"model_options": dict(self.model_options)} if self.model_options else {})},
            options=self.decoding,
            processes=processes,
            progress=progress,
        )

    @contextmanager
    def decoder(
        self, processes: Processes, progress: Progress | None, ray: Ray | None, recogniser: Recogniser
    ) -> Iterator[Decoder]:
        """The decoder in this process, or over the workers of a Ray cluster."""
        if ray is None:
            yield self.make(processes, progress, recogniser)
            return
        from ilme.recogniser.ray_decoder import RayDecoder

        gpus = int(self.named.device != "cpu")  # Ray hides those that are not asked for
        resources: dict[str, float] = {"num_cpus": 1, "num_gpus": gpus}
        with RayDecoder(self.make, ray.workers, ray.address, resources) as decoder:
            yield decoder


def planned(
    model: Recogniser | Parts,
    utterances: Sequence[Utterance],
    folder: Path | None,
    *,
    about: Mapping[str, Any] | None = None,
    phrases: str | Path = "",
    decoding: DecodingOptions | None = None,
    search: SearchSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
) -> tuple[Recogniser, DecoderPlan]:
    """A recogniser and the plan of its decoder over a set.

    Args:
        model: The recogniser, or the parts that one is loaded from.
        utterances: The set.
        folder: Where n-best lists are written as they finish; None keeps them in memory.
        about: What says which recogniser this is, beside the parts; hashes of its weights if there is nothing else.
        phrases: A file of names and terms that a recogniser is to expect; parts name their own.
        decoding: Batches and cache.
        search: Search options that differ from the model's own.
        model_options: What the model's own kind takes, for parts.
    """
    how, found = decoding or DecodingOptions(), tuple(utterances)
    if isinstance(model, Parts):
        told = describe(model) | dict(about or {})
        plan = DecoderPlan(model, found, folder, told, how, search, model_options or {})
        return plan.load(), plan
    if model_options:
        raise BadInputError("model_options go with the name of a model; a recogniser has its own")
    recogniser = model.with_phrases(read_phrases(phrases)) if phrases else copy(model)
    recogniser.options = search.apply(recogniser.options) if search else recogniser.options
    if about is None:
        about = {} if folder is None else contents(recogniser)
    return recogniser, DecoderPlan(None, found, folder, about, how)


def check_whole(lm: str, subtracted: str) -> None:
    """What goes with the name of a model is an error beside a recogniser, which has its own."""
    for name, value in {"lm": lm, "subtracted": "" if subtracted == INTERNAL else subtracted}.items():
        if value:
            raise BadInputError(f"{name} goes with the name of a model; a recogniser has its own")


@contextmanager
def held(out: Path | None, processes: Processes, result: str) -> Iterator[None]:
    """Keeps other runs out of an output folder; the processes of one run count as one.

    What a killed run left of its result, a file of the folder, is removed.
    """
    with nullcontext() if out is None or processes.rank else only_run(out):
        if out is not None and not processes.rank:
            remove_partials(out / result)
        yield


def batches_for(device: torch.device, seconds: float = 0.0) -> DecodingOptions:
    """Batches that suit a device, encoder outputs not kept: a GPU takes four times as many utterances at once.

    Args:
        device: Where the search runs.
        seconds: Of audio in a batch; 0 takes what suits the device.
    """
    size, usual = (16, 240.0) if device.type == "cpu" else (64, 960.0)
    return DecodingOptions(seconds or usual, size, cache="none")


def read_set(source: Any, split: str = "", limit: int = 0) -> list[Utterance]:
    """The utterances of a manifest or a folder; a list of them as it is."""
    from ilme.data.utterances import read_utterances

    if limit < 0:
        raise UsageError(f"limit must not be negative, got {limit}; 0 takes all")
    if isinstance(source, str | Path):
        return read_utterances(Path(source), split=split, limit=limit)
    return list(source)
