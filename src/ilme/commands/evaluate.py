"""`ilme evaluate`: decode a test set once, measure it, and write down that it was looked at."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from ilme.commands.options import FLAT
from ilme.commands.searched import SearchOptions
from ilme.commands.shared import ModelOptions, Sharing
from ilme.evaluation.ledger import looks_at
from ilme.evaluation.metrics import NormaliserName
from ilme.evaluation.results import Results
from ilme.evaluation.tables import Style, main_table, render
from ilme.recogniser.decoder import Processes

if TYPE_CHECKING:
    from ilme.workflows.evaluate import Plan

SHOWN = {
    "evaluate": (
        "model",
        "test",
        "out",
        "weights",
        "lm",
        "subtracted",
        "domain",
        "phrases",
        "split",
        "limit",
        "beam",
        "normaliser",
        "device",
        "format",
        "workers",
    )
}


@dataclass(frozen=True)
class Measured:
    """Names, and what is measured beside the errors.

    Attributes:
        method: Name of the method; without it the tuning's, or the one that the weights make it.
        label: Name of the model in tables; its path's last part by default.
        name: Name of the test set; its path's last part by default.
        beam: Beam of the search, where no weights are given; 0 takes the model's own.
        normaliser: Normaliser of the texts, where no weights are given.
        details: Explain the choice in so many utterances, label by label.
        search_errors: Say of so many utterances whether the search or the scores lost them; scores each transcript.
    """

    method: str = ""
    label: str = ""
    name: str = ""
    beam: int = 0
    normaliser: NormaliserName = "none"
    details: int = 12
    search_errors: int = 0

    def plan(self, model: str) -> Plan:
        from ilme.workflows.evaluate import Plan

        return Plan(
            self.label or Path(model).name,
            self.method,
            beam=self.beam,
            normaliser=self.normaliser,
            details=self.details,
            search_errors=self.search_errors,
        )


MEASURED, SEARCHED, HOST, SHARING = Measured(), SearchOptions(), ModelOptions(), Sharing()


def evaluate(
    model: str,
    test: Path,
    out: Path,
    weights: Path | None = None,
    domain: bool = False,
    hypotheses: Path | None = None,
    ledger: Path | None = None,
    style: Style = "terminal",
    measured: Annotated[Measured, FLAT] = MEASURED,
    searched: Annotated[SearchOptions, FLAT] = SEARCHED,
    host: Annotated[ModelOptions, FLAT] = HOST,
    sharing: Annotated[Sharing, FLAT] = SHARING,
) -> int:
    """Decode a test set with fixed weights and write OUT/results.json: WER with interval, errors by kind, transcripts.

    Weights come from `ilme tune`; method, beam, normaliser and tuned search options are then the tuning's. Every look
    at the test set with tuned weights is counted in a ledger beside the results.

    Example:
        ilme evaluate bundled/rnnt test.jsonl out/ilme --lm bundled/lm --weights out/tuned/tuning.json

    Args:
        model: Any model, as for `ilme adapt`; with --domain a domain folder.
        test: Utterances: NeMo-style JSON lines, Lhotse cuts, or a folder with either.
        out: Folder for results.json and the decode.
        weights: tuning.json of `ilme tune`; without it nothing is fused.
        domain: MODEL is a domain folder: its LM, internal LM, weights and search are used.
        hypotheses: Measure these texts ({"id", "text"} lines) instead of decoding.
        ledger: Where looks are counted; test-looks.json beside OUT by default.
        style: Style of the printed table.
        measured: Names, and what is measured beside the errors.
        searched: What stands beside the model, and how it is searched.
        host: What the model is told, and where it runs.
        sharing: Who shares the work.
    """
    from ilme.commands.progress import utterance_progress
    from ilme.commands.workers import share_among
    from ilme.errors import UsageError
    from ilme.recogniser.domain import CARD, load_domain
    from ilme.runtime.files import file_hash
    from ilme.workflows.decoding import Ray
    from ilme.workflows.evaluate import evaluate as run

    if not sharing.ray and (status := share_among(sharing.workers)) is not None:
        return status
    if domain and (sharing.ray or weights is not None or searched.lm or searched.subtracted != "internal"):
        raise UsageError("a domain folder has its own LM and weights, and is evaluated here or with --workers")
    told = host.domains if domain else host.options
    processes, ledger = Processes.from_environment(), ledger or out.parent / "test-looks.json"
    with utterance_progress(processes.rank == 0) as progress:
        results = run(
            load_domain(model, ranks=host.ranks, device=host.device, format=host.format) if domain else model,
            test,
            weights=weights,
            plan=measured.plan(model),
            name=measured.name,
            out=out,
            **vars(searched),
            device=host.device,
            format=host.format,
            model_options={} if domain else told,
            about={"domain": file_hash(Path(model) / CARD)} if domain else None,
            hypotheses=hypotheses,
            ledger=ledger,
            processes=processes,
            ray=Ray(sharing.ray, sharing.workers) if sharing.ray else None,
            progress=progress,
        )
    if processes.rank == 0:
        _tell(results, len(looks_at(ledger, results)), style)
        if searched.phrases:
            print(_apart(results, searched.phrases), file=_beside(style))
    return 0


def _beside(style: Style) -> TextIO:
    """Where all but the table goes: another program may read the table."""
    return sys.stderr if style in ("csv", "json", "latex") else sys.stdout


def _apart(results: Results, phrases: str) -> str:
    """Errors on listed words and on the others."""
    from ilme.evaluation.listed import listed_errors
    from ilme.lm.phrase_list import read_phrases

    (measured,) = results.measurements.values()
    listed, others = listed_errors(measured, read_phrases(phrases))
    parts = (f"{c.errors} errors on {c.words} {name}" for c, name in ((listed, "listed words"), (others, "others")))
    return "Phrases: " + ", ".join(parts)


def _tell(results: Results, looks: int, style: Style) -> None:
    """Prints what was measured, and how often the test set has been looked at."""
    (system,) = results.systems
    print(render(main_table(results), style))
    beside = _beside(style)
    if system.oracle_wer is not None:
        print(f"Best hypothesis of every n-best list: {system.oracle_wer:.2f} WER", file=beside)
    if system.search_errors is not None:
        found = system.search_errors
        print(
            f"{found['right']} right, {found['search']} lost by the search, {found['model']} lost by the scores",
            file=beside,
        )
    if looks:
        print(f"This test set has been decoded with tuned weights {looks} time{'s' if looks > 1 else ''}.", file=beside)
