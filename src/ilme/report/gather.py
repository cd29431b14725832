"""What the report shows, as plain data: everything is counted here, the browser only draws."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ilme.errors import BadInputError, IlmeError
from ilme.evaluation.analysis import word_changes
from ilme.evaluation.metrics import ErrorCounts, Measurement
from ilme.evaluation.results import Results, System
from ilme.evaluation.tables import Table, comparison_table, main_table, p_value
from ilme.evaluation.tuning_result import TuningResult
from ilme.report.audio import data_uri
from ilme.report.opening import as_edits, recommended

__all__ = ["gather_curves", "gather_set"]

WORDS_LISTED = 10


def gather_set(results: Results, *, transcripts: int, audio: int) -> dict[str, Any]:
    """All that is shown of one test set."""
    rows = results.to_json()["results"]
    systems = [
        {**row, "name": s.name, "wer": f"{results.measurements[s.name].rate:.2f}"}
        for row, s in zip(rows, results.systems, strict=True)
    ]
    return {
        "name": results.name,
        "lede": _lede(results),
        "oneModel": len({s.model for s in results.systems}) == 1,
        "systems": systems,
        "headlines": _headlines(results),
        "table": _table(main_table(results)),
        "pairs": _table(comparison_table(results)),
        "tunings": [{"name": s.name, "tuning": _tuning(s.tuning)} for s in results.systems if s.tuning],
        "lengths": _lengths(results),
        "speakers": _speakers(results),
        "changes": _changes(results),
        "change": _first_change(results),
        "total": len(results.references),
        "utterances": _utterances(results, transcripts, audio),
        "stories": _stories(results),
    }


def _lede(results: Results) -> str:
    seconds = results.audio_seconds
    spoken = f", {seconds / 3600:.1f} hours" if seconds >= 3600 else f", {seconds / 60:.1f} minutes" if seconds else ""
    speakers = len({r.speaker for r in results.references.values() if r.speaker})
    by = f" by {speakers} speakers" if speakers > 1 else ""
    return (
        f"{results.name}: {len(results.references):,} utterances{spoken}{by}. Texts normalised: {results.normaliser}."
    )


def _headlines(results: Results) -> list[dict[str, Any]]:
    """For each model: the recommended method against no LM and against Shallow Fusion, and who is best if it is not.

    Where there is no ILME, the best method against no LM and against the one before it.
    """
    out = []
    for model in dict.fromkeys(s.model for s in results.systems):
        ranked = sorted(
            (s for s in results.systems if s.model == model), key=lambda s: results.measurements[s.name].rate
        )
        baseline, chosen = results.baseline(model), recommended(results, model) or ranked[0]
        if baseline is None or chosen is baseline:
            continue
        rest = [s for s in ranked if s not in (chosen, baseline)]
        second = next((s for s in rest if s.method == "SF"), rest[0] if rest else None)
        best = ranked[0] if results.measurements[ranked[0].name].rate < results.measurements[chosen.name].rate else None
        out += [_headline(results, chosen, against, best) for against in (baseline, second) if against is not None]
    return out


def _headline(results: Results, system: System, against: System, best: System | None) -> dict[str, Any]:
    now, before = (results.measurements[s.name].rate for s in (system, against))
    pair = results.comparison(system.name, against.name) or results.comparison(against.name, system.name)
    sure = "" if pair is None else f"paired bootstrap p {_equals(pair.p_bootstrap)}"
    if pair is not None and pair.p_mapsswe is not None:
        sure += f", MAPSSWE p {_equals(pair.p_mapsswe)}"
    return {
        "of": f"{system.model}: {system.method} against {against.method}",
        "relative": 100 * (now - before) / before if before else 0.0,
        "from": f"{before:.2f}",
        "to": f"{now:.2f}",
        "sure": sure,
        "best": "" if best is None else f"best here: {best.method}, {results.measurements[best.name].rate:.2f}",
    }


def _equals(p: float) -> str:
    written = p_value(p)
    return f"< {written[1:]}" if written.startswith("<") else f"= {written}"


def _table(table: Table) -> dict[str, Any]:
    return {
        "columns": table.columns,
        "rows": table.rows,
        "groups": table.groups,
        "best": table.best,
        "note": table.note,
    }


def _tuning(tuning: TuningResult) -> dict[str, Any]:
    w, s = tuning.weights, tuning.stability
    caption = f"Chosen: λ {w.lm:.3f}, μ {w.subtracted:.3f}"
    caption += f", length reward {w.length:.3f}" if w.length else ""
    caption += f", background {w.background:g}" if w.background else ""
    caption += f"; dev WER {tuning.dev.rate:.2f} after {tuning.decodes} decodes."
    if s is not None:
        caption += (
            f" Resampling {s.groups} speakers: λ {s.low.lm:.2f}–{s.high.lm:.2f}, μ {s.low.subtracted:.2f}–"
            f"{s.high.subtracted:.2f}; dev WER flatters by about {s.optimism:.2f} points."
        )
    caption += "".join(f" {hint[0].upper()}{hint[1:]}." for hint in tuning.hints)
    return {**tuning.to_json(), "caption": caption}


def _lengths(results: Results) -> list[dict[str, Any]]:
    groups = [results.measurements[s.name].by_length() for s in results.systems]
    names = [n for n, counts in groups[0].items() if counts.words]
    return [{"name": n, "words": groups[0][n].words, "rates": [round(g[n].rate, 4) for g in groups]} for n in names]


def _speakers(results: Results) -> list[dict[str, Any]]:
    """For each model the WER of every speaker, hardest first for its system without fusion; nothing for one speaker."""
    said = Counter(r.speaker for r in results.references.values())
    if len(said) < 2:
        return []
    panels = []
    for model in dict.fromkeys(s.model for s in results.systems):
        places = [k for k, s in enumerate(results.systems) if s.model == model]
        groups = [results.measurements[results.systems[k].name].by_speaker() for k in places]
        baseline = results.baseline(model)
        first = next((n for n, k in enumerate(places) if results.systems[k] is baseline), 0)
        spoke = [name for name, counts in groups[first].items() if counts.words]
        ranked = sorted(spoke, key=lambda name: (-groups[first][name].rate, name))
        panels.append(
            {
                "model": model,
                "systems": places,
                "total": len(ranked),
                "words": sum(groups[first][name].words for name in ranked),
                "rows": [
                    {
                        "name": name or "unknown",
                        "words": groups[first][name].words,
                        "utterances": said[name],
                        "rates": [round(g[name].rate, 4) for g in groups],
                    }
                    for name in ranked
                ],
                "caption": _speaker_caption([results.systems[k].method for k in places], groups, first),
            }
        )
    return panels


def _speaker_caption(methods: Sequence[str], groups: Sequence[Mapping[str, ErrorCounts]], first: int) -> str:
    """For how many speakers the best system makes fewer errors than the first, and for how many more."""
    totals = [sum(counts.errors for counts in group.values()) for group in groups]
    best = min(range(len(groups)), key=lambda n: totals[n])
    if best == first:
        return ""
    pairs = [(groups[best][name].errors, counts.errors) for name, counts in groups[first].items()]
    fewer, more = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    claim = f"{methods[best]} makes fewer errors than {methods[first]} for"
    if fewer == len(pairs):
        return f"{claim} every one of {fewer} speakers."
    return f"{claim} {fewer} of {len(pairs)} speakers, more for {more}."


def _changes(results: Results) -> list[dict[str, Any]]:
    places = {s.name: k for k, s in enumerate(results.systems)}
    out = []
    for pair in results.comparisons:
        changes = word_changes(results.measurements[pair.b], results.measurements[pair.a])
        out.append(
            {
                "name": f"{pair.a} against {pair.b}",
                "a": places[pair.a],
                "b": places[pair.b],
                "fixed": _most(changes.fixed),
                "broken": _most(changes.broken),
                "fixedTotal": changes.fixed.total(),
                "brokenTotal": changes.broken.total(),
            }
        )
    return out


def _first_change(results: Results) -> int:
    """The pair that is shown at first: the recommended method of the first model against no LM, else the last."""
    pairs = [(pair.a, pair.b) for pair in results.comparisons]
    model = results.systems[0].model
    after, before = recommended(results, model), results.baseline(model)
    wanted = (after.name, before.name) if after is not None and before is not None else None
    return pairs.index(wanted) if wanted in pairs else len(pairs) - 1


def _most(words: Counter[str]) -> list[tuple[str, int]]:
    return sorted(words.items(), key=lambda item: (-item[1], item[0]))[:WORDS_LISTED]


def _utterances(results: Results, transcripts: int, audio: int) -> list[dict[str, Any]]:
    """The utterances in which systems differ first, then those with errors, then the rest."""
    measured = [results.measurements[s.name] for s in results.systems]
    order = sorted(range(len(results.references)), key=lambda k: (_interest(measured, k), k))[:transcripts]
    ids = list(results.references)
    rows = []
    for k in sorted(order) if len(order) == len(ids) else order:
        reference = results.references[ids[k]]
        texts = [m.utterances[k] for m in measured]
        rows.append(
            {
                "id": ids[k],
                "speaker": reference.speaker,
                "seconds": reference.seconds,
                "reference": texts[0].reference,
                "edits": [as_edits(t.reference, t.hypothesis) for t in texts],
                "audio": None,
            }
        )
    _attach_audio(results, [rows[k] for k in sorted(range(len(rows)), key=lambda k: _loudness(rows[k]))], audio)
    return rows


def _interest(measured: Sequence[Measurement], k: int) -> int:
    texts = {m.utterances[k].hypothesis for m in measured}
    if len(texts) > 1:
        return 0
    return 1 if any(m.utterances[k].counts.errors for m in measured) else 2


def _loudness(row: Mapping[str, Any]) -> int:
    """Utterances whose systems differ most are the ones to hear."""
    wrong = [sum(not isinstance(e, str) for e in edits) for edits in row["edits"]]
    return min(wrong) - max(wrong)


def _attach_audio(results: Results, rows: Iterable[dict[str, Any]], most: int) -> None:
    for row in rows:
        path = results.references[row["id"]].audio
        if most <= 0:
            return
        if not path or not os.path.lexists(path):  # the report may be written where the recordings are not
            continue
        try:
            row["audio"] = data_uri(Path(path))
            most -= 1
        except (IlmeError, OSError, RuntimeError) as error:  # libsndfile's are RuntimeErrors
            row["noAudio"] = str(error)


def _stories(results: Results) -> list[dict[str, Any]]:
    """The explained utterances of every system, as `ilme.evaluation.contributions.explain` wrote them.

    Systems that weigh more than one score come first: of the others there is little to explain.
    """
    return [
        {"system": s.name, "id": i, "reference": results.references[i].text, "story": story}
        for s in sorted(results.systems, key=lambda s: not (s.weights.lm or s.weights.subtracted))
        for i, story in s.details.items()
        if i in results.references
    ]


def gather_curves(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], str]:
    """Internal-LM perplexity of each training run, and the source LM's; over hours of audio if they are written."""
    series: list[dict[str, Any]] = []
    hours = False
    for given in paths:
        path = given / "metrics.jsonl" if given.is_dir() else given
        if not path.is_file():
            raise BadInputError(f"there is no metrics.jsonl at {given}; `ilme train` writes one in its folder")
        rows = [row for row in _lines(path) if "ilm_ppl" in row]
        if not rows:
            raise BadInputError(f"{path} has no internal-LM perplexity (ilm_ppl)")
        by = "hours" if all("hours" in row for row in rows) and any(row["hours"] for row in rows) else "step"
        hours = hours or by == "hours"
        name = path.parent.name or path.stem
        series.append({"name": f"{name}, internal LM", "points": [_point(path, row, by, "ilm_ppl") for row in rows]})
        source = [_point(path, row, by, "source_lm_ppl") for row in rows if row.get("source_lm_ppl")]
        if source and source not in [s["points"] for s in series]:
            series.append({"name": f"{name}, source LM", "points": source, "dash": "5 4"})
    return series, "hours of training speech" if hours else "training steps"


def _point(path: Path, row: Mapping[str, Any], *keys: str) -> list[float]:
    """Numbers that can be drawn."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadInputError(f"{path}: {key} must be a finite number in every line with ilm_ppl, not {value!r:.60}")
    return [row[key] for key in keys]


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last one that was cut off is passed over."""
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text if text.endswith("\n") else text[: text.rfind("\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInputError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadInputError(f"{path}, line {number} is not a JSON object; `ilme train` writes metrics.jsonl")
        rows.append(row)
    return rows
