"""Decodes a fixed set of utterances with any weights: the encoder once, the search as often as asked.

Batches are made by length and do not depend on the number of processes, so neither do the results. Processes started
by `torchrun` (or by `ilme tune --workers N`, which calls it) share the batches and meet at the folder of results, which
all of them must see. With Ray (`ilme.recogniser.ray_decoder`) results travel through Ray; no common folder is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.store import DecodeStore, identity
from ilme.recogniser.windows import cut_windows
from ilme.runtime.state import State, map_tensors
from ilme.search.hypothesis import Hypothesis, NBest, Scores
from ilme.search.rescoring import SequenceScorer, complete, finite

__all__ = ["DecodingOptions", "Processes", "SearchDecoder"]

Progress = Callable[[int, int], None]
PATIENCE = timedelta(days=30)  # shares may differ by hours
Item = TypeVar("Item")


@dataclass(frozen=True)
class DecodingOptions:
    """How a set is decoded.

    Attributes:
        batch_seconds: Seconds of audio, padding included, that are searched at once.
        batch_size: Most utterances that are searched at once.
        cache: Where encoder outputs wait between decodes: `device`, `cpu`, or `none`: encode each time.
    """

    batch_seconds: float = 120.0
    batch_size: int = 16
    cache: Literal["device", "cpu", "none"] = "cpu"

    def __post_init__(self) -> None:
        if not self.batch_seconds > 0 or self.batch_size < 1:
            raise BadInputError(f"a batch needs seconds and size, got {self.batch_seconds} and {self.batch_size}")


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is, as torchrun tells it.

    Attributes:
        rank: 0 … world − 1.
        world: How many there are.
    """

    rank: int = 0
    world: int = 1

    @classmethod
    def from_environment(cls) -> Processes:
        """Reads RANK and WORLD_SIZE, and joins the group if there is more than one process."""
        found = cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        if found.world > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", timeout=PATIENCE)
        return found

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's part of a list that every process has."""
        return list(items[self.rank :: self.world])

    def wait(self) -> None:
        """Returns when every process has come here."""
        if self.world > 1:
            torch.distributed.barrier()


