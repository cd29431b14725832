"""`ilme compare`: results of several systems in one table, with paired tests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ilme.commands.targets import spare_inputs


def compare(
    results: list[Path],
    out: Path | None = None,
    name: str = "",
    style: Literal["terminal", "markdown", "latex", "csv", "json"] = "terminal",
    words: int = 8,
    source: Path | None = None,
    target: Path | None = None,
) -> None:
    """Put systems side by side: WER with intervals, every pair tested, words fixed and broken.

    Example:
        ilme compare out/bs/results.json out/sf/results.json out/ilme/results.json --out out/all.json

    Args:
        results: results.json files of `ilme evaluate`, on the same test set.
        out: Also write all systems into one results file.
        name: Name of the test set in tables.
        style: How tables are printed; json is one object with each table under its title.
        words: How many words fixed and broken to list for each pair; 0 lists none.
        source: Text of the source domain, one sentence a line: recall of words by how often it has them.
        target: Text of the target domain: with a source, recall of the words that mark the target.
    """
    from ilme.errors import UsageError
    from ilme.evaluation.analysis import word_changes
    from ilme.evaluation.results import Results, merge_results
    from ilme.evaluation.tables import comparison_table, main_table, recall_table, render_all

    if words < 0:
        raise UsageError(f"--words must not be negative, got {words}; 0 lists none")
    if out is not None:
        spare_inputs(out, [*results, *(path for path in (source, target) if path)])
    merged = merge_results([Results.load(path) for path in results], name)
    if out is not None:
        merged.save(out)
    tables = [main_table(merged)]
    if merged.comparisons:
        tables.append(comparison_table(merged))
    if source is not None:
        tables.append(recall_table(merged, source, target))
    print(render_all(tables, style))
    if not words or style in ("csv", "json", "latex"):
        return
    for pair in merged.comparisons:
        changes = word_changes(merged.measurements[pair.b], merged.measurements[pair.a])
        for title, counter in (("fixed", changes.fixed), ("broken", changes.broken)):
            listed = ", ".join(f"{word} ({n})" if n > 1 else word for word, n in counter.most_common(words))
            print(f"{pair.a} against {pair.b}, {title} {counter.total()}: {listed or '–'}")
