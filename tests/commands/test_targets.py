"""What is read is not written, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.commands.targets import spare_inputs
from ilme.errors import UsageError


def test_by_any_name_a_file_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, folder = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("x")
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "link").symlink_to(text)
    (tmp_path / "hard").hardlink_to(text)
    for out in ("text.txt", "./text.txt", "run/../text.txt", "link", "hard", text):
        with pytest.raises(UsageError, match="would be lost"):
            spare_inputs(out, ["none", "run", "text.txt"])
    for out in ("run", "run/model.safetensors"):
        with pytest.raises(UsageError, match="would be lost"):
            spare_inputs(out, [folder])
    for out in ("new.txt", "new/text.txt", "."):
        spare_inputs(out, ["text.txt", "run", "bundled/rnnt", ""])