class SearchDecoder:
    """The tuner's decoder over a real model; encoder outputs and LM scores are kept between decodes.

    What is longer than the model takes at once is searched window by window, as `Recogniser.transcribe` does it.

    Args:
        recogniser: Model, scorers, search options.
        utterances: The set.
        folder: Where n-best lists are written as they finish; None keeps them in memory only.
        about: What says which model and scorers these are, such as checkpoint paths; part of what a folder must match.
        options: Batches and cache.
        processes: Which share of the batches is this process's.
        progress: Called with (utterances done, utterances in all) of this process's share.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        utterances: Sequence[Utterance],
        *,
        folder: Path | None = None,
        about: Mapping[str, Any] | None = None,
        options: DecodingOptions | None = None,
        processes: Processes | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.recogniser, self.folder, self.about = recogniser, folder, dict(about or {})
        self.options = options or DecodingOptions()
        self.processes = processes or Processes()
        self.progress = progress
        if self.processes.world > 1 and folder is None:
            raise BadInputError("several processes meet in a folder of results; give one")
        self.utterances = list(utterances)
        long = [u for u in self.utterances if u.seconds > recogniser.window]
        short = [u for u in self.utterances if u.seconds <= recogniser.window]
        self.batches = [[u] for u in long] + (make_batches(short, self.options) if short or not long else [])
        self._in_windows = len(long)  # the first batches: what the model cannot take at once
        self.ids = [u.id for u in utterances]
        self._encoded: dict[int, State] = {}
        scorers = {"lm": recogniser.lm, "subtracted": recogniser.subtracted, "phrases": recogniser.phrases}
        self._scorers = {
            name: SequenceScorer(scorer, finish=recogniser.ends[name])
            for name, scorer in scorers.items()
            if scorer is not None
        }

    def reuse(self, other: SearchDecoder) -> SearchDecoder:
        """Takes over the encoder outputs of a decoder of the same model over the same batches; returns itself."""
        if [[u.id for u in b] for b in other.batches] != [[u.id for u in b] for b in self.batches]:
            raise BadInputError(
                "encoder outputs can be shared only between decoders of the same utterances and batches"
            )
        self._encoded = other._encoded
        return self

    def adjusted(self, search: Mapping[str, float]) -> SearchDecoder:
        """The same decoder with these search options changed; encoder outputs and LM scores are shared."""
        if not search:
            return self
        options = self.recogniser.options
        unknown = [name for name in search if not hasattr(options, name)]
        if unknown:
            raise BadInputError(f"{type(options).__name__} has no {', '.join(unknown)}: it cannot be tuned here")
        other = copy(self)
        other.recogniser = copy(self.recogniser)
        other.recogniser.options = replace(options, **search)  # type: ignore[arg-type]
        return other

    def decode(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        """The n-best list of every utterance with every component score; continues what was begun before."""
        lists = self.share(weights, beam)
        if self.processes.world > 1:
            self.processes.wait()
            lists = self._store(weights, beam).read()
        missing = [i for i in self.ids if i not in lists]
        if missing:
            raise BadInputError(
                f"{len(missing)} utterances are not in {self.folder}, the first is {missing[0]!r}: do all processes "
                "see the same folder?"
            )
        return {i: lists[i] for i in self.ids}

    def share(self, weights: FusionWeights, beam: int) -> dict[str, NBest]:
        """This process's part: the lists of every world-th batch, and whatever else its folder already holds."""
        if self.folder is None:
            found: dict[str, NBest] = {}
            self._run(weights, beam, {}, found.update)
            return found
        store = self._store(weights, beam)
        lists = store.read()

        with store.open(self.processes.rank) as part:

            def keep(new: dict[str, NBest]) -> None:
                part.write(new.items())
                lists.update(new)

            self._run(weights, beam, dict(lists), keep)
        return lists

    def _run(
        self, weights: FusionWeights, beam: int, done: Mapping[str, NBest], keep: Callable[[dict[str, NBest]], None]
    ) -> None:
        """Searches what is not done of this process's batches; which these are does not depend on what is done."""
        mine = range(self.processes.rank, len(self.batches), self.processes.world)
        todo = [(k, [r for r, u in enumerate(self.batches[k]) if u.id not in done]) for k in mine]
        finished, total = 0, sum(len(rows) for _, rows in todo)
        for k, rows in todo:
            if not rows:
                continue
            keep(self._search(k, rows, weights, beam))
            finished += len(rows)
            if self.progress is not None:
                self.progress(finished, total)

    def _search(self, k: int, rows: list[int], weights: FusionWeights, beam: int) -> dict[str, NBest]:
        """Searches the given utterances of batch k and fills in what the search itself did not score."""
        encoded = self._encode(k)
        if len(rows) < len(self.batches[k]):
            encoded = self.recogniser.choose(encoded, rows)
        lists = self.recogniser.search(encoded, weights, beam)
        ids = [self.batches[k][r].id for r in rows]
        for i, nbest in zip(ids * len(lists) if k < self._in_windows else ids, lists, strict=True):
            if not nbest:
                raise BadInputError(f"the search found nothing for utterance {i!r}")
        unscored = {name: s for name, s in self._scorers.items() if not getattr(weights, name)}
        if k >= self._in_windows:
            return finite(complete(dict(zip(ids, lists, strict=True)), **unscored))
        windows = finite(complete({str(n): nbest for n, nbest in enumerate(lists)}, **unscored))
        return {ids[0]: joined(list(windows.values()), weights, self.recogniser.length_exponent)}

    def _encode(self, k: int) -> State:
        device = self.recogniser.model.device
        if k not in self._encoded:
            audio = [u.samples(self.recogniser.rate) for u in self.batches[k]]
            if k < self._in_windows:
                audio = [w.samples for w in cut_windows(audio[0], self.recogniser.rate, self.recogniser.window)]
            encoded = self.recogniser.encode(audio)
            if self.options.cache == "none":
                return encoded
            place = torch.device("cpu") if self.options.cache == "cpu" else device
            self._encoded[k] = map_tensors(lambda x: x.to(place), encoded)
        return map_tensors(lambda x: x.to(device), self._encoded[k])

    def encoded(self) -> Iterator[tuple[list[Utterance], State]]:
        """Every batch with what the encoder gives for it, encoded now if it has not been."""
        for k, batch in enumerate(self.batches):
            yield batch, self._encode(k)

    def _store(self, weights: FusionWeights, beam: int) -> DecodeStore:
        if self.folder is None:
            raise BadInputError("this decoder keeps its lists in memory; give it a folder")
        description = self._description(weights, beam)
        name = f"lm{weights.lm:.4f}-sub{weights.subtracted:.4f}-len{weights.length:.4f}-beam{beam}"
        name += f"-phrases{weights.phrases:.4f}" if weights.phrases else ""
        return DecodeStore(self.folder / f"{name}-{identity(description)}", description)

    def _description(self, weights: FusionWeights, beam: int) -> dict[str, Any]:
        return {
            **self.about,
            # older decodes had neither background nor phrases
            "weights": {k: v for k, v in asdict(weights).items() if v or k not in ("background", "phrases")},
            "beam": beam,
            # older decodes had no consensus, of one list or two
            "search": {
                k: str(v)
                for k, v in asdict(self.recogniser.options).items()
                if k != "beam" and v is not None and (v or k not in ("consensus", "joined"))
            },
            "utterances": identity({"ids": self.ids}),
        }


def make_batches(utterances: Sequence[Utterance], options: DecodingOptions) -> list[list[Utterance]]:
    """Utterances of like length together, longest first; the same batches whatever the order they come in."""
    if not utterances:
        raise BadInputError("there are no utterances to decode")
    batches: list[list[Utterance]] = []
    for u in sorted(utterances, key=lambda u: (-u.seconds, u.id)):
        longest = batches[-1][0].seconds if batches else 0.0
        full = not batches or len(batches[-1]) >= options.batch_size
        if full or (len(batches[-1]) + 1) * longest > options.batch_seconds:
            batches.append([])
        batches[-1].append(u)
    return batches


def joined(windows: Sequence[NBest], weights: FusionWeights, exponent: float) -> NBest:
    """The n-best list of a recording that was searched in windows: the best of what their lists make together."""

    def after(a: Hypothesis, b: Hypothesis) -> Hypothesis:
        both = zip(asdict(a.scores).items(), asdict(b.scores).values(), strict=True)
        scores, tokens = Scores(**{name: x + y for (name, x), y in both}), a.tokens + b.tokens
        score = scores.fused(weights) / (len(tokens) + 1) ** exponent
        return Hypothesis(tokens, score, scores, text=" ".join(t.strip() for t in (a.text, b.text) if t.strip()))

    found = windows[0]
    for window in windows[1:]:
        pairs = [after(a, b) for a in found for b in window]
        found = sorted(pairs, key=lambda h: -h.score)[: max(len(found), len(window))]
    return found
