"""The page, over HTTP and in a real Chromium: a file, the microphone, sliders, names, a new domain, keys, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.report import chromium
from tests.serve.conftest import KEY, NOISE, Running, running

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
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(models, NOISE, adapt=tmp_path_factory.mktemp("made")) as found:
        yield found


@pytest.fixture
def microphone(wave: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser whose microphone hears a file."""
    fake = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={wave}",
    )
    monkeypatch.setattr(chromium, "FLAGS", (*chromium.FLAGS, *fake))


def compared(served: Running, wave: Path) -> dict[str, Any]:
    files = {"file": wave.read_bytes()}
    found: dict[str, Any] = httpx.post(f"{served.url}/v1/ilme/compare", files=files, timeout=60).json()
    return found


def words(place: str) -> str:
    """A script: the text of a side, as it is shown."""
    return f"[...document.querySelectorAll('#{place} > *')].map(w => w.textContent).join(' ')"


def test_files_are_served_and_nothing_else(served: Running) -> None:
    page = httpx.get(served.url)
    assert page.headers["content-type"].startswith("text/html") and "default-src 'none'" in str(page.headers)
    for name in ("page.js", "service.js", "words.js", "microphone.js", "domains.js", "recorder.js", "style.css"):
        found = httpx.get(f"{served.url}/page/{name}")
        assert found.status_code == 200 and "http://" not in found.text and "https://" not in found.text
    for name in ("..%2Fapp.py", "app.py", "%2e%2e/app.py"):
        assert httpx.get(f"{served.url}/page/{name}").status_code == 404


def test_compare_answers(served: Running, wave: Path) -> None:
    found = compared(served, wave)
    assert found["seconds"] == pytest.approx(1.2) and found["windows"][0]["candidates"]
    assert httpx.post(f"{served.url}/v1/ilme/compare", files={"file": b"none"}).status_code == 400


# Contrast of every text with what is behind it, as WCAG counts it: the worst, and where.
CONTRAST = """(() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, `${e.tagName}#${e.id}.${e.className}: ${e.textContent.slice(0, 20)}`];
  }
  return worst;
})()"""

# What a screen reader cannot name: controls without a label.
NAMELESS = """[...document.querySelectorAll("button, input, select, textarea, audio, progress")].filter((e) =>
  e.checkVisibility() && !(e.textContent.trim() && e.tagName === "BUTTON") && !e.labels?.length &&
  !e.getAttribute("aria-label")).map((e) => e.outerHTML.slice(0, 60))"""


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_shows_it(
    width: int, dark: bool, served: Running, wave: Path, tmp_path: Path, microphone: None
) -> None:
    windows = compared(served, wave)["windows"]
    chosen = " ".join(w["candidates"][0]["text"] for w in windows if w["candidates"])
    with Site(width, 900, phone=width < 500, dark=dark) as page:
        page.visit(served.url)
        assert page.run("model.value") == "sea"
        page.choose(wave)
        page.until("!result.hidden")
        assert page.run(words("fused")) == chosen
        page.run("document.querySelector('#fused button').click()")
        assert "nats" in page.run("why.textContent") and not page.run("why.hidden")
        assert "confidence" in page.run("document.querySelector('#fused button').getAttribute('aria-label')")
        page.run("lm.value = 0; ilm.value = 0; lm.dispatchEvent(new Event('input'))")
        assert page.run("document.getElementById('lm-value').textContent") == "0.00"
        assert page.run(words("fused")).split() == page.run(words("plain")).split(), "the model's own choice"
        assert not page.run("document.querySelector('#fused .changed')")
        page.run("reset.click()")
        assert page.run(words("fused")) == chosen
        page.run("names.value = 'whale'; again.click()")
        page.until("state.textContent.startsWith('Done')")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
        assert page.run(NAMELESS) == []
        worst, where = page.run(CONTRAST)
        assert worst >= 4.5, where
        page.picture(tmp_path / f"page-{width}.png")
        assert not page.problems
        broken = tmp_path / "broken.wav"
        broken.write_bytes(b"none")
        page.choose(broken)
        page.until("state.classList.contains('error')")
        assert "broken.wav" in page.run("state.textContent")
        assert page.run(CONTRAST)[0] >= 4.5


