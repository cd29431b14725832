"""The stages `ilm-rnnt` and `ilm-aed`: internal LMs learned from the source transcripts, for the method ILME-learned.

stand-in.safetensors      what takes the place of the acoustics, see `ilme.ilm.learned_vector`
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ilme.ilm import Calibration, internal_lm
from ilme.ilm.files import save_internal_lm
from ilme.ilm.learned_vector import LearnedVectorOptions
from ilme.lm.perplexity import perplexity
from ilme.models.checkpoint import load_checkpoint
from ilme.study.config import StudyConfig
from ilme.study.language import MEASURED, transcripts
from ilme.study.runner import Stage, Study
from ilme.study.texts import read_lines

__all__ = ["LEARNED", "internal_stages", "learned_file"]

LEARNED = "ILME-learned"


def internal_stages(config: StudyConfig) -> list[Stage]:
    """One for each network that recognises with the method."""
    options = LearnedVectorOptions(seed=config.seed)
    return [
        Stage(
            f"ilm-{model}",
            lambda study, model=model: _learn(study, model, config.system(model).model, options),  # type: ignore[misc]
            ("text", "tokenizer", model),
            asdict(options),
        )
        for model in config.networks
        if LEARNED in config.system(model).methods
    ]


def learned_file(study: Study, model: str) -> Path:
    return study.folder(f"ilm-{model}") / "stand-in.safetensors"


def _learn(study: Study, model: str, kind: str, options: LearnedVectorOptions) -> dict[str, Any]:
    """Learns the internal LM; perplexities per token of held-out text, of the paper's estimate and of this one."""
    loaded = load_checkpoint(study.folder(model) / "model.safetensors", expect=kind, device=study.device)
    told = Calibration(labels=loaded.tokenizer.encode_many(transcripts(study)), learning=options)
    scorers = {"paper": internal_lm(loaded.model), "learned": internal_lm(loaded.model, "learned", calibration=told)}
    save_internal_lm(learned_file(study, model), scorers["learned"])
    facts: dict[str, Any] = {"scale": round(scorers["learned"].scale, 4)}
    for domain in ("source", "target"):
        lines = read_lines(study.folder("text") / f"{domain}-held-out.txt")[:MEASURED]
        for name, scorer in scorers.items():
            facts[f"{domain}_ppl_{name}"] = round(perplexity(scorer, lines, loaded.tokenizer).per_token, 3)
    return facts
