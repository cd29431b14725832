"""The built wheel, installed by itself into an empty folder: the core runs without extras, and adapts with `hf`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.adapters.attention_folders import whisper
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

LARGEST = 36 << 20  # bytes; docs/guide/install.md states the size
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Put before everything else: an environment in which these modules are not there.
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of an earlier build gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(folder))
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--target", str(folder), str(wheel))
    return folder


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--no-input", *words], check=True, capture_output=True)


def run(folder: Path, *words: str, path: list[Path]) -> subprocess.CompletedProcess[str]:
    """The command of the package that is last on `path`, in a folder of its own."""
    code = "import sys, ilme; assert ilme.__file__.startswith(sys.argv.pop()), ilme.__file__\n"
    code += "from ilme.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, *words, str(path[-1])]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def installed_with(lines: list[str]) -> set[str]:
    """The packages that pip installs for these requirements, theirs included."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(line) for line in lines]
    while left:
        wanted = left.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) not in found:
            found.add((name, extras))
            inner = [Requirement(line) for line in metadata.requires(name) or ()]
            chosen = [{"extra": extra} for extra in ("", *extras)]
            left += [r for r in inner if r.marker is None or any(r.marker.evaluate(extra) for extra in chosen)]
    return {name for name, _ in found}


def modules_outside_the_core() -> set[str]:
    """What a fresh environment with the core alone lacks, of all that is installed here."""
    core = installed_with(PROJECT["dependencies"]) | {"ilme", "pip", "setuptools"}
    owners = metadata.packages_distributions()
    return {module for module, names in owners.items() if not {canonicalize_name(name) for name in names} & core}


def test_it_holds_what_the_sources_hold(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("ilme/")}
    source = ROOT / "src"
    there = {p.relative_to(source).as_posix() for p in (source / "ilme").rglob("*") if p.is_file()}
    assert held == {name for name in there if "__pycache__" not in name}
    assert wheel.stat().st_size < LARGEST


def test_the_core_runs_without_extras(site: Path, tmp_path: Path) -> None:
    names = modules_outside_the_core()
    assert {"transformers", "tiktoken", "pytest"} <= names and not {"torch", "numpy", "lhotse"} & names
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(WITHOUT.format(names=names))
    path = [hidden, site]

    demo = run(tmp_path, "demo", "--model", "rnnt", "--method", "ILME", "--utterances", "2", "--beam", "2", path=path)
    assert demo.returncode == 0, demo.stderr
    assert "ILME" in demo.stdout and (tmp_path / "out/demo/report.html").is_file()

    (tmp_path / "a.txt").write_text("the whale swam\nthe sea was calm\n" * 5)
    words = ("adapt", "--model", "bundled/rnnt", "--text", "a.txt", "--out", "domain")
    assert run(tmp_path, *words, path=path).returncode == 0
    assert (tmp_path / "domain/card.md").is_file()

    refused = run(tmp_path, "adapt", "--model", "openai/whisper-tiny.en", "--text", "a.txt", "--out", "x", path=path)
    assert refused.returncode == 1 and "pip install 'ilme[hf]'" in refused.stderr


def test_with_hf_it_adapts_whisper(site: Path, tmp_path: Path) -> None:
    whisper(tmp_path / "tiny-whisper")
    (tmp_path / "a.txt").write_text("The whale swam.\nThe sea was calm.\n" * 5)
    words = ("adapt", "--model", "tiny-whisper", "--text", "a.txt", "--out", "domain")
    done = run(tmp_path, *words, path=[site])
    assert done.returncode == 0, done.stderr
    assert "λ_T 0.25" in (tmp_path / "domain/card.md").read_text(encoding="utf-8")
