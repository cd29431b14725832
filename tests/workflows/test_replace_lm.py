"""Another LM inside a trained decoder, from files to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ilme.errors import CheckpointError
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.workflows.replace_lm import replace_inner_lm
from tests.models.test_fused_lm import language_model, network


def test_the_file_has_the_new_lm_and_all_else_of_the_old_model(tmp_path: Path) -> None:
    model, lm = network("component").float(), language_model(8).float()
    save_model(tmp_path / "model", model)
    save_model(tmp_path / "lm", lm)
    file = replace_inner_lm(tmp_path / "model", tmp_path / "lm", tmp_path / "made")
    made = load_checkpoint(file, "aed").model
    assert all(torch.equal(a, b) for a, b in zip(made.lm.parameters(), lm.parameters(), strict=True))
    theirs = dict(model.named_parameters())
    assert all(torch.equal(p, theirs[n]) for n, p in made.named_parameters() if not n.startswith("output.lm."))
    with pytest.raises(CheckpointError, match="holds a 'lm', but a 'aed' is needed"):
        replace_inner_lm(tmp_path / "lm", tmp_path / "lm", tmp_path / "made")
