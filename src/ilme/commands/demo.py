"""`ilme demo`: the paper's table, out of real decoding, in minutes."""

from __future__ import annotations

from pathlib import Path


def demo(
    out: Path = Path("out/demo"),
    model: str = "all",
    method: str = "all",
    beam: int = 0,
    utterances: int = 0,
    retune: bool = False,
    wav: Path | None = None,
    threads: int = 0,
) -> None:
    """Decode the bundled test set with BS, SF, DR and ILME for both models; write OUT/report.html and OUT/results.json.

    Args:
        out: Folder for what is written.
        model: rnnt, aed or all.
        method: BS, SF, DR, ILME or all.
        beam: Of the search; the bundle's by default.
        utterances: Decode the first so many only; 0 takes all.
        retune: Find the weights again on the bundled dev set first.
        wav: Transcribe this recording instead. Best effort: the bundled models know synthetic voices only.
        threads: Threads; 0 takes one for each core.
    """
    import time
    from dataclasses import replace

    from ilme.commands.progress import say, utterance_progress
    from ilme.demo import DemoOptions, examples, run_demo, transcribe_file
    from ilme.tables import main_table, rich_table

    options = DemoOptions(model, method, beam, utterances, retune, threads)
    if wav is not None:
        print("The bundled models have heard synthetic voices only: expect errors in a real recording.")
        for name, text in transcribe_file(wav, out, options):
            print(f"{name:<10} {text}")
        return
    began = time.perf_counter()
    with utterance_progress() as bar:
        results = run_demo(out, options, progress=lambda name: bar)
    for name in dict.fromkeys(system.model for system in results.systems):
        own = replace(results, systems=tuple(s for s in results.systems if s.model == name))
        say(rich_table(main_table(own)))
    for found in examples(results):
        lines = (f"said  {found.reference}", f"SF    {found.fused}", f"ILME  {found.ilme}")
        say("\n  ".join((f"{found.model}  {found.id}", *lines)))
    seconds = time.perf_counter() - began
    say(f"{out / 'report.html'}, {out / 'results.json'}: {len(results.references)} utterances in {seconds:.0f} s")
