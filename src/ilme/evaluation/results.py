"""One result object: what each system made of one test set. Tables, comparisons and the report read it.

The JSON keeps references and hypotheses, so that every figure can be counted again from the file itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from ilme.data.utterances import Reference
from ilme.errors import BadInputError, CheckpointError
from ilme.evaluation.metrics import Measurement, NormaliserName, measure
from ilme.evaluation.significance import Comparison, Interval, bootstrap_interval, compare
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.runtime.configs import config_from_json, finite_numbers, read_json_object
from ilme.runtime.files import write_json

__all__ = ["FORMAT", "VERSION", "Results", "System", "merge_results"]

FORMAT = "ilme-results"
VERSION = 1


@dataclass(frozen=True)
class System:
    """One model with one fusion method on the test set.

    Attributes:
        model: Such as `rnnt`, `aed`, `whisper-tiny.en`.
        method: BS, SF, DR, LODR, ILME, or a name of your own.
        weights: It was decoded with.
        hypotheses: Text by utterance id.
        dev_wer: WER on dev with these weights; None if it was not measured.
        parameters: Of everything that runs at recognition time; 0 if they were not counted.
        seconds: Wall time of the decode; 0 if it was not measured.
        beam: Beam of the search.
        oracle_wer: WER of the best hypothesis in each n-best list; None without lists.
        details: For some utterances, the hypotheses that competed with their scores label by label
            (see `ilme.evaluation.contributions`).
        tuning: How the weights were found.
        search_errors: Of some utterances: {"right", "search", "model"} (see `ilme.evaluation.analysis.search_errors`).
    """

    model: str
    method: str
    weights: FusionWeights
    hypotheses: Mapping[str, str]
    dev_wer: float | None = None
    parameters: int = 0
    seconds: float = 0.0
    beam: int = 0
    oracle_wer: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    tuning: TuningResult | None = None
    search_errors: Mapping[str, int] | None = None

    @property
    def name(self) -> str:
        return f"{self.model} {self.method}"


@dataclass(frozen=True)
class Results:
    """Systems on one test set.

    Attributes:
        name: Of the test set.
        normaliser: What was done to both sides before counting; every figure depends on it.
        references: By utterance id.
        systems: In the order of the tables.
        provenance: Commit, command, seed: whatever says where this came from.
    """

    name: str
    normaliser: NormaliserName
    references: Mapping[str, Reference]
    systems: tuple[System, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.references:
            raise BadInputError(f"the results of {self.name!r} have no references")
        if not self.systems:
            raise BadInputError(f"the results of {self.name!r} have no system")
        names = [s.name for s in self.systems]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise BadInputError(f"two systems are called {twice!r}; give each model and method a name of its own")

    @cached_property
    def measurements(self) -> dict[str, Measurement]:
        """Errors of each system, by name."""
        texts = {i: r.text for i, r in self.references.items()}
        speakers = {i: r.speaker for i, r in self.references.items()}
        return {
            s.name: measure(texts, s.hypotheses, speakers=speakers, normaliser_name=self.normaliser)
            for s in self.systems
        }

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95 % interval of each system's WER, by name."""
        return {name: bootstrap_interval(m) for name, m in self.measurements.items()}

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every pair of systems of one model, the later against the earlier."""
        pairs = ((a, b) for a, b in combinations(self.systems, 2) if a.model == b.model)
        return tuple(compare(b.name, self.measurements[b.name], a.name, self.measurements[a.name]) for a, b in pairs)

    def baseline(self, model: str) -> System | None:
        """The model's BS system, or None."""
        return next((s for s in self.systems if s.model == model and s.method == "BS"), None)

    def comparison(self, a: str, b: str) -> Comparison | None:
        return next((c for c in self.comparisons if (c.a, c.b) == (a, b)), None)

    @property
    def audio_seconds(self) -> float:
        return sum(r.seconds for r in self.references.values())

    def to_json(self) -> dict[str, Any]:
        """The file's content: a flat row per system first, then what the rows were counted from."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "normaliser": self.normaliser,
            "utterances": len(self.references),
            "audio_seconds": round(self.audio_seconds, 3),
            "results": [self._row(s) for s in self.systems],
            "comparisons": [asdict(c) for c in self.comparisons],
            "groups": {name: _groups(m) for name, m in self.measurements.items()},
            "references": {i: asdict(r) for i, r in self.references.items()},
            "hypotheses": {s.name: dict(s.hypotheses) for s in self.systems},
            "details": {s.name: dict(s.details) for s in self.systems if s.details},
            "tuning": {s.name: s.tuning.to_json() for s in self.systems if s.tuning},
            "provenance": dict(self.provenance),
        }

    def _row(self, system: System) -> dict[str, Any]:
        total = self.measurements[system.name].total
        interval = self.intervals[system.name]
        return {
            "model": system.model,
            "method": system.method,
            "lambda_t": system.weights.lm,
            "mu": system.weights.subtracted,
            "length_reward": system.weights.length,
            "background": system.weights.background,
            "kappa": system.weights.phrases,
            "dev_wer": system.dev_wer,
            "test_wer": round(total.rate, 4),
            "ci95": [round(interval.low, 4), round(interval.high, 4)],
            "speakers": interval.groups,
            "words": total.words,
            "substitutions": total.substitutions,
            "deletions": total.deletions,
            "insertions": total.insertions,
            "oracle_wer": system.oracle_wer,
            "search_errors": None if system.search_errors is None else dict(system.search_errors),
            "parameters": system.parameters,
            "beam": system.beam,
            "seconds": system.seconds,
        }

    @classmethod
    def from_json(cls, data: Any, source: str = "the data") -> Results:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise BadInputError(f"{source} is not a results file; `ilme evaluate` writes one")
        if data.get("version") != VERSION:
            raise BadInputError(
                f"{source} has version {str(data.get('version'))[:20]} and this ilme reads {VERSION}; evaluate "
                "again, or use the ilme that wrote it"
            )
        if not finite_numbers(data):
            raise BadInputError(f"{source} is damaged: it holds a number that is not finite; evaluate again")
        try:
            whole = {
                "name": data["name"],
                "normaliser": data["normaliser"],
                "references": {i: config_from_json(Reference, r) for i, r in data["references"].items()},
                "systems": tuple(_system(row, data) for row in data["results"]),
                "provenance": data.get("provenance", {}),
            }
            return config_from_json(cls, whole)
        except (KeyError, TypeError, AttributeError, BadInputError) as error:
            what = str(error) if isinstance(error, BadInputError) else repr(error)
            raise BadInputError(f"{source} is damaged: {what}; evaluate again") from error

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Results:
        if not path.exists():
            raise BadInputError(f"there is no results file {path}")
        try:
            data = read_json_object(path)
        except CheckpointError as error:
            raise BadInputError(f"{error}; a results file is written whole, copy it again") from error
        return cls.from_json(data, str(path))


def _groups(measured: Measurement) -> dict[str, dict[str, dict[str, float]]]:
    """WER by speaker and by length, for readers of the file; it is counted anew when the file is loaded."""
    return {
        kind: {name: {"words": c.words, "errors": c.errors} for name, c in groups.items()}
        for kind, groups in (("by_speaker", measured.by_speaker()), ("by_length", measured.by_length()))
    }


def _system(row: Mapping[str, Any], data: Mapping[str, Any]) -> System:
    name = f"{row['model']} {row['method']}"
    tuning = data.get("tuning", {}).get(name)
    hypotheses = data["hypotheses"][name]
    if odd := [i for i, text in hypotheses.items() if not isinstance(text, str)]:
        raise BadInputError(f"the hypothesis of {odd[0]!r} is no text")
    told = {
        **{field: row[field] for field in ("model", "method", "dev_wer", "parameters", "seconds", "beam")},
        "oracle_wer": row["oracle_wer"],
        "search_errors": row.get("search_errors"),
        "weights": FusionWeights(
            row["lambda_t"], row["mu"], row["length_reward"], row.get("background", 0.0), phrases=row.get("kappa", 0.0)
        ),
        "hypotheses": hypotheses,
        "details": data.get("details", {}).get(name, {}),
        "tuning": None if tuning is None else TuningResult.from_json(tuning),
    }
    return config_from_json(System, told)


def merge_results(parts: Iterable[Results], name: str = "") -> Results:
    """One object with the systems of all parts; they must share references and normaliser."""
    parts = list(parts)
    if not parts:
        raise BadInputError("no results to merge")
    first = parts[0]
    for other in parts[1:]:
        if other.normaliser != first.normaliser:
            raise BadInputError(
                f"{first.name!r} was counted with normaliser {first.normaliser!r} and {other.name!r} with "
                f"{other.normaliser!r}; evaluate both alike"
            )
        ours, theirs = ({i: r.text for i, r in p.references.items()} for p in (first, other))
        if ours != theirs:
            differing = sorted(ours.keys() ^ theirs.keys()) or [i for i in ours if ours[i] != theirs[i]]
            raise BadInputError(
                f"{first.name!r} and {other.name!r} are not the same test set: {len(differing)} "
                f"utterances differ, the first is {differing[0]!r}"
            )
    systems: Sequence[System] = [s for p in parts for s in p.systems]
    return replace(first, name=name or first.name, systems=tuple(systems))