@needs_chromium
@pytest.mark.slow
def test_the_microphone_is_heard_while_and_after_somebody_speaks(served: Running, microphone: None) -> None:
    with Site(390, 900, phone=True) as page:
        page.visit(served.url)
        page.run("speak.click()")
        page.until("speak.textContent === 'Stop' && speak.getAttribute('aria-pressed') === 'true'")
        page.until("live.textContent.trim() !== ''")
        page.run("speak.click()")
        page.until("state.textContent.startsWith('Done')")
        assert page.run(words("fused")) and not page.problems


@needs_chromium
@pytest.mark.slow
def test_text_becomes_a_domain_that_can_be_chosen(served: Running, wave: Path) -> None:
    with Site(1280, 900) as page:
        page.visit(served.url)
        page.choose(wave)
        page.until("!result.hidden")
        page.run("adapt.click()")
        assert "Paste text" in page.run("made.textContent") and page.run("document.activeElement.id") == "text"
        page.run("text.value = 'the whale swam off to the sea\\n'.repeat(30); adapt.click()")
        assert "name" in page.run("made.textContent")
        page.run("document.getElementById('name').value = 'sea'; adapt.click()")
        page.until("made.textContent.includes('already')")
        page.problems.clear()  # the browser notes every refusal
        page.run("document.getElementById('name').value = 'left'; adapt.click()")
        page.until("!cancel.hidden && !progress.hidden")
        page.run("cancel.click()")
        page.until("made.textContent.includes('cancelled') && progress.hidden")
        page.run("document.getElementById('name').value = 'whales'; adapt.click()")
        page.until("made.textContent.includes('ready')", 300)
        assert page.run("model.value") == "whales"
        assert page.run("[...model.options].map(o => o.value)") == ["sea", "whales"]
        page.until("state.textContent.startsWith('Done')")
        assert page.run("log.children.length") >= 2 and not page.problems


@needs_chromium
@pytest.mark.slow
def test_keys_alone_are_enough(served: Running, wave: Path) -> None:
    with Site(1280, 900) as page:
        page.visit(served.url)
        page.choose(wave)
        page.until("!result.hidden")

        def press(key: str) -> str:
            code = {"Tab": 9, "ArrowRight": 39, "End": 35, "Enter": 13}[key]
            text = {"text": "\r"} if key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
            found: str = page.run("document.activeElement.id || document.activeElement.parentElement.id")
            return found

        order: list[str] = []
        while len(order) < 60 and "adapt" not in order:
            order.append(press("Tab"))
        seen = [name for k, name in enumerate(order) if name and name not in order[:k]]
        wanted = ["model", "file", "speak", "names", "again", "player", "fused", "lm", "ilm", "reset", "text",
                  "text-file", "name", "adapt"]  # fmt: skip
        assert seen == wanted, "in the order of the page, and the words are one stop"
        page.run("document.querySelector('#fused button[tabindex=\"0\"]').focus()")
        count = page.run("document.querySelectorAll('#fused button').length")
        place = "[...document.querySelectorAll('#fused button')].indexOf(document.activeElement)"
        press("ArrowRight")
        assert page.run(place) == min(1, count - 1)
        press("End")
        assert page.run(place) == count - 1
        press("Enter")
        assert not page.run("why.hidden") and not page.problems


@needs_chromium
@pytest.mark.slow
def test_a_key_is_asked_for_and_used(server: Running, wave: Path, microphone: None) -> None:
    with Site(1280, 900) as page:
        page.visit(server.url)
        assert not page.run("document.getElementById('key-box').hidden") and page.run("model.options.length") == 0
        page.run(f"key.value = '{KEY}'; key.dispatchEvent(new Event('change'))")
        page.until("model.options.length > 0")
        page.choose(wave)
        page.until("!result.hidden")
        assert page.run("make.hidden"), "this service takes no texts"
        page.problems.clear()  # the browser notes the first refusal
        page.run("speak.click()")
        page.until("live.textContent.trim() !== ''")
        page.run("speak.click()")
        page.until("speak.textContent === 'Speak' && state.textContent.startsWith('Done')")
        assert not page.problems
