"""Tokens, fusion, nests and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch

from ilme import cli
from ilme.errors import BadInputError, VocabularyMismatchError
from ilme.fusion import FusionWeights, fuse
from ilme.runtime.state import cat, map_tensors, select
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens, check_same_vocabulary


def test_a_label_has_one_id_everywhere():
    check_same_vocabulary(numbered_tokens(9, "transducer"), numbered_tokens(9, "attention"))
    with pytest.raises(
        VocabularyMismatchError, match=r"model has 9 tokens and the LM 8; .* id 8: '▁8' against nothing"
    ):
        check_same_vocabulary(numbered_tokens(9, "transducer"), numbered_tokens(8, "attention"))
    other = Tokens(("<eos>", "<unk>", "▁2", "▁x", "▁4"), eos=0, unk=1)
    with pytest.raises(
        VocabularyMismatchError, match=r"5 tokens and the LM 5; they first differ at id 3: '▁3' against '▁x'"
    ):
        check_same_vocabulary(numbered_tokens(5, "transducer"), other)


def test_special_ids_must_be_ids():
    with pytest.raises(BadInputError, match="blank=7 is not an id"):
        Tokens(("a", "b"), blank=7)
    with pytest.raises(BadInputError, match="an id of its own"):
        Tokens(("a", "b"), blank=0, eos=0)


def test_tokens_survive_json():
    tokens = numbered_tokens(5, "transducer")
    assert Tokens.from_json(json.loads(json.dumps(tokens.to_json()))) == tokens


def test_fuse_is_the_formula():
    weights = FusionWeights(lm=0.3, subtracted=0.2, length=0.5)
    assert fuse(-2.0, -3.0, -5.0, 4.0, weights) == pytest.approx(-2 - 0.9 + 1.0 + 2.0)
    x = torch.randn(50)
    assert torch.equal(fuse(x, torch.full_like(x, torch.nan), torch.full_like(x, torch.nan), x, FusionWeights()), x)


def test_nests_keep_their_shape():
    state = {"a": (torch.arange(3), [torch.arange(3) * 2, None])}
    taken = select(state, torch.tensor([2, 0, 0]))
    assert taken["a"][0].tolist() == [2, 0, 0] and taken["a"][1][0].tolist() == [4, 0, 0] and taken["a"][1][1] is None
    assert cat([state, taken])["a"][0].tolist() == [0, 1, 2, 2, 0, 0]
    with pytest.raises(TypeError, match="not str"):
        map_tensors(lambda x: x, ["no tensor"])


def test_help_is_quick_and_does_not_import_torch():
    code = "import sys, ilme.cli; ilme.cli.main(['--help']); assert 'torch' not in sys.modules"
    best = min(_seconds([sys.executable, "-c", code]) for _ in range(3))
    assert best < 1.5


def _seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


@pytest.mark.parametrize("model, millions", [("rnnt", 76.36), ("aed", 97.03), ("lm", 57.66)])
def test_info_gives_the_papers_counts(model, millions, capsys):
    assert cli.main(["info", model, "--preset", "paper", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"model", "preset", "parameters", "components"}
    assert round(data["parameters"] / 1e6, 2) == millions
    assert sum(data["components"].values()) <= data["parameters"]


def test_every_command_resolves_and_explains_itself(capsys):
    for name, (target, text) in cli.COMMANDS.items():
        assert text
        cli.load(target)
        with pytest.raises(SystemExit) as stop:
            cli.main([*name.split(), "--help"])
        assert stop.value.code == 0, name
        assert "usage:" in capsys.readouterr().out


def _unread(code, **environment):
    """Runs Python code whose output has no reader; its status and its errors."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", f"import sys, ilme.cli as cli\n{code}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "", **environment}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, text=True, check=False)
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_output_that_nobody_reads_ends_a_command_quietly(environment):
    for command in ("sys.exit(cli.main(['--help']))", "cli.run = lambda *_: print('x'); sys.exit(cli.main(['info']))"):
        assert _unread(command, **environment) == (cli.READER_LEFT, "")
    status, errors = _unread("cli.main(['info', '--help'])", **environment)
    assert status in (0, cli.READER_LEFT) and not errors  # the parser itself may pass over it


def test_real_errors_still_show_when_nobody_reads_the_output(monkeypatch):
    told = "def run(*_): print('x'); raise {}\ncli.run = run; sys.exit(cli.main(['info']))"
    status, errors = _unread(told.format("cli.IlmeError(42)"))
    assert status == cli.READER_LEFT and errors == "ilme info: 42\n"
    status, errors = _unread(told.format("OSError(43)"))
    assert status not in (0, cli.READER_LEFT) and "OSError: 43" in errors

    def broken(args):
        raise BrokenPipeError("a worker's pipe")

    monkeypatch.setattr(cli, "dispatch", broken)
    with pytest.raises(BrokenPipeError, match="a worker's pipe"):
        cli.main(["info"])


def test_a_wrong_command_is_answered_with_the_right_one(capsys):
    assert cli.main(["inof"]) == 2
    assert "did you mean 'ilme info'" in capsys.readouterr().err


def test_shell_habits_become_parser_arguments():
    def command(first: list[str], second: str, text: list[str] | None = None, flag: bool = False, size: int = 1):
        pass

    @dataclass
    class Group:
        files: tuple[str, ...] = ()
        quick: bool = False

    def grouped(group: Group | None = None):
        pass

    grouped.__annotations__["group"] = Group | None
    got = cli.plain_arguments(grouped, ["--group.files", "x", "y", "--group.quick", "group.files=z"])
    assert got == ["--group.quick=true", '--group.files=["x", "y", "z"]']

    got = cli.plain_arguments(command, ["a", "b", "c", "--text", "x", "y", "--flag", "size=4"])
    assert got == ["--flag=true", "--size=4", '--text=["x", "y"]', '["a", "b"]', "c"]

    got = cli.plain_arguments(command, ["--text", "x", "--size", "4", "--text", "y", "--text=z", "a", "b"])
    assert got == ["--size=4", '--text=["x", "y", "z"]', '["a"]', "b"]
