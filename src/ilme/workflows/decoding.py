"""A set of utterances and a recogniser that decodes it: in this process, under torchrun, or over Ray's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder
from ilme.recogniser.loading import Parts, load_recogniser
from ilme.recogniser.options import Options, SearchSettings
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import remove_partials
from ilme.runtime.locks import only_run
from ilme.tuning.tuner import Decoder

__all__ = ["DecoderPlan", "Progress", "Ray", "batches_for", "held", "read_set"]

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
        parts: The model and its scorers.
        utterances: The set.
        folder: Where n-best lists are written as they finish; None keeps them in memory.
        about: What a folder of earlier results must match.
        decoding: Batches and cache.
        search: How to search: all options, or those that differ from the model's own.
        model_options: What the model's own kind takes, such as a language.
    """

    parts: Parts
    utterances: tuple[Utterance, ...]
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    search: SearchSettings | Options | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Recogniser:
        return load_recogniser(self.parts, self.search, dict(self.model_options))

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

        with RayDecoder(self.make, ray.workers, ray.address) as decoder:
            yield decoder


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
        raise BadInputError(f"limit must not be negative, got {limit}; 0 takes all")
    if isinstance(source, str | Path):
        return read_utterances(Path(source), split=split, limit=limit)
    return list(source)
