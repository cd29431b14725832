"""The commands and the Python of docs/guide/data.md work as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from ilme.cli import main
from ilme.data.tokenizer import SentencePieceTokenizer
from tests.data.speech_corpora import WORDS, speech, utterances, write_librispeech
from tests.docs.pages import ROOT

GUIDE = (ROOT / "docs" / "guide" / "data.md").read_text(encoding="utf-8")
SPEECH = GUIDE.partition("## Speech")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SPEECH, re.DOTALL)


def test_the_speech_part_runs_from_corpus_to_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_librispeech(tmp_path / "LibriSpeech", utterances(20, speakers=10))
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ilme ")]
    assert [shlex.split(line)[2] for line in commands] == ["import", "show", "split", "shard"]
    for line in commands:
        words = shlex.split(line.replace("~/corpora", str(tmp_path)), comments=True)
        assert main(words[1:]) == 0
    assert {path.name for path in (tmp_path / "data/libri").iterdir()} == {
        "cuts.jsonl.gz",
        "rejected.jsonl",
        "import.json",
    }

    soundfile.write("a.flac", speech(1, 0), 16000)
    soundfile.write("b.opus", speech(1, 1, 8000), 8000, format="OGG", subtype="OPUS")
    names = {
        "samples": speech(2, 2),
        "waveforms": torch.from_numpy(np.stack([speech(1, 3), speech(1, 4)])),
        "sample_lengths": torch.tensor([16000, 12000]),
        "batches_of_audio": [[speech(1, 5)]],
        "tokenizer": SentencePieceTokenizer.train([" ".join(WORDS)] * 20, 40),
    }
    for block in blocks("python"):
        exec(block.replace('"cuda"', '"cpu"').replace("workers=4", "workers=0"), names)
    assert names["features"].shape == (2, 32, 240)
    assert names["config"].seconds == 600
    assert names["batches"].epoch == 1
    assert names["batch"].features.size(2) == 240
