"""Tiny networks learn twenty synthetic utterances: every word of them, in seconds, on one core."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ilme.models.checkpoint import load_checkpoint
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch

from .tiny import make_trainer, utterances


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "steps"), [("rnnt", 250), ("hat", 250), ("aed", 200)])
def test_learns_every_utterance(tmp_path: Path, kind: str, steps: int) -> None:
    trainer = make_trainer(tmp_path, kind, budget=400, steps=steps, evaluate_every=steps, save_every=steps, average=0.9)
    progress = trainer.run()
    assert progress.best is not None and progress.best < 0.15
    model = load_checkpoint(tmp_path).model  # what was exported is what was learnt, average and all
    features, labels = utterances()
    x, sizes = torch.nn.utils.rnn.pad_sequence(features, batch_first=True), torch.tensor([len(f) for f in features])
    with torch.no_grad():
        if kind != "aed":
            found = TransducerSearch(model, options=TransducerOptions(beam=2))(*model.encode(x, sizes))
        else:
            found = AttentionSearch(model, options=AttentionOptions(beam=2))(model.encode(x, sizes))
    wrong = [(list(n[0].tokens), y) for n, y in zip(found, labels, strict=True) if list(n[0].tokens) != y]
    assert len(wrong) <= 1, wrong


def test_language_model_reaches_the_entropy_of_its_text(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "lm", steps=400, evaluate_every=400, save_every=400)
    progress = trainer.run()
    _, labels = utterances()
    units = sum(len(y) + 1 for y in labels)
    entropy = len(labels) * math.log(len(set(map(tuple, labels)))) / units  # twenty sentences, equally likely
    assert progress.best is not None
    assert entropy - 1e-3 < progress.best < 1.15 * entropy
