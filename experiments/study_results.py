"""Gathers what a study has finished into one results file: tables, significance, claims, training, perplexities.

python -m experiments.study_results configs/study/paper.yaml out/study/paper docs/results/data/study-paper.json \
    --command "ilme study configs/study/paper.yaml" --what "One H200, …"

Unlike the study's own stage `tables` it does not wait for every test: what is not done is left out. What an existing
file has of other models (`--models aed` where it has an RNN-T's rows) is kept beside it, and so are keys that are not
known here, such as a description.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ilme.evaluation.metrics import ErrorCounts
from ilme.evaluation.results import Results, merge_results
from ilme.evaluation.significance import compare
from ilme.evaluation.tables import main_table, render
from ilme.evaluation.tuning_result import TuningResult
from ilme.study.claims import check_claims, check_health
from ilme.study.config import StudyConfig, read_config
from ilme.study.outcome import perplexity_curves
from ilme.study.stages import build_study
from ilme.study.training import whole_journal

PAIRS = [(a, b) for a in ("ILME", "ILME-learned") for b in ("BS", "SF", "DR", "LODR")]
PAIRS += [("ILME-learned", "ILME"), ("SF", "BS"), ("DR", "SF")]


def tested(folder: Path, config: StudyConfig, models: list[str]) -> dict[str, Results]:
    """Results of each setting, of those models whose test is done."""
    found = {}
    for setting in config.decoding.settings:
        files = [folder / f"test-{model}-{setting}" / "results.json" for model in models]
        parts = [Results.load(file) for file in files if file.is_file()]
        if parts:
            found[setting] = merge_results(parts, f"{config.name}, {setting}-domain")
    return found


def rows(results: Results) -> list[dict[str, Any]]:
    table = []
    for system in results.systems:
        measured, interval = results.measurements[system.name].total, results.intervals[system.name]
        base = results.measurements[f"{system.model} BS"].total.rate
        table.append(
            {
                "system": system.name,
                "λ_T": round(system.weights.lm, 3),
                "μ": round(system.weights.subtracted, 3),
                "β": round(system.weights.length, 3),
                "ε": system.weights.background,
                "parameters (M)": round(system.parameters / 1e6, 2),
                "dev WER": _rounded(system.dev_wer, 2),
                "test WER": round(measured.rate, 2),
                "95 %": [round(interval.low, 2), round(interval.high, 2)],
                "substitutions": measured.substitutions,
                "deletions": measured.deletions,
                "insertions": measured.insertions,
                "against BS, %": round(100 * (measured.rate / base - 1), 1),
            }
        )
    return table


def _rounded(value: float | None, digits: int) -> float | None:
    """What was not measured stays unmeasured."""
    return None if value is None else round(value, digits)


def pairs(results: Results, models: list[str]) -> list[dict[str, Any]]:
    table = []
    for model in models:
        for a, b in PAIRS:
            first, second = (results.measurements.get(f"{model} {method}") for method in (a, b))
            if first is None or second is None:
                continue
            found = compare(a, first, b, second)
            relative = round(100 * (first.total.rate / second.total.rate - 1), 1)
            p = {"p": round(found.p_bootstrap, 4), "p MAPSSWE": _rounded(found.p_mapsswe, 4)}
            table.append({"pair": f"{model} {a} against {b}", "relative, %": relative, **p})
    return table


def by_speaker(results: Results) -> dict[str, dict[str, float]]:
    """Test WER of each system by who speaks."""
    return {
        name: {speaker: round(counts.rate, 1) for speaker, counts in measured.by_speaker().items()}
        for name, measured in results.measurements.items()
    }


def tuned(
    folder: Path, config: StudyConfig, models: list[str], look: Callable[[ErrorCounts], float]
) -> dict[str, dict[str, list[float]]]:
    """What `look` sees in the dev errors of each decode of each method, at the beam of the tuning."""
    found: dict[str, dict[str, list[float]]] = {}
    for model in models:
        for setting in config.decoding.settings:
            files = {m: folder / f"tune-{model}-{setting}" / f"{m}.json" for m in config.decoding.methods}
            results = {m: TuningResult.load(f) for m, f in files.items() if f.is_file()}
            if results:
                seen = {m: [look(step.counts) for step in result.steps] for m, result in results.items()}
                found[f"{model} {setting}"] = seen
    return found


def held_out(folder: Path) -> list[list[float]]:
    """[step, hours, loss] of each look at the held-out speech."""
    looks = [row for row in whole_journal(folder) if "held_out_loss" in row]
    return [[row["step"], round(row["hours"], 1), round(row["held_out_loss"], 4)] for row in looks]


def gathered(config: StudyConfig, folder: Path, models: list[str], kept: dict[str, Any]) -> dict[str, Any]:
    """What the folder has of these models, beside what `kept` has of others."""
    study = build_study(config, folder)
    facts = {name: study.facts(name) for name in study.stages if (folder / name / "done.json").is_file()}
    made = {name: facts[name].pop("made_with", {}) for name in facts}
    results = tested(folder, config, models)
    curves = perplexity_curves(study, tuple(models))
    out: dict[str, Any] = {
        "commit": {model: made[model].get("commit") for model in models},
        "seed": config.seed,
        "versions": made[models[-1]],
        "config": config.to_json(),
        "training": {model: facts[model] for model in models},
        "lm": {name.removeprefix("lm-"): facts[name] for name in facts if name.startswith("lm-")},
        "ilm": {model: facts[f"ilm-{model}"] for model in models if f"ilm-{model}" in facts},
        "held_out_loss": {model: held_out(folder / model) for model in models},
        "perplexity": curves,
        "dev WER while tuning": tuned(folder, config, models, lambda errors: round(errors.rate, 2)),
        "dev insertions while tuning": tuned(folder, config, models, lambda errors: errors.insertions),
    }
    curves["models"] = of_both(kept.get("perplexity", {}).get("models", {}), curves["models"], models)
    for name in ("commit", "training", "ilm", "held_out_loss", "dev WER while tuning", "dev insertions while tuning"):
        out[name] = of_both(kept.get(name, {}), out[name], models)
    for setting, found in results.items():
        words = next(iter(found.measurements.values())).total.words
        for name, table in ((setting, rows(found)), (f"{setting} pairs", pairs(found, models))):
            out[name] = [*(row for row in kept.get(name, []) if _model(next(iter(row.values()))) not in models), *table]
        out[f"{setting} by speaker"] = kept.get(f"{setting} by speaker", {}) | by_speaker(found)
        out[f"{setting} test"] = {"utterances": len(found.references), "words": words}
    for name, judged in (("health", check_health(results)), ("claims", check_claims(results, curves))):
        now = [asdict(claim) for claim in judged]
        names = {claim["name"] for claim in now}
        out[name] = [*(claim for claim in kept.get(name, []) if claim["name"] not in names), *now]
    return out


def of_both(kept: Any, found: dict[str, Any], models: list[str]) -> dict[str, Any]:
    """Entries by model, or by model and setting: those of `found`, after those of `kept` that are of other models.

    Older files have one commit for all models: a text, which is not kept.
    """
    others = kept.items() if isinstance(kept, dict) else ()
    return {name: value for name, value in others if _model(name) not in models} | found


def _model(name: str) -> str:
    """Of `aed cross`, `aed ILME` or `aed ILME against SF`."""
    return name.split()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["rnnt", "aed"])
    parser.add_argument("--command", required=True, help="with which the study was run")
    parser.add_argument("--what", default="", help="a description, in place of the file's own")
    args = parser.parse_args()
    config = read_config(args.plan)
    kept = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    named = {"what": args.what or kept.get("what", ""), "command": args.command}
    found = kept | named | gathered(config, args.folder, args.models, kept)
    args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for setting, results in tested(args.folder, config, args.models).items():
        print(f"{setting}\n\n{render(main_table(results), 'markdown')}")


if __name__ == "__main__":
    main()
