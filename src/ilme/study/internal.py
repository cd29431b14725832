"""The stages `ilm-rnnt` and `ilm-aed`: internal LMs learned from the source transcripts, for the method ILME-learned.

stand-in.safetensors      what stands in for the acoustics, see `ilme.ilm.learned_vector`
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ilme.ilm import internal_lm
from ilme.ilm.learned_vector import StandInOptions, learn_stand_in, save_stand_in
from ilme.lm.perplexity import perplexity
from ilme.models.checkpoint import load_model
from ilme.study.config import StudyConfig
from ilme.study.language import transcripts
from ilme.study.runner import Stage, Study
from ilme.study.texts import read_lines

__all__ = ["LEARNED", "internal_stages", "stand_in_file"]

LEARNED = "ILME-learned"
_MEASURED = 400  # held-out sentences whose perplexity is given


def internal_stages(config: StudyConfig) -> list[Stage]:
    """One for each model, if the study has the method."""
    if LEARNED not in config.decoding.methods:
        return []
    options = StandInOptions(seed=config.seed)
    return [
        Stage(
            f"ilm-{model}",
            lambda study, model=model: _learn(study, model, options),  # type: ignore[misc]
            ("text", "tokenizer", model),
            asdict(options),
        )
        for model in config.decoding.models
    ]


def stand_in_file(study: Study, model: str) -> Path:
    return study.folder(f"ilm-{model}") / "stand-in.safetensors"


def _learn(study: Study, model: str, options: StandInOptions) -> dict[str, Any]:
    """Learns the stand-in; perplexities per token of held-out text, of the paper's estimate and of the learned one."""
    loaded = load_model(study.folder(model) / "model.safetensors", expect=model, device=study.device)
    learned = learn_stand_in(loaded.model, loaded.tokenizer.encode_many(transcripts(study)), options)
    save_stand_in(stand_in_file(study, model), learned, loaded.model)
    scorers = {"paper": internal_lm(loaded.model), "learned": internal_lm(loaded.model, learned.vector, learned.scale)}
    facts: dict[str, Any] = {"scale": round(learned.scale, 4)}
    for domain in ("source", "target"):
        lines = read_lines(study.folder("text") / f"{domain}-held-out.txt")[:_MEASURED]
        for name, scorer in scorers.items():
            facts[f"{domain}_ppl_{name}"] = round(perplexity(scorer, lines, loaded.tokenizer).per_token, 3)
    return facts
