"""Every command and the Python of the README run as they stand; the README is short."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import soundfile

from ilme.cli import COMMANDS, main
from ilme.workflows.bundle import read_bundle
from tests.docs.pages import ROOT
from tests.docs.test_commands import command_lines

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINES = [line.split(" #")[0].strip() for line in command_lines(README)]
HUB = ("openai/whisper-tiny.en", "bundled/rnnt")  # there is no hub in a test: a bundled model in place of that one
QUICK = {
    "adapt": ["--limit", "3", "--options.order", "2", "--options.beam", "2", "--options.max_decodes", "2"],
    "demo": ["--model", "rnnt", "--method", "ILME", "--utterances", "2", "--beam", "2"],
}


def test_it_is_short_and_the_first_python_stands_before_line_40_and_runs(capsys):
    assert TEXT.count("\n") < 150
    block = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    assert TEXT[: block.start()].count("\n") < 40
    exec(compile(block.group(1), "README.md", "exec"), {})
    assert "Scores(asr=" in capsys.readouterr().out


def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of `ilme` in their order, in one folder with the files that they name."""
    _write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        words = shlex.split(line.replace(*HUB))
        if words[0] == "ilme":
            assert main([*words[1:], *QUICK.get(words[1], [])]) in ((0, 1) if words[1] == "doctor" else (0,)), line
            assert capsys.readouterr().out, line
        elif words[0] == "make":
            _check_make(words[1:])
        else:
            assert words[:2] == ["pip", "install"], line
            _check_extras(words[2:])
    assert (tmp_path / "my-domain" / "card.md").is_file(), "the README's adapt was not among its commands"


def test_commands_in_the_text_exist() -> None:
    named = re.findall(r"`ilme ([a-z]+)", re.sub(r"```.*?```", "", TEXT.replace("\n", " "), flags=re.DOTALL))
    assert named and {*named} <= {command.split()[0] for command in COMMANDS}


def _write_files(folder: Path) -> None:
    """Text, three dev utterances and a recording, from the bundle."""
    unpacked = read_bundle().unpack(folder / "bundle")
    dev = unpacked.utterances("dev")[:3]
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.txt").write_text("the whale swam\nthe sea was calm\n" * 5)
    rows = []
    for k, utterance in enumerate(dev):
        soundfile.write(folder / f"{k}.wav", utterance.samples(16000), 16000)
        rows.append(json.dumps({"audio_filepath": f"{k}.wav", "text": utterance.text, "duration": utterance.seconds}))
    (folder / "dev.jsonl").write_text("\n".join(rows) + "\n")
    shutil.copy(folder / "0.wav", folder / "call.wav")


def _check_make(targets: list[str]) -> None:
    dry = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    called = [line for line in dry.splitlines() if "/ilme " in line]
    assert all(line.split("/ilme ")[1].split()[0] in COMMANDS for line in called)


def _check_extras(packages: list[str]) -> None:
    """The clone itself, with extras that there are; tests/wheel installs them."""
    there = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for package in packages:
        found = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", package)
        assert found and {*(found[1] or "").split(",")} - {""} <= {*there}, package
