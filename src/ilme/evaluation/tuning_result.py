"""What tuning found, and how it is stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ilme.errors import BadInputError, CheckpointError
from ilme.evaluation.metrics import ErrorCounts, NormaliserName
from ilme.fusion import FusionWeights
from ilme.runtime.configs import config_from_json, finite_numbers, read_json_object
from ilme.runtime.files import write_json

__all__ = ["Balance", "HeatMap", "Method", "Stability", "TuningResult", "TuningStep"]

Method = Literal["BS", "SF", "DR", "LODR", "ILME", "ILME-learned"]

FORMAT = "ilme-tuning"
VERSION = 1


@dataclass(frozen=True)
class HeatMap:
    """WER of the n-best lists.

    Attributes:
        lm: The λ_T of each column.
        subtracted: The μ of each row; one row if μ is fixed.
        wer: WER in per cent, one list per row.
        length: The β at which it was drawn.
    """

    lm: tuple[float, ...]
    subtracted: tuple[float, ...]
    wer: tuple[tuple[float, ...], ...]
    length: float

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HeatMap:
        rows = tuple(tuple(row) for row in data["wer"])
        return cls(tuple(data["lm"]), tuple(data["subtracted"]), rows, data["length"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Balance:
    """Errors by kind, in per cent of the reference words, as λ_T grows and μ with it.

    Attributes:
        lm: λ_T
        subtracted: μ = λ_T · μ* / λ_T*, the tuned ratio.
        substitutions: In per cent.
        deletions: In per cent.
        insertions: In per cent.
    """

    lm: tuple[float, ...]
    subtracted: tuple[float, ...]
    substitutions: tuple[float, ...]
    deletions: tuple[float, ...]
    insertions: tuple[float, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Balance:
        return cls(**{name: tuple(values) for name, values in data.items()})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TuningStep:
    """One decode of dev.

    Attributes:
        weights: It was decoded with.
        beam: It was decoded with.
        counts: Errors of its best hypotheses: the search's own.
        list_wer: WER that the merged n-best lists give for the same weights. Below the search's own, the
            search missed better hypotheses (search errors); far above, they rank differently: check the
            scores.
        added: Hypotheses that no earlier decode had.
        search: Search options that were not as given, such as {"end_margin": 3.0}; `list_wer` is then that of this
            decode's own lists.
        overreached: Whether it made so many more errors than the best decode before it that its lists were left out of
            all further proposals, of the heat map, the balance and the stability.
    """

    weights: FusionWeights
    beam: int
    counts: ErrorCounts
    list_wer: float
    added: int
    search: dict[str, float] = field(default_factory=dict)
    overreached: bool = False


@dataclass(frozen=True)
class Stability:
    """How the weights move when dev is resampled.

    Attributes:
        replicates: How many dev sets were drawn.
        groups: How many speakers each was drawn from.
        mean: Mean of each weight.
        deviation: Standard deviation of each weight.
        low: 2.5 % quantile of each weight.
        high: 97.5 % quantile of each weight.
        optimism: Points by which dev WER is expected to understate the WER of new utterances.
    """

    replicates: int
    groups: int
    mean: FusionWeights
    deviation: FusionWeights
    low: FusionWeights
    high: FusionWeights
    optimism: float


@dataclass(frozen=True)
class TuningResult:
    """Weights, and everything that says how far to trust them.

    Attributes:
        method: BS, SF, DR, LODR or ILME.
        weights: The best that was measured.
        dev: Errors of the search with these weights on dev.
        baseline: Errors without fusion on dev; None if the space excluded it.
        beam: Beam of the search.
        normaliser: Normaliser of the texts.
        length_exponent: α of the search's length normalisation, tuned if it was to be.
        utterances: In dev.
        steps: Each decode.
        heat_map: WER over (λ_T, μ).
        balance: Kinds of error along λ_T.
        stability: Under resampling of dev; None if it was not asked for or nothing was free.
        seconds: All of it took.
        search: Search options that were tuned to something else than was given; `ilme evaluate` takes them over.
        at_bound: Weights (`lm`, `subtracted`, `length`) that ended at the largest value of their range.
        gaining: Whether the last decode that was allowed still made clearly fewer errors than those before it.
        phrases: Whether the weight of listed phrases was tuned too; it is then 0 where no weight helped.
    """

    method: Method
    weights: FusionWeights
    dev: ErrorCounts
    baseline: ErrorCounts | None
    beam: int
    normaliser: NormaliserName
    length_exponent: float
    utterances: int
    steps: tuple[TuningStep, ...]
    heat_map: HeatMap
    balance: Balance
    stability: Stability | None
    seconds: float
    search: dict[str, float] = field(default_factory=dict)
    at_bound: tuple[str, ...] = ()
    gaining: bool = False
    phrases: bool = False

    @property
    def decodes(self) -> int:
        return len(self.steps)

    @property
    def hints(self) -> list[str]:
        """What another run of the tuner should be given, in words; nothing where it found what there is."""
        signs = {"lm": "λ_T", "subtracted": "μ", "length": "β"}
        hints = [f"{signs[name]} is at the end of its range: give it more room" for name in self.at_bound]
        if self.gaining:
            hints.append(f"the last of {self.decodes} decodes still gained: allow more")
        return hints

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, "dev_wer": round(self.dev.rate, 4), **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TuningResult:
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise BadInputError(
                f"not a tuning result of version {VERSION}: format {str(data.get('format'))[:40]!r}, version "
                f"{str(data.get('version'))[:20]}; tune again with this version of ilme"
            )
        told = {name: value for name, value in data.items() if name not in ("format", "version", "dev_wer")}
        if not finite_numbers(told):
            raise BadInputError("the tuning result is damaged: it holds a number that is not finite; tune again")
        try:
            return config_from_json(cls, told)
        except BadInputError as error:
            raise BadInputError(f"the tuning result is damaged: {error}; tune again") from error

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> TuningResult:
        if not path.exists():
            raise BadInputError(f"there is no tuning result {path}; `ilme tune` writes one")
        try:
            return cls.from_json(read_json_object(path))
        except (BadInputError, CheckpointError) as error:
            raise BadInputError(f"{path}: {error}" if isinstance(error, BadInputError) else str(error)) from error
