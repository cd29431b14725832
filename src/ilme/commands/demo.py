"""`ilme demo`: the paper's table, out of real decoding, in minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal


def demo(
    out: Path = Path("out/demo"),
    model: Literal["rnnt", "aed", "all"] = "all",
    method: Literal["BS", "SF", "DR", "ILME", "ILME-learned", "all"] = "all",
    beam: int = 0,
    utterances: int = 0,
    retune: bool = False,
    wav: Path | None = None,
    threads: int = 1,
    processes: int = 0,
    bundle: Path | None = None,
) -> None:
    """Decode the bundled test set with BS, SF, DR and ILME for both models; write OUT/report.html and OUT/results.json.

    Example:
        ilme demo
        ilme demo --model rnnt --method ILME --utterances 20

    Args:
        out: Folder for what is written.
        model: Which of the bundled models.
        method: Which fusion; all leaves out ILME-learned.
        beam: Beam of the search; the bundle's by default.
        utterances: Decode the first so many only; 0 takes all.
        retune: Find the weights again on the bundled dev set first.
        wav: Transcribe this recording instead. Best effort: the bundled models know synthetic voices only.
        threads: Threads of each operation; one is fastest for networks this small. 0 takes one for each core.
        processes: Systems decoded side by side, each in a process. 0 takes one for each core, fewer with more threads.
        bundle: Another bundle than the package's own, made by `ilme study bundle`.
    """
    import time

    from ilme.commands.progress import named_progress, say
    from ilme.evaluation.tables import rich_table
    from ilme.workflows.bundle import FOLDER, read_bundle
    from ilme.workflows.demo import DemoOptions, examples, model_tables, run_demo, transcribe_file

    options = DemoOptions(model, method, beam, utterances, retune, threads, processes)
    contents = read_bundle(bundle or FOLDER)
    if wav is not None:
        print("The bundled models have heard synthetic voices only: expect errors in a real recording.")
        for name, text in transcribe_file(wav, out, options, contents):
            print(f"{name:<10} {text}")
        return
    began = time.perf_counter()
    with named_progress() as bar:

        def announce(name: str) -> Callable[[int, int], None]:
            print(f"decoding with {name}", flush=True)
            return bar(name)

        results = run_demo(out, options, contents, announce)
    for table in model_tables(results):
        say(rich_table(table))
    for found in examples(results):
        lines = (f"said  {found.reference}", f"SF    {found.fused}", f"ILME  {found.ilme}")
        print("\n  ".join((f"{found.model}  {found.id}", *lines)))
    seconds = time.perf_counter() - began
    print(f"{out / 'report.html'}, {out / 'results.json'}: {len(results.references)} utterances in {seconds:.0f} s")
