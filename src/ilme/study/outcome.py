"""The stage `tables`: one results file for each setting, the perplexity curves, and everything a reader asks for.

cross.json, intra.json    results of both models (`ilme report` and the docs read them)
perplexity.json, .svg     internal-LM perplexity against hours of training speech (the paper's Figure 1)
tables.md                 the four tables, and that of the systems
systems.json              its rows, where the study has further systems
study.json                config, facts of every stage, versions, seed, commit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ilme.evaluation.results import Results, merge_results
from ilme.evaluation.tables import Table, main_table, render
from ilme.runtime.files import write_json, write_text
from ilme.study.claims import check_claims, check_health
from ilme.study.config import StudyConfig
from ilme.study.language import CE, lm_names
from ilme.study.provenance import commit, versions
from ilme.study.runner import Stage, Study
from ilme.study.shards import list_shards
from ilme.study.synthesis import speaker_of
from ilme.study.systems import system_rows, systems_table
from ilme.study.training import whole_journal
from ilme.train.options import LmOptions

__all__ = ["draw_perplexity", "outcome_stage", "perplexity_curves"]

TITLES = {"cross": "Cross-domain", "intra": "Intra-domain", "calls": "Cross-domain, calls"} | {
    f"{name}-ce": f"{title}, LMs trained with cross-entropy"
    for name, title in (("cross", "Cross-domain"), ("intra", "Intra-domain"))
}


def outcome_stage(config: StudyConfig) -> Stage:
    plan = config.decoding
    tests = tuple(f"test-{model}-{setting}" for setting in plan.settings for model in config.networks)
    needs = (
        "text",
        "speech",
        *(() if config.recordings.active else ("sets",)),
        "tokenizer",
        *(f"lm-{name}" for name in lm_names(config)),
        "ngrams",
        *config.networks,
        *tests,
    )
    return Stage("tables", lambda study: _tables(study, config), needs, {"name": config.name})


def _tables(study: Study, config: StudyConfig) -> dict[str, Any]:
    folder, plan = study.folder("tables"), config.decoding
    merged: dict[str, Results] = {}
    blocks = []
    for setting in plan.settings:
        parts = [Results.load(study.folder(f"test-{m}-{setting}") / "results.json") for m in config.networks]
        merged[setting] = merge_results(parts, f"{config.name}, {setting}-domain")
        merged[setting].save(folder / f"{setting}.json")
        blocks.append(f"## {TITLES[setting]}\n\n{render(main_table(merged[setting]), 'markdown')}")
    curves = perplexity_curves(study, plan.models)
    write_json(folder / "perplexity.json", curves)
    draw_perplexity(curves, folder / "perplexity.svg")
    if config.systems:
        rows = system_rows(study, config, merged)
        write_json(folder / "systems.json", rows)
        blocks.append(f"## Systems\n\n{render(systems_table(rows), 'markdown')}")
    heard = voices_heard(study, config, merged)
    blocks.append(f"## LMs\n\n{render(lm_table(study, config), 'markdown')}")
    write_text(folder / "tables.md", "\n".join([*(f"{line}\n" for line in heard.values()), *blocks]))
    claims = check_claims(merged, curves)
    about = {
        "name": config.name,
        "config": config.to_json(),
        "stages": {name: study.facts(name) for name in study.stages if name != "tables"},
        "voices": heard,
        "health": [asdict(claim) for claim in check_health(merged)],
        "claims": [asdict(claim) for claim in claims],
        "versions": versions(study.device),
        "commit": commit(),
    }
    write_json(folder / "study.json", about)
    return {f"{setting}_systems": len(results.systems) for setting, results in merged.items()} | {
        "claims_held": sum(claim.holds == "yes" for claim in claims),
        "claims_within_chance": sum(claim.holds == "within chance" for claim in claims),
        "claims_checked": len(claims),
    }


def lm_table(study: Study, config: StudyConfig) -> Table:
    """Perplexities of every LM, by the loss it was trained with: the paper's estimate, cross-entropy beside it."""
    rows = []
    for name in lm_names(config):
        facts, plan = study.facts(f"lm-{name}"), config.source_lm if name.startswith("source") else config.lm
        loss = "ce" if name.endswith(CE) else str(plan.loss.get("loss", LmOptions.loss))
        domains = [key.removesuffix("_ppl_word") for key in facts if key.endswith("_ppl_word")]
        told = "; ".join(f"{d} {facts[f'{d}_ppl_token']:.1f}, {facts[f'{d}_ppl_word']:.1f} a word" for d in domains)
        rows.append((f"lm-{name}", loss, told, f"{facts['training_seconds']:.0f}"))
    return Table("LMs", ("LM", "Loss", "Perplexity a token", "Training (s)"), tuple(rows))


def voices_heard(study: Study, config: StudyConfig, results: Mapping[str, Results]) -> dict[str, str]:
    """By setting: how many voices the test set has, and how many of them training has heard."""
    if config.recordings.active:
        return {}
    trained = set(map(speaker_of, list_shards(study.folder("speech") / "train").voices))
    said = {}
    for setting, found in results.items():
        voices = {speaker_of(reference.speaker) for reference in found.references.values()}
        said[setting] = (
            f"{TITLES[setting]}: {len(voices)} voices speak the test set, of which training has heard "
            f"{len(voices & trained)}; intervals and tests resample voices."
        )
    return said


def perplexity_curves(study: Study, models: tuple[str, ...]) -> dict[str, Any]:
    """Points (hours of speech heard, perplexity per token) of each model's internal LM, and the source LM's figures.

    A model that went on from an earlier run's has that run's points before its own.
    """
    curves: dict[str, Any] = {"unit": "token", "models": {}, "source_lm": {}}
    facts = study.facts("lm-source")
    curves["source_lm"] = {domain: facts[f"{domain}_ppl_token"] for domain in ("source", "target")}
    for model in models:
        rows = [row for row in whole_journal(study.folder(model)) if "ilm_ppl" in row]
        curves["models"][model] = {
            "hours": [row["hours"] for row in rows],
            "steps": [row["step"] for row in rows],
            "source": [round(row["ilm_ppl"], 3) for row in rows],
            "target": [round(row["ilm_ppl_target"], 3) for row in rows],
        }
    return curves


def draw_perplexity(curves: dict[str, Any], picture: Path) -> None:
    """The paper's Figure 1: one panel for each model, the source LM as a dashed line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = {"rnnt": "RNN-T", "aed": "AED"}
    models = curves["models"]
    figure, axes = pyplot.subplots(1, len(models), figsize=(5 * len(models), 3.6), squeeze=False)
    for axis, (model, curve) in zip(axes[0], models.items(), strict=True):
        axis.plot(curve["hours"], curve["source"], marker=".", label="internal LM, source text")
        axis.plot(curve["hours"], curve["target"], marker=".", label="internal LM, target text")
        axis.axhline(curves["source_lm"]["source"], linestyle="--", color="grey", label="source LM, source text")
        axis.set(title=titles.get(model, model), xlabel="hours of speech heard", ylabel="perplexity per token")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.tight_layout()
    with matplotlib.rc_context({"svg.hashsalt": "ilme"}):
        figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)
    pyplot.close(figure)
