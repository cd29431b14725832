"""A hub that gives no answer is said at once, and is not asked where there is no need."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilme.errors import CheckpointError
from ilme.runtime.hub import check_reachable

huggingface_hub = pytest.importorskip("huggingface_hub", reason="it asks the hub: pip install 'ilme[hf]'")


class Silent:
    """A network without an answer; counts who asks."""

    asked = 0

    def head(self, address: str, timeout: float) -> None:
        Silent.asked += 1
        raise OSError("Name or service not known")


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    Silent.asked = 0
    monkeypatch.setattr("huggingface_hub.utils.get_session", Silent)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_a_misspelt_name_without_a_network_is_asked_for_once() -> None:
    with pytest.raises(CheckpointError, match=r"opanai/whisper is not here, and the hub .* cannot be reached"):
        check_reachable("opanai/whisper")
    assert Silent.asked == 1


def test_the_hub_is_not_asked_for_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reachable(str(tmp_path))
    check_reachable("no/hub/id")  # the loader says so
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "config.json")
    check_reachable("openai/whisper-tiny")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_reachable("openai/whisper-tiny")
    assert not Silent.asked
