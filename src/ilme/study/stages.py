"""The stages of a study, in their order."""

from __future__ import annotations

from pathlib import Path

from ilme.errors import BadInputError
from ilme.study.config import StudyConfig
from ilme.study.decoding import decoding_stages
from ilme.study.internal import internal_stages
from ilme.study.language import language_stages
from ilme.study.networks import network_stages
from ilme.study.outcome import outcome_stage
from ilme.study.recordings import recorded_speech_stage, recorded_text_stage
from ilme.study.runner import Stage, Study
from ilme.study.speech import sets_stage, speech_stage
from ilme.study.systems import system_stages
from ilme.study.texts import text_stage

__all__ = ["build_study", "study_stages"]


def study_stages(config: StudyConfig) -> list[Stage]:
    """text, speech, tokenizer, LMs and n-grams, networks, systems, learned internal LMs, tuning and tests, tables."""
    recorded = config.recordings.active
    return [
        recorded_text_stage(config) if recorded else text_stage(config),
        *([recorded_speech_stage(config)] if recorded else [speech_stage(config), sets_stage(config)]),
        *language_stages(config),
        *network_stages(config),
        *system_stages(config),
        *internal_stages(config),
        *decoding_stages(config),
        outcome_stage(config),
    ]


def build_study(config: StudyConfig, out: Path, device: str = "auto", processes: int = 1) -> Study:
    """The study, ready to run; `auto` takes a CUDA device where there is one."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_starts(config, out)
    return Study(study_stages(config), out, device, processes)


def _check_starts(config: StudyConfig, out: Path) -> None:
    """A network that is trained anew loses what its folder held, so what it starts from must lie elsewhere."""
    for kind, plan in (("rnnt", config.rnnt), ("aed", config.aed)):
        folder = out / kind
        if plan.starts_from and not folder.is_symlink() and Path(plan.starts_from).resolve().parent == folder.resolve():
            raise BadInputError(
                f"{kind}.starts_from names {plan.starts_from}, in the folder that is emptied when this study "
                f"trains {kind}: give another --out, or copy the model elsewhere first"
            )
