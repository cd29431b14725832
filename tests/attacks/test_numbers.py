"""Every number that a command takes, below what it can be: refused in one line, or taken; nothing half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ilme import cli
from ilme.commands.options import Option, read_command
from tests.attacks.cases import HALF_WRITTEN, TRACEBACK
from tests.attacks.jobs import JOBS, OTHERS, Job, make_inputs, preload, run
from tests.attacks.test_disks import needed

EVERY = 60  # of so many cases one runs in `make test`


def numbers() -> list[Any]:
    """A job and an option, for every number that a command takes."""
    found: dict[tuple[str, str], Job] = {}
    for job in (JOBS | OTHERS).values():
        words = job.words(Path(), Path())
        name = " ".join(words[:2]) if " ".join(words[:2]) in cli.COMMANDS else words[0]
        for option in _numeric(name):
            found.setdefault((name, option.name), job)
    return [
        pytest.param(job, name, id=f"{command} --{name}", marks=() if k % EVERY == 0 else pytest.mark.attacks)
        for k, ((command, name), job) in enumerate(found.items())
    ]


def _numeric(command: str) -> list[Option]:
    values = read_command(cli.load(cli.COMMANDS[command][0])).values
    return [option for option in values if option.types in ((int,), (float,))]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preload()
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize(("job", "name"), numbers())
def test_a_number_below_zero(job: Job, name: str, inputs: Path, tmp_path: Path) -> None:
    needed(job)
    words = job.words(inputs, tmp_path / "out")
    if f"--{name}" in words:
        at = words.index(f"--{name}")
        words = words[:at] + words[at + 2 :]
    result = run([*words, f"--{name}=-1"], tmp_path)
    assert result.status in (0, 1, 2), result.err
    assert TRACEBACK not in result.err, result.err
    if result.status:
        assert result.err.strip().splitlines()[-1].startswith("ilme "), result.err
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (*HALF_WRITTEN, ".lock")]
