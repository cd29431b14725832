"""Further networks beside the study's RNN-T and AED: HAT, internal-LM training, an LM inside the decoder; one table.

MODEL-NAME/model.safetensors        the network, trained as its model is but for what its plan says
MODEL-NAME/SETTING.safetensors      the same with the LM of a setting inside, where the plan says that it is replaced
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ilme.errors import BadInputError
from ilme.evaluation.results import Results
from ilme.evaluation.significance import compare
from ilme.evaluation.tables import Table, p_value
from ilme.models.checkpoint import load_checkpoint
from ilme.runtime.configs import config_to_json, overlaid
from ilme.study.config import NetworkPlan, StudyConfig, SystemPlan
from ilme.study.networks import speech_inputs, train_network
from ilme.study.runner import Stage, Study
from ilme.study.training import network_config, plan_inputs, whole_journal
from ilme.train.optimiser import start_from
from ilme.train.options import WarmStart
from ilme.workflows.replace_lm import replace_inner_lm

__all__ = ["plan_of", "system_rows", "system_stages", "systems_table"]

SETTING_LMS = {"cross": "target", "intra": "mixed"}


def system_stages(config: StudyConfig) -> list[Stage]:
    """The training of each; one that starts from a network of the study comes after it."""
    if config.systems and config.recordings.active:
        raise BadInputError("systems are for studies of synthetic speech: leave systems or recordings out")
    if missing := [s.name for s in config.systems if s.model not in config.decoding.models]:
        raise BadInputError(f"{missing[0]} is compared with a model that decoding.models leaves out")
    stages = []
    for system in config.systems:
        plan = plan_of(config, system)
        before = {system.model if system.from_trained else "", plan.encoder_from} - {""}
        lms = {system.lm, *(SETTING_LMS[s] for s in config.decoding.settings if system.replaced)} - {"", "source"}
        about = {k: v for k, v in asdict(system).items() if k in ("lm", "replaced", "from_trained")}
        stages.append(
            Stage(
                system.stage,
                lambda study, system=system, plan=plan: _train(study, config, system, plan),  # type: ignore[misc]
                ("text", "speech", "tokenizer", "lm-source", *(f"lm-{n}" for n in sorted(lms)), *sorted(before)),
                {"plan": plan_inputs(plan), **speech_inputs(config), **about},
                resumes=True,
            )
        )
    return stages


def plan_of(config: StudyConfig, system: SystemPlan) -> NetworkPlan:
    """The plan of its model with what differs laid over it."""
    base: NetworkPlan = getattr(config, system.model)
    changes = dict(system.network)
    if system.lm:
        shape = network_config("lm", config.source_lm if system.lm == "source" else config.lm)
        changes["fusion"] = {"method": system.fusion, "lm": config_to_json(shape)}
    return replace(
        base,
        network=overlaid(base.network, changes),
        loop=overlaid(base.loop, system.loop),
        optimiser=overlaid(base.optimiser, system.optimiser),
        loss=overlaid(base.loss, system.loss),
    )


def _train(study: Study, config: StudyConfig, system: SystemPlan, plan: NetworkPlan) -> dict[str, Any]:
    def prepare(network: Any) -> None:
        if system.from_trained:
            trained = study.folder(system.model) / "model.safetensors"
            held = load_checkpoint(trained, system.model).model.state_dict()
            start_from(network, WarmStart(str(trained), tuple(name for name in network.state_dict() if name in held)))
        if system.lm:
            network.put_lm(load_checkpoint(study.folder(f"lm-{system.lm}"), "lm").model)

    facts = train_network(study, config, system.stage, system.model, plan, prepare)
    if system.replaced:
        folder = study.folder(system.stage)
        for setting in config.decoding.settings:
            lm = study.folder(f"lm-{SETTING_LMS[setting]}")
            replace_inner_lm(folder, lm, folder / f"{setting}.safetensors")
    return facts


def system_rows(study: Study, config: StudyConfig, results: Mapping[str, Results]) -> list[dict[str, Any]]:
    """One row for each network and method, in each setting its WER and p against ILME of the plain network."""
    rows = []
    for network in sorted(config.networks, key=lambda n: config.decoding.models.index(config.system(n).model)):
        system = config.system(network)
        ppl = [row["ilm_ppl"] for row in whole_journal(study.folder(network)) if "ilm_ppl" in row]
        for method in system.methods:
            row: dict[str, Any] = {
                "model": system.model,
                "system": method if network in config.decoding.models else _title(system, method),
                "training_minutes": round(_training_seconds(study, config, network) / 60, 2),
                "ilm_ppl": round(ppl[-1], 1) if ppl else None,
            }
            for setting, found in results.items():
                name, rival = f"{network} {method}", f"{system.model} ILME"
                row[f"{setting}_wer"] = round(found.measurements[name].rate, 2)
                row[f"{setting}_parameters"] = next(s.parameters for s in found.systems if s.name == name)
                if rival in found.measurements and name != rival:
                    pair = compare(name, found.measurements[name], rival, found.measurements[rival])
                    row[f"{setting}_p"] = pair.p_bootstrap
            rows.append(row)
    return rows


def _title(system: SystemPlan, method: str) -> str:
    return system.name if method == "BS" and system.lm else f"{system.name} + {method}"


def _training_seconds(study: Study, config: StudyConfig, network: str) -> float:
    """Of the network and of those that it starts from; LMs are not counted."""
    system = config.system(network)
    seconds = float(study.facts(network).get("training_seconds", 0.0))
    if system.from_trained:
        return seconds + _training_seconds(study, config, system.model)
    first = getattr(config, system.model).encoder_from
    return seconds + (_training_seconds(study, config, first) if first else 0.0)


def systems_table(rows: list[dict[str, Any]]) -> Table:
    """WER across domains and within, parameters at run time, training, p against ILME of the same kind of network."""
    columns = ("Model", "System", "WER across", "p", "WER within", "p", "Params (M)", "Training (min)", "ILM ppl")
    cells = tuple(
        (
            row["model"],
            row["system"],
            _wer(row, "cross"),
            _p(row, "cross"),
            _wer(row, "intra"),
            _p(row, "intra"),
            f"{row['cross_parameters'] / 1e6:.1f}" if row.get("cross_parameters") else "–",
            f"{row['training_minutes']:.1f}",
            "–" if row["ilm_ppl"] is None else f"{row['ilm_ppl']:.1f}",
        )
        for row in rows
    )
    kinds = [row["model"] for row in rows]
    groups = tuple(i for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind)
    note = (
        "p: paired bootstrap against ILME of the same kind of network, two-sided. Training: of the network and of what "
        "it starts from, LMs not counted. ILM ppl: perplexity per token of the internal LM on source text at the end."
    )
    return Table("Systems", columns, cells, groups, (), note)


def _wer(row: dict[str, Any], setting: str) -> str:
    return f"{row[f'{setting}_wer']:.2f}" if f"{setting}_wer" in row else "–"


def _p(row: dict[str, Any], setting: str) -> str:
    return p_value(row[f"{setting}_p"]) if f"{setting}_p" in row else "–"
