"""`ilme transcribe`: audio files to text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ilme.commands.options import FLAT
from ilme.commands.shared import ModelOptions, Sharing
from ilme.workflows.options import TranscribeOptions

if TYPE_CHECKING:
    from ilme.workflows.transcribe_output import Outcome

OPTIONS, HOST, SHARING = TranscribeOptions(), ModelOptions(), Sharing()
TranscriptFormat = Literal["txt", "json", "srt", "vtt"]
SHOWN = {
    "transcribe": (
        "audio",
        "domain",
        "model",
        "out",
        "formats",
        "phrases",
        "baseline",
        "overwrite",
        "timestamps",
        "words",
        "language",
        "device",
        "format",
        "workers",
        "ray",
    )
}


def transcribe(
    audio: list[str],
    domain: Path | None = None,
    model: str = "",
    out: Path | None = None,
    formats: list[TranscriptFormat] | None = None,
    phrases: str = "",
    overwrite: bool = False,
    timestamps: bool = False,
    ctc_weight: float | None = None,
    options: Annotated[TranscribeOptions, FLAT] = OPTIONS,
    host: Annotated[ModelOptions, FLAT] = HOST,
    sharing: Annotated[Sharing, FLAT] = SHARING,
) -> int:
    """Transcribe audio files, however many and however long, with a domain folder of `ilme adapt` or a model as it is.

    A file that cannot be read is reported and the others go on; the exit status is then 1. With --out results are
    written as they finish, and a run that was stopped goes on where it was.

    Example:
        ilme transcribe --domain my-domain call.wav
        ilme transcribe --domain my-domain recordings/ --out transcripts --formats txt srt

    Args:
        audio: Files, folders or globs.
        domain: The domain folder.
        model: The model, if there is no domain; or where the domain's model is now.
        out: Where transcripts are written, under the paths that files have below the folder or glob named, or under
            the name of a file named itself; without it they are printed.
        formats: Any of txt, json, srt, vtt; txt if not given.
        phrases: A file of names and terms that may be said, one a line; a tab and a number after one is its weight.
        overwrite: Replace transcripts that another run wrote.
        timestamps: Let Whisper time each sentence; subtitles are then sentences, not windows.
        ctc_weight: Share of the CTC layer's score beside the decoder's, 0 to 1, for an AED of `ilme train` with one.
        options: Batches, and what is written beside the text.
        host: What the model is told, and where it runs.
        sharing: Who shares the work.
    """
    from ilme.commands.progress import seconds_progress
    from ilme.data.audio_files import find_audio
    from ilme.errors import UsageError
    from ilme.recogniser.decoder import Processes
    from ilme.workflows.transcribe import Job, run_job
    from ilme.workflows.transcribe_output import Output

    if domain is None and not model:
        raise UsageError("name a domain folder with --domain (`ilme adapt` writes one), or a model with --model")
    if options.baseline and domain is None:
        raise UsageError("--baseline is the model without the domain: name the domain folder with --domain")
    told = host.options if domain is None else host.domains
    if sharing.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {sharing.workers}")
    wanted = list(dict.fromkeys(formats or ["txt"]))
    processes = Processes.from_environment()
    where = "" if domain is None else str(domain)
    job = Job(where, model, host.device, host.format, timestamps, told, phrases, ctc_weight)
    files, failed = find_audio(audio), 0
    several = len(files) > 1
    with ExitStack() as held:
        output = None
        if out is not None:
            output = held.enter_context(Output(out, job.describe(), wanted, options, overwrite, processes.rank))
            output.check_names(files)
            files = output.left(processes.share(files))
        bar = held.enter_context(seconds_progress(processes.rank == 0))
        for outcome in run_job(job, files, options, bar, sharing.ray, sharing.workers):
            if outcome.transcript is None:
                failed += 1
                path = str(outcome.file.path)
                print(f"ilme transcribe: {path}: {outcome.error.removeprefix(f'{path} ')}", file=sys.stderr)
            elif output is not None:
                output.write(outcome)
            else:
                _print(outcome, wanted, f"{outcome.file.path}: " if several else "")
    processes.wait()  # torchrun ends the others when the first of them reports a failure
    return 1 if failed else 0


def _print(outcome: Outcome, formats: Sequence[str], title: str) -> None:
    """The transcript in each format, the one without the domain before it if there is one."""
    from ilme.recogniser.transcripts import render

    if outcome.transcript is None:
        return
    for name in formats:
        if outcome.baseline is not None:
            print(f"{title}without the domain: {render(outcome.baseline, name)}", end="")
        print(f"{title if name == 'txt' else ''}{render(outcome.transcript, name)}", end="", flush=True)
