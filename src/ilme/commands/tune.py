"""`ilme tune`: fusion weights on a dev set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ilme.commands.options import FLAT
from ilme.commands.progress import say, steps_table, utterance_progress
from ilme.commands.searched import SearchOptions
from ilme.commands.shared import ModelOptions, Sharing
from ilme.tuning.tuner import TuningOptions

TUNING, SEARCHED, HOST, SHARING = TuningOptions(), SearchOptions(), ModelOptions(), Sharing()
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
    beam: int = 0,
    tuning: TuningOptions = TUNING,
    searched: Annotated[SearchOptions, FLAT] = SEARCHED,
    host: Annotated[ModelOptions, FLAT] = HOST,
    sharing: Annotated[Sharing, FLAT] = SHARING,
) -> int:
    """Find fusion weights on a dev set in a few decodes; `ilme evaluate --weights OUT/tuning.json` uses them.

    Can be stopped at any moment and started again. Under torchrun the processes share the work.

    Example:
        ilme tune bundled/rnnt dev.jsonl out/tuned --lm bundled/lm

    Args:
        model: Any model, as for `ilme adapt`.
        dev: Utterances to tune on: NeMo-style JSON lines, Lhotse cuts, or a folder with either.
        out: Folder for tuning.json and the decodes.
        beam: Beam of every decode; 0 takes tuning.beam.
        tuning: Method, ranges, beam, number of decodes and the like.
        searched: What stands beside the model, and how it is searched.
        host: What the model is told, and where it runs.
        sharing: Who shares the work.
    """
    from ilme.commands.workers import share_among
    from ilme.recogniser.decoder import Processes
    from ilme.workflows.decoding import Ray
    from ilme.workflows.tune import tune as find_weights

    if not sharing.ray and (status := share_among(sharing.workers)) is not None:
        return status
    processes = Processes.from_environment()
    with utterance_progress(processes.rank == 0) as progress:
        result = find_weights(
            model,
            dev,
            out=out,
            options=replace(tuning, beam=beam) if beam else tuning,
            **vars(searched),
            device=host.device,
            format=host.format,
            model_options=host.options,
            processes=processes,
            ray=Ray(sharing.ray, sharing.workers) if sharing.ray else None,
            progress=progress,
        )
    if processes.rank == 0:
        say(steps_table(result))
    return 0
