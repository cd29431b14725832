"""The page, over HTTP and in a real Chromium: a file, the microphone, sliders, names, errors, a phone, the dark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.report import chromium
from tests.serve.conftest import NOISE, Running, running

needs_chromium = pytest.mark.skipif(
    chromium.find_chromium() is None, reason="Chromium is not installed (Debian: chromium)"
)


class Site(chromium.Page):
    """A page of the service; requests to any other host are problems."""

    host = ""

    def visit(self, url: str) -> None:
        type(self).host = url
        self.call("Page.navigate", url=url)
        self.until("document.documentElement?.dataset.ready === 'yes'")

    def until(self, script: str, seconds: float = 60.0) -> None:
        for _ in range(int(seconds / 0.05)):
            if self.run(script):
                return
            time.sleep(0.05)
        raise TimeoutError(f"{script}; problems: {self.problems}; it says {self.run('state.textContent')}")

    def choose(self, file: Path) -> None:
        """Puts a file into the page's file box."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node)

    def _hear(self, event: dict[str, Any]) -> None:
        url = event.get("params", {}).get("request", {}).get("url", "")
        if event.get("method") == "Network.requestWillBeSent" and url.startswith((self.host, "blob:")):
            return
        super()._hear(event)


@pytest.fixture(scope="module")
def served(models: Path) -> Iterator[Running]:
    with running(models, NOISE) as found:
        yield found


def test_files_are_served_and_nothing_else(served: Running) -> None:
    page = httpx.get(served.url)
    assert page.headers["content-type"].startswith("text/html") and "default-src 'none'" in str(page.headers)
    for name in ("page.js", "style.css", "recorder.js"):
        found = httpx.get(f"{served.url}/page/{name}")
        assert found.status_code == 200 and "http" not in found.text.replace("https", "http").split("//")[0]
    for name in ("..%2Fapp.py", "app.py", "%2e%2e/app.py"):
        assert httpx.get(f"{served.url}/page/{name}").status_code == 404


def test_compare_answers(served: Running, wave: Path) -> None:
    files = {"file": wave.read_bytes()}
    found = httpx.post(f"{served.url}/v1/ilme/compare", files=files, timeout=60).json()
    assert found["seconds"] == pytest.approx(1.2) and found["windows"][0]["candidates"]
    assert httpx.post(f"{served.url}/v1/ilme/compare", files={"file": b"none"}).status_code == 400


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_it(
    width: int, dark: bool, served: Running, wave: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={wave}",
    )
    monkeypatch.setattr(chromium, "FLAGS", (*chromium.FLAGS, *fake))
    expected = httpx.post(f"{served.url}/v1/ilme/compare", files={"file": wave.read_bytes()}, timeout=60).json()
    with Site(width, 900, phone=width < 500, dark=dark) as page:
        page.visit(served.url)
        assert page.run("model.value") == "sea"
        page.choose(wave)
        page.until("!result.hidden")
        words = "[...document.querySelectorAll('#fused > *')].map(w => w.textContent).join(' ')"
        chosen = " ".join(w["candidates"][0]["text"] for w in expected["windows"] if w["candidates"])
        assert page.run(words) == chosen
        page.run("document.querySelector('#fused button').click()")
        assert "nats" in page.run("why.textContent") and not page.run("why.hidden")
        page.run("lm.value = 0; ilm.value = 0; lm.dispatchEvent(new Event('input'))")
        plain = page.run("[...document.querySelectorAll('#plain > *')].map(w => w.textContent).join(' ')")
        assert page.run("document.getElementById('lm-value').textContent") == "0.00"
        assert page.run(words).split() == plain.split(), "without weights it is the model's own choice"
        page.run("reset.click()")
        assert page.run(words) == chosen
        page.run("names.value = 'whale'; again.click()")
        page.until("state.textContent.startsWith('Done')")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
        page.picture(tmp_path / f"page-{width}.png")
        page.run("speak.click()")
        page.until("speak.textContent === 'Stop'")
        time.sleep(1.0)
        page.run("speak.click()")
        page.until("state.textContent.startsWith('Done')")
        assert page.run("recorded = state.textContent") != ""
        assert not page.problems
        broken = tmp_path / "broken.wav"
        broken.write_bytes(b"none")
        page.choose(broken)
        page.until("state.classList.contains('error')")
        assert "broken.wav" in page.run("state.textContent")
