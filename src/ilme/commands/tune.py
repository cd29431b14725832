"""`ilme tune`: fusion weights on a dev set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ilme.commands.progress import say, steps_table, utterance_progress
from ilme.recogniser.decoder import DecodingOptions
from ilme.recogniser.options import SearchSettings
from ilme.runtime.formats import Format
from ilme.tuning.tuner import TuningOptions

TUNING, DECODING, SEARCH = TuningOptions(), DecodingOptions(), SearchSettings()
SHOWN = {
    "tune": (
        "model",
        "dev",
        "out",
        "lm",
        "subtracted",
        "phrases",
        "split",
        "limit",
        "beam",
        "device",
        "format",
        "workers",
        "tuning.method",
        "tuning.max_decodes",
        "tuning.normaliser",
    )
}


def tune(
    model: str,
    dev: Path,
    out: Path,
    lm: str = "",
    subtracted: str = "internal",
    phrases: str = "",
    split: str = "",
    limit: int = 0,
    beam: int = 0,
    language: str = "",
    prompt: str = "",
    ranks: str = "",
    head: str = "",
    device: str = "cpu",
    format: Format = "float32",
    workers: int = 1,
    ray: str = "",
    tuning: TuningOptions = TUNING,
    decoding: DecodingOptions = DECODING,
    search: SearchSettings = SEARCH,
) -> int:
    """Find fusion weights on a dev set in a few decodes; `ilme evaluate --weights OUT/tuning.json` uses them.

    Can be stopped at any moment and started again. Under torchrun the processes share the work.

    Example:
        ilme tune bundled/rnnt dev.jsonl out/tuned --lm bundled/lm

    Args:
        model: Any model, as for `ilme adapt`.
        dev: Utterances to tune on: NeMo-style JSON lines, Lhotse cuts, or a folder with either.
        out: Folder for tuning.json and the decodes.
        lm: The external LM: a checkpoint of ours, an n-gram file, or a mixture of such (`ilme lm mix`).
        subtracted: What is subtracted: internal, another internal LM of the model by name, the file of a learned one
            (`ilme ilm learn`), or a source-domain LM.
        phrases: A file of names and terms that may be said, one a line; their weight is tuned last.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        beam: Of every decode; 0 takes tuning.beam.
        language: Language of multilingual models.
        prompt: Text that Whisper is told came before.
        ranks: The .tiktoken file of an OpenAI .pt.
        head: ctc searches the CTC layer of a network of `ilme train` in place of its decoder.
        device: Where everything runs.
        format: Of the weights on a CPU: float32, bfloat16 or int8.
        workers: Processes on this machine, started with torchrun; or workers of the Ray cluster.
        ray: Address of a Ray cluster that shares the work; `local` starts one here, `auto` finds one.
        tuning: Method, ranges, beam, number of decodes and the like.
        decoding: Batches and cache.
        search: Search options that differ from the model's own.
    """
    from ilme.commands.models import model_options
    from ilme.commands.workers import share_among
    from ilme.recogniser.decoder import Processes
    from ilme.workflows.decoding import Ray
    from ilme.workflows.tune import tune as find_weights

    if not ray and (status := share_among(workers)) is not None:
        return status
    processes = Processes.from_environment()
    with utterance_progress(processes.rank == 0) as progress:
        result = find_weights(
            model,
            dev,
            lm=lm,
            subtracted=subtracted,
            phrases=phrases,
            out=out,
            split=split,
            limit=limit,
            device=device,
            format=format,
            options=replace(tuning, beam=beam) if beam else tuning,
            search=search,
            decoding=decoding,
            model_options=model_options(language, prompt, ranks, head),
            processes=processes,
            ray=Ray(ray, workers) if ray else None,
            progress=progress,
        )
    if processes.rank == 0:
        say(steps_table(result))
    return 0
