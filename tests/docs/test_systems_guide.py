"""Every training of docs/guide/systems.md runs, at a tiny size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ilme.cli import main
from ilme.models.checkpoint import load_checkpoint
from tests.commands.test_train import corpus  # noqa: F401  (a fixture)
from tests.docs.pages import ROOT

GUIDE = ROOT / "docs" / "guide" / "systems.md"
TINY = ["preset=tiny", "loop.steps=2", "loop.evaluate_every=2", "loop.save_every=2", "loop.tensorboard=false",
        "loop.ilm_every=0", "loop.log_every=1"]  # fmt: skip
SPEECH = ["data.resident=false", "data.batch.seconds=2", "data.batch.longest=2"]


def trainings() -> list[list[str]]:
    """The words of each `ilme train` and `ilme lm` command, in the order of the page."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(("ilme train", "ilme lm"))]


@pytest.mark.slow
def test_every_training_runs(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    files = {"corpora/train/cuts.jsonl.gz": "cuts.jsonl.gz", "corpora/dev/cuts.jsonl.gz": "cuts.jsonl.gz",
             "runs/bpe.model": "bpe.model", "text/train.tok": "text.tok", "text/dev.tok": "text.tok",
             "text/transcripts.tok": "text.tok"}  # fmt: skip
    for name, there in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(corpus / there)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    plain = ["train", "aed", "out=runs/aed", "data.train=corpora/train", "data.tokenizer=runs/bpe.model"]
    assert main([*plain, *TINY, *SPEECH]) == 0  # what Deep Fusion starts from
    smaller = {"lm": TINY, "rnnt": [*TINY, *SPEECH], "aed": [*TINY, *SPEECH, "aed.ctc=0"]}  # the tiny one has no CTC
    for words in trainings():
        assert main(words if words[0] == "lm" else [*words, *smaller[words[1]]]) == 0, words
    networks = {path.parent.name: load_checkpoint(path).model for path in Path("runs").glob("*/model.safetensors")}
    assert networks["hat"].config.hat
    assert networks["tdt"].config.durations and networks["ctc"].ctc is not None
    methods = {name: getattr(model.config, "fusion", None) for name, model in networks.items()}
    for name in ("deep", "cold", "simple", "component"):
        assert methods[name].method == name
    assert methods["component-domain"].method == "component"
