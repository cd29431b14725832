"""`ilme perplexity` of a domain folder: the LM in it, cut into tokens by the domain's model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ilme.cli import main


def test_the_lm_of_a_domain_prefers_its_own_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sea.txt").write_text("the whale swam in the sea\nthe sea was calm and grey\n" * 5)
    (tmp_path / "bank.txt").write_text("please transfer fifty dollars\nto my savings account\n")
    domain = str(tmp_path / "domain")
    assert main(["adapt", "--model", "bundled/rnnt", "--text", str(tmp_path / "sea.txt"), "--out", domain]) == 0
    found = {}
    for name in ("sea", "bank"):
        capsys.readouterr()
        assert main(["perplexity", domain, str(tmp_path / f"{name}.txt"), "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    assert found["sea"]["model"] == "LM of a domain" and found["bank"]["sentences"] == 2
    assert 10 * found["sea"]["perplexity_per_token"] < found["bank"]["perplexity_per_token"]
    assert main(["perplexity", domain, str(tmp_path / "sea.txt"), "--internal", "removed"]) == 1
    assert "name its model" in capsys.readouterr().err
