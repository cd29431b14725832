"""Two runs on one output: the second is refused, and a run that was killed holds nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.runtime.locks import only_run, tidy

HOLD = """
import sys, time
from pathlib import Path
from ilme.runtime.locks import only_run
with only_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with only_run(out), pytest.raises(BadInputError, match=r"another run is writing .*out; wait"), only_run(out):
        pass
    with only_run(out), only_run(tmp_path / "other"):
        pass
    assert not list(tmp_path.rglob("*.lock"))


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(BadInputError, match="another run"), only_run(out):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with only_run(out):
        pass


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(KeyError), only_run(tmp_path / "out"):
        raise KeyError("inside")
    with only_run(tmp_path / "out"):
        pass


def test_a_signal_while_it_lets_go_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes at the worst moment, just before the file is removed, and is heard just after."""
    unlink = Path.unlink

    def disturbed(self: Path, missing_ok: bool = False) -> None:
        signal.raise_signal(signal.SIGINT)
        unlink(self, missing_ok)

    with pytest.raises(KeyboardInterrupt), only_run(tmp_path / "out"):
        monkeypatch.setattr(Path, "unlink", disturbed)
    assert not list(tmp_path.rglob(".*.lock"))


def test_the_file_of_a_killed_run_goes_and_one_that_is_held_stays(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / ".out.stage.lock"
    file.touch()
    tidy(out, role="stage")
    tidy(tmp_path / "gone" / "out")
    assert not list(tmp_path.rglob("*"))
    with only_run(out, role="stage"):
        tidy(out, role="stage")
        assert file.exists()
