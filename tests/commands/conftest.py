"""What the commands that decode share: tiny checkpoints, two small sets, tuned weights and measured results."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.cli import main
from tests.checkpoints import TEXTS, write_checkpoints, write_set


class Decoded:
    """A folder in which models are tuned and evaluated, each method once.

    Args:
        folder: With the checkpoints rnnt, aed and lm.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dev, self.test = write_set(folder, "dev", TEXTS[:5]), write_set(folder, "test", TEXTS[:6])

    def tuned(self, method: str, model: str = "rnnt") -> Path:
        """tuning.json of a method."""
        out = self.folder / f"tune-{model}-{method}"
        if not (out / "tuning.json").exists():
            arguments = [
                "tune", str(self.folder / model), str(self.dev), str(out), "--lm", str(self.folder / "lm"),
                "--tuning.method", method, "--tuning.beam", "3", "--tuning.replicates", "2", "--tuning.grid", "3",
                "--tuning.max_decodes", "3", "--tuning.restarts", "1", *short(model),
            ]  # fmt: skip
            assert main(arguments) == 0
        return out / "tuning.json"

    def evaluated(self, method: str, model: str = "rnnt") -> Path:
        """results.json of a method, with the weights that were tuned."""
        out = self.folder / f"test-{model}-{method}"
        arguments = [
            "evaluate", str(self.folder / model), str(self.test), str(out), "--weights",
            str(self.tuned(method, model)), "--lm", str(self.folder / "lm"), "--label", model, "--details", "2",
            "--search_errors", "4", *short(model),
        ]  # fmt: skip
        assert main(arguments) == 0
        return out / "results.json"


def short(model: str) -> list[str]:
    """An untrained decoder does not end by itself."""
    return ["--search.max_length", "6"] if model == "aed" else []


@pytest.fixture(scope="session")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    return Decoded(write_checkpoints(tmp_path_factory.mktemp("decoded")))
