"""`ilme report`: one HTML file that shows everything."""

from __future__ import annotations

from pathlib import Path

from ilme.commands.targets import spare_inputs


def report(
    results: list[Path],
    out: Path = Path("report.html"),
    curves: list[Path] | None = None,
    title: str = "",
    audio: int = 40,
    transcripts: int = 400,
) -> None:
    """Write one self-contained HTML file: WER with intervals, heat maps, transcripts with audio, scores label by label.

    Example:
        ilme report out/*/results.json --out report.html

    Args:
        results: results.json files of `ilme evaluate` or `ilme compare`; those of one test set are shown together.
        out: The HTML file.
        curves: metrics.jsonl of training runs, or their folders: internal-LM perplexity is drawn from them.
        title: Shown at the top.
        audio: Embed the recordings of at most this many utterances.
        transcripts: Show at most this many utterances.
    """
    from ilme.report.build import ReportOptions, write_report

    spare_inputs(out, [*results, *(curves or [])])
    options = ReportOptions(title=title, audio=audio, transcripts=transcripts)
    size = write_report(out, results, curves or [], options)
    print(f"{out} ({size / 1e6:.1f} MB)")
