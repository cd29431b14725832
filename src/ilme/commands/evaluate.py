"""`ilme evaluate`: decode a test set once, measure it, and write down that it was looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ilme.commands.workers import share_among
from ilme.data.utterances import read_utterances, references_of
from ilme.evaluation.ledger import record_look
from ilme.evaluation.metrics import NormaliserName
from ilme.evaluation.results import Results
from ilme.evaluation.tables import Style, main_table, render
from ilme.evaluation.tuning_result import TuningResult
from ilme.models.packed import Format
from ilme.recogniser.decoder import DecodingOptions, Processes
from ilme.recogniser.loading import Parts
from ilme.search.attention import AttentionOptions
from ilme.search.transducer import TransducerOptions
from ilme.workflows.evaluate import Plan, decode_system, measured_system

DECODING, TRANSDUCER, ATTENTION = DecodingOptions(), TransducerOptions(), AttentionOptions()


def evaluate(
    model: str,
    test: Path,
    out: Path,
    weights: Path | None = None,
    lm: str = "",
    subtracted: str = "internal",
    method: str = "BS",
    label: str = "",
    name: str = "",
    beam: int = 25,
    normaliser: NormaliserName = "none",
    details: int = 12,
    search_errors: int = 0,
    split: str = "",
    limit: int = 0,
    device: str = "cpu",
    format: Format = "float32",
    workers: int = 1,
    ray: int = 0,
    hypotheses: Path | None = None,
    ledger: Path | None = None,
    style: Style = "terminal",
    decoding: DecodingOptions = DECODING,
    transducer: TransducerOptions = TRANSDUCER,
    attention: AttentionOptions = ATTENTION,
) -> None:
    """Decode a test set with fixed weights and write OUT/results.json: WER with interval, errors by kind, transcripts.

    Weights come from `ilme tune`; method, beam, normaliser and tuned search options are then the tuning's. Every look
    at the test set with tuned weights is counted in a ledger beside the results.

    Args:
        model: A checkpoint of ours, or a model of others.
        test: Utterances: NeMo-style JSON lines, Lhotse cuts, or a folder with either.
        out: Folder for results.json and the decode.
        weights: tuning.json of `ilme tune`; without it nothing is fused.
        lm: The external LM, as for `ilme tune`.
        subtracted: What is subtracted, as for `ilme tune`.
        method: Name of the method, where no weights are given.
        label: Name of the model in tables; its path's last part by default.
        name: Name of the test set; its path's last part by default.
        beam: Of the search, where no weights are given.
        normaliser: Of the texts, where no weights are given.
        details: Explain the choice in so many utterances, label by label.
        search_errors: Say of so many utterances whether the search or the scores lost them; scores each transcript.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        device: Where everything runs.
        format: Of the decoder's weights on a CPU: float32, bfloat16 or int8.
        workers: Processes on this machine, started with torchrun.
        ray: Workers on a Ray cluster (the one at RAY_ADDRESS, else this machine); 0 does without Ray.
        hypotheses: Measure these texts ({"id", "text"} lines) instead of decoding.
        ledger: Where looks are counted; test-looks.json beside OUT by default.
        style: Of the printed table.
        decoding: Batches and cache.
        transducer: Search options of a transducer.
        attention: Search options of an attention decoder.
    """
    if share_among(workers):
        return
    processes, utterances = Processes.from_environment(), read_utterances(test, split=split, limit=limit)
    plan = Plan(label or Path(model).name, method, beam, normaliser, None, details, search_errors)
    if weights is not None:
        tuning = TuningResult.load(weights)
        plan, attention = plan.tuned(tuning), replace(attention, **tuning.search)  # type: ignore[arg-type]
    if hypotheses is not None:
        system = measured_system(plan, hypotheses)
    else:
        parts = Parts(model, lm, subtracted if plan.weights.subtracted else "", device, format)
        system = decode_system(plan, parts, utterances, out / "decode", decoding, transducer, attention, processes, ray)
    if processes.rank == 0:
        results = Results(name or (split or test.stem), plan.normaliser, references_of(utterances), (system,))
        results.save(out / "results.json")
        _tell(results, ledger or out.parent / "test-looks.json", style)


def _tell(results: Results, ledger: Path, style: Style) -> None:
    """Prints what was measured, and counts the look."""
    (system,) = results.systems
    print(render(main_table(results), style))
    if system.oracle_wer is not None:
        print(f"Best hypothesis of every n-best list: {system.oracle_wer:.2f} WER")
    if system.search_errors is not None:
        found = system.search_errors
        print(f"{found['right']} right, {found['search']} lost by the search, {found['model']} lost by the scores")
    looks = record_look(ledger, results)
    if looks:
        print(f"This test set has been decoded with tuned weights {looks} time{'s' if looks > 1 else ''}.")
