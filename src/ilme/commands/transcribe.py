"""`ilme transcribe`: audio files to text."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ilme.runtime.formats import Format

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
    baseline: bool = False,
    overwrite: bool = False,
    timestamps: bool = False,
    words: bool = False,
    language: str = "",
    prompt: str = "",
    ranks: str = "",
    head: str = "",
    ctc_weight: float | None = None,
    device: str = "cpu",
    format: Format = "float32",
    workers: int = 1,
    ray: str = "",
    batch_seconds: float = 240.0,
    batch_size: int = 16,
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
        baseline: Also write what the model makes of it without the domain, as NAME.baseline.
        overwrite: Replace transcripts that another run wrote.
        timestamps: Let Whisper time each sentence; subtitles are then sentences, not windows.
        words: Also say when each word was said, and how sure it is; --formats json holds that.
        language: Language of multilingual models, such as de; Whisper also takes auto, and tells it for each window.
        prompt: Text that Whisper is told came before.
        ranks: The .tiktoken file of an OpenAI .pt.
        head: ctc searches the CTC layer of a network of `ilme train` in place of its decoder.
        ctc_weight: Share of the CTC layer's score beside the decoder's, 0 to 1, for an AED of `ilme train` with one.
        device: Where everything runs.
        format: Of the weights on a CPU: float32, bfloat16 or int8.
        workers: Processes on this machine (needs --out), or workers of the Ray cluster.
        ray: Address of a Ray cluster that shares the work; `local` starts one here, `auto` finds one.
        batch_seconds: Seconds of audio that are searched at once.
        batch_size: Most windows that are searched at once.
    """
    import sys
    from contextlib import ExitStack

    from ilme.commands.models import model_options
    from ilme.commands.progress import seconds_progress
    from ilme.commands.workers import share_among
    from ilme.data.audio_files import find_audio
    from ilme.errors import UsageError
    from ilme.recogniser.decoder import Processes
    from ilme.recogniser.transcripts import render
    from ilme.workflows.transcribe import Job, Output, TranscribeOptions, run_job

    if domain is None and not model:
        raise UsageError("name a domain folder with --domain (`ilme adapt` writes one), or a model with --model")
    wanted = list(dict.fromkeys(formats or ["txt"]))
    if workers > 1 and not ray:
        if out is None:
            raise UsageError("several workers write into a folder: name one with --out")
        if (status := share_among(workers)) is not None:
            return status
    processes = Processes.from_environment()
    job = Job(
        "" if domain is None else str(domain),
        model,
        device,
        format,
        timestamps,
        model_options(language, prompt, ranks, head),
        phrases,
        ctc_weight,
    )
    options = TranscribeOptions(batch_seconds, batch_size, baseline, words)
    files, failed = find_audio(audio), 0
    several = len(files) > 1
    with ExitStack() as held:
        output = None
        if out is not None:
            output = held.enter_context(Output(out, job.describe(), wanted, options, overwrite, processes.rank))
            output.check_names(files)
            files = output.left(processes.share(files))
        bar = held.enter_context(seconds_progress(processes.rank == 0))
        for outcome in run_job(job, files, options, bar, ray, workers):
            if outcome.transcript is None:
                failed += 1
                path = str(outcome.file.path)
                print(f"ilme transcribe: {path}: {outcome.error.removeprefix(f'{path} ')}", file=sys.stderr)
            elif output is not None:
                output.write(outcome)
            else:
                title = f"{outcome.file.path}: " if several else ""
                for name in wanted:
                    if outcome.baseline is not None:
                        print(f"{title}without the domain: {render(outcome.baseline, name)}", end="")
                    print(f"{title if name == 'txt' else ''}{render(outcome.transcript, name)}", end="", flush=True)
    processes.wait()  # torchrun ends the others when the first of them reports a failure
    return 1 if failed else 0
