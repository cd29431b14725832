"""`ilme demo`: real speech before and after, the paper's table out of real decoding, and your own text and voice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal


def demo(
    out: Path = Path("out/demo"),
    text: list[str] | None = None,
    wav: Path | None = None,
    mic: bool = False,
    seconds: float = 8.0,
    whisper: str = "",
    model: Literal["whisper", "rnnt", "aed", "all"] = "all",
    method: Literal["BS", "SF", "DR", "ILME", "ILME-learned", "all"] = "all",
    beam: int = 0,
    utterances: int = 0,
    retune: bool = False,
    threads: int = 1,
    processes: int = 0,
    bundle: Path | None = None,
) -> None:
    """Show what ILME gives: Whisper on real recordings, the paper's methods on bundled models, or your own voice.

    First Whisper tiny.en on 60 recordings of two domains, as it is, with Shallow Fusion, ILME, and ILME with a list of
    names; its weights come from the cache, the hub or a package registry. Then the bundled RNN-T and AED with BS, SF,
    DR and ILME. Writes OUT/report.html, with recordings to listen to, and the results as JSON.

    Example:
        ilme demo
        ilme demo --text my.txt --wav a.wav
        ilme demo --text my.txt --mic --seconds 5
        ilme demo --model rnnt --method ILME --utterances 20

    Args:
        out: Folder for what is written.
        text: Text files or globs of your domain: adapt Whisper to them, and hear the recording before and after.
        wav: A recording of yours; without --text it is heard with the domains of the demo.
        mic: Record from the microphone instead.
        seconds: How long to record.
        whisper: Whisper's weights, as `ilme adapt --model` takes them; looked for if not given.
        model: Which of the models.
        method: Which fusion; all leaves out ILME-learned.
        beam: Beam of the search; the bundle's by default.
        utterances: Decode the first so many of each set only; 0 takes all.
        retune: Find the weights of the bundled models again on the bundled dev set first.
        threads: Threads of each operation; one is fastest for networks this small. 0 takes one for each core.
        processes: Systems decoded side by side, each in a process. 0 takes one for each core, fewer with more threads.
        bundle: Other bundled models than the package's own, made by `ilme study bundle`.
    """
    from ilme.errors import UsageError
    from ilme.workflows.demo import DemoOptions

    if mic and wav is not None:
        raise UsageError("--mic records a file and --wav names one: give one of them")
    if text and not mic and wav is None:
        raise UsageError("--text adapts Whisper to be heard on a recording: name one with --wav, or record with --mic")
    if mic or wav is not None:
        _own(text or [], wav, seconds, whisper, out)
    else:
        _acts(DemoOptions(model, method, beam, utterances, retune, threads, processes), out, whisper, bundle)


def _acts(options: Any, out: Path, whisper: str, bundle: Path | None) -> None:
    """Both acts, or the one that is wanted or possible."""
    import time

    from ilme.commands.progress import named_progress, say
    from ilme.evaluation.tables import rich_table
    from ilme.runtime.console import tell
    from ilme.workflows.bundle import FOLDER, read_bundle
    from ilme.workflows.demo import examples, model_tables, run_demo, write_demo_report
    from ilme.workflows.speech_demo import run_speech
    from ilme.workflows.whisper_weights import WeightsUnavailableError, find_whisper

    sets, told = [], []
    began = time.perf_counter()
    with named_progress() as bar:

        def announce(name: str) -> Callable[[int, int], None]:
            print(f"decoding with {name}", flush=True)
            return bar(name)

        if options.model in ("whisper", "all") and not options.retune:
            try:
                sets += run_speech(find_whisper(whisper, tell), out, options, progress=announce)
            except WeightsUnavailableError as error:
                if options.model == "whisper":
                    raise
                print(f"no real speech, only the bundled models: {error}", flush=True)
        if options.model != "whisper":
            bundled = run_demo(out, options, read_bundle(bundle or FOLDER), announce)
            told, sets = examples(bundled), [*sets, bundled]
    write_demo_report(out / "report.html", sets)
    for results in sets:
        for table in model_tables(results):
            say(rich_table(table))
    for found in told:
        lines = (f"said  {found.reference}", f"SF    {found.fused}", f"ILME  {found.ilme}")
        print("\n  ".join((f"{found.model}  {found.id}", *lines)))
    took, count = time.perf_counter() - began, sum(len(results.references) for results in sets)
    print(f"{out / 'report.html'}: {count} utterances in {took:.0f} s")


def _own(text: list[str], wav: Path | None, seconds: float, whisper: str, out: Path) -> None:
    """The user's own recording, before and after."""
    import time

    from ilme.data.audio import audio_info
    from ilme.data.microphone import find_recorder, record
    from ilme.runtime.console import tell
    from ilme.runtime.files import make_folder
    from ilme.workflows.own_speech import adapt_to_text, hear
    from ilme.workflows.whisper_weights import find_whisper

    began = time.perf_counter()
    if wav is None:  # what can be wrong comes before what takes time
        find_recorder()
    else:
        audio_info(wav)
    found = find_whisper(whisper, tell)
    domain = adapt_to_text(found, text, out, tell) if text else None
    if wav is None:
        make_folder(out)
        wav = out / "recording.wav"
        waited = time.perf_counter()
        tell(f"speak now, {seconds:g} seconds")
        record(seconds, wav)
        began += time.perf_counter() - waited
    for heard in hear(found, wav, domain, out):
        print(f"{heard.by + ':':<24} {heard.text or '(nothing: the recording is silent, or nearly)'}")
    kept = f"; {domain} is for `ilme transcribe --domain`" if domain else ""
    print(f"{wav}: {time.perf_counter() - began:.0f} s{kept}")
