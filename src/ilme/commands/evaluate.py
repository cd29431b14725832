"""`ilme evaluate`: decode a test set once, measure it, and write down that it was looked at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from ilme.evaluation.ledger import looks_at
from ilme.evaluation.metrics import NormaliserName
from ilme.evaluation.results import Results
from ilme.evaluation.tables import Style, main_table, render
from ilme.recogniser.decoder import DecodingOptions, Processes
from ilme.recogniser.options import SearchSettings
from ilme.runtime.formats import Format

DECODING, SEARCH = DecodingOptions(), SearchSettings()
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


def evaluate(
    model: str,
    test: Path,
    out: Path,
    weights: Path | None = None,
    lm: str = "",
    subtracted: str = "internal",
    domain: bool = False,
    phrases: str = "",
    method: str = "",
    label: str = "",
    name: str = "",
    beam: int = 0,
    normaliser: NormaliserName = "none",
    details: int = 12,
    search_errors: int = 0,
    split: str = "",
    limit: int = 0,
    language: str = "",
    prompt: str = "",
    ranks: str = "",
    head: str = "",
    device: str = "cpu",
    format: Format = "float32",
    workers: int = 1,
    ray: str = "",
    hypotheses: Path | None = None,
    ledger: Path | None = None,
    style: Style = "terminal",
    decoding: DecodingOptions = DECODING,
    search: SearchSettings = SEARCH,
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
        lm: The external LM, as for `ilme tune`.
        subtracted: What is subtracted, as for `ilme tune`.
        domain: MODEL is a domain folder: its LM, internal LM, weights and search are used.
        phrases: A file of names and terms that may be said, one a line; errors on its words are told apart.
        method: Name of the method; without it the tuning's, or the one that the weights make it.
        label: Name of the model in tables; its path's last part by default.
        name: Name of the test set; its path's last part by default.
        beam: Of the search, where no weights are given; 0 takes the model's own.
        normaliser: Of the texts, where no weights are given.
        details: Explain the choice in so many utterances, label by label.
        search_errors: Say of so many utterances whether the search or the scores lost them; scores each transcript.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        language: Language of multilingual models, such as de; Whisper also takes auto, and tells it for each window.
        prompt: Text that Whisper is told came before.
        ranks: The .tiktoken file of an OpenAI .pt.
        head: ctc searches the CTC layer of a network of `ilme train` in place of its decoder.
        device: Where everything runs.
        format: Of the weights on a CPU: float32, bfloat16 or int8.
        workers: Processes on this machine, started with torchrun; or workers of the Ray cluster.
        ray: Address of a Ray cluster that shares the work; `local` starts one here, `auto` finds one.
        hypotheses: Measure these texts ({"id", "text"} lines) instead of decoding.
        ledger: Where looks are counted; test-looks.json beside OUT by default.
        style: Of the printed table.
        decoding: Batches and cache.
        search: Search options that differ from the model's own.
    """
    from ilme.commands.models import model_options
    from ilme.commands.progress import utterance_progress
    from ilme.commands.workers import share_among
    from ilme.errors import UsageError
    from ilme.recogniser.domain import CARD, load_domain
    from ilme.runtime.files import file_hash
    from ilme.workflows.decoding import Ray
    from ilme.workflows.evaluate import Plan
    from ilme.workflows.evaluate import evaluate as run

    if not ray and (status := share_among(workers)) is not None:
        return status
    if domain and (ray or weights is not None or lm):
        raise UsageError("a domain folder has its own LM and weights, and is evaluated here or with --workers")
    processes, ledger = Processes.from_environment(), ledger or out.parent / "test-looks.json"
    plan = Plan(
        label or Path(model).name,
        method,
        beam=beam,
        normaliser=normaliser,
        details=details,
        search_errors=search_errors,
    )
    with utterance_progress(processes.rank == 0) as progress:
        results = run(
            load_domain(model, device=device, format=format) if domain else model,
            test,
            weights=weights,
            lm=lm,
            subtracted=subtracted,
            phrases=phrases,
            plan=plan,
            name=name,
            out=out,
            split=split,
            limit=limit,
            device=device,
            format=format,
            search=search,
            decoding=decoding,
            model_options=model_options(language, prompt, ranks, head),
            about={"domain": file_hash(Path(model) / CARD)} if domain else None,
            hypotheses=hypotheses,
            ledger=ledger,
            processes=processes,
            ray=Ray(ray, workers) if ray else None,
            progress=progress,
        )
    if processes.rank == 0:
        _tell(results, len(looks_at(ledger, results)), style)
        if phrases:
            print(_apart(results, phrases), file=_beside(style))
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
