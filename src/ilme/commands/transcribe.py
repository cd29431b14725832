"""`ilme transcribe`: audio files to text, with a domain."""

from __future__ import annotations

from pathlib import Path


def transcribe(
    audio: list[str],
    domain: Path | None = None,
    out: Path | None = None,
    formats: list[str] | None = None,
    model: str = "",
    device: str = "cpu",
    batch: int = 8,
    timestamps: bool = False,
) -> int:
    """Transcribe audio files, however long, with a domain folder of `ilme adapt`.

    A file that cannot be read is reported and the others go on; the exit status is then 1.

    Args:
        audio: Files or globs.
        domain: The domain folder; it must be given.
        out: Where transcripts are written; without it they are printed.
        formats: Any of txt, json, srt, vtt; txt if not given.
        model: Where the model is now, if it has moved.
        device: Where everything runs.
        batch: Windows of up to 30 s that are searched at once.
        timestamps: Let Whisper time each sentence; subtitles are then sentences, not windows.
    """
    import sys

    from ilme.commands.progress import utterance_progress
    from ilme.data.textfiles import expand
    from ilme.errors import BadInputError
    from ilme.recogniser.domain import load
    from ilme.recogniser.transcripts import render, write_transcript

    if domain is None:
        raise BadInputError("name the domain folder with --domain; `ilme adapt` writes one")
    wanted = formats or ["txt"]
    for format in wanted:
        check_format(format)
    files = expand(audio)
    recogniser = load(domain, model=model, device=device, timestamps=timestamps)
    failed = 0
    with utterance_progress() as bar:
        for done, file in enumerate(files, 1):
            try:
                transcript = recogniser.transcribe(file, batch=batch)
            except BadInputError as error:
                failed += 1
                print(f"ilme transcribe: {file}: {error}", file=sys.stderr)
                continue
            if out is not None:
                write_transcript(transcript, out, file.stem, wanted)
            else:
                for format in wanted:
                    print(render(transcript, format), end="")
            if bar is not None:
                bar(done, len(files))
    return 1 if failed else 0


def check_format(name: str) -> None:
    from ilme.errors import BadInputError
    from ilme.recogniser.transcripts import FORMATS

    if name not in FORMATS:
        raise BadInputError(f"no format is called {name!r}; there are {', '.join(FORMATS)}")
