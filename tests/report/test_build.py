"""The report as a file, and as a browser shows it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ilme.errors import BadInputError
from ilme.evaluation.results import Results
from ilme.report.audio import data_uri
from ilme.report.build import ReportOptions, build_report, group_by_test_set, write_report
from ilme.report.gather import gather_curves, gather_set
from tests.report.chromium import Page, find_chromium
from tests.report.example import write_example

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (Debian: chromium)")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], Path]:
    folder = tmp_path_factory.mktemp("report")
    results, curves = write_example(folder)
    out = folder / "report.html"
    write_report(out, [results], curves, ReportOptions(title="Speeches & <novels>"))
    return results, curves, out


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_is_one_file_that_asks_for_nothing(files: tuple[Path, list[Path], Path]) -> None:
    page = files[2].read_text()
    assert "{{" not in page.replace("${{", "")
    assert not re.search(r'(src|href)="(?!data:|#)', page.split('id="data"')[0])
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert "<title>Speeches &amp; &lt;novels&gt;</title>" in page
    assert "default-src 'none'" in page


def test_holds_what_was_counted(files: tuple[Path, list[Path], Path]) -> None:
    results = Results.load(files[0])
    (shown,) = data_of(files[2].read_text())["sets"]
    assert [s["wer"] for s in shown["systems"]] == [f"{results.measurements[s.name].rate:.2f}" for s in results.systems]
    assert shown["total"] == len(shown["utterances"]) == 60
    first = shown["utterances"][0]
    for k, system in enumerate(results.systems):
        utterance = results.measurements[system.name].utterances[0]
        rebuilt = [e if isinstance(e, str) else e[2] for e in first["edits"][k]]
        assert " ".join(w for w in rebuilt if w) == utterance.hypothesis
        assert sum(not isinstance(e, str) for e in first["edits"][k]) == utterance.counts.errors
    assert len(shown["headlines"]) == 4
    assert all("p <" in h["sure"] or "p =" in h["sure"] for h in shown["headlines"])
    assert {c["name"] for c in shown["changes"]} >= {"rnnt ILME against rnnt BS", "aed ILME against aed SF"}


def test_speakers_come_hardest_first_with_their_counts(files: tuple[Path, list[Path], Path]) -> None:
    results = Results.load(files[0])
    panels = gather_set(results, transcripts=0, audio=0)["speakers"]
    assert [p["model"] for p in panels] == ["rnnt", "aed"]
    rnnt = panels[0]
    assert rnnt["total"] == len(rnnt["rows"]) == 9 and sum(r["utterances"] for r in rnnt["rows"]) == 60
    without = [r["rates"][0] for r in rnnt["rows"]]
    assert without == sorted(without, reverse=True)
    for place, system in zip(rnnt["systems"], results.systems, strict=False):
        counted = results.measurements[results.systems[place].name].by_speaker()
        assert results.systems[place] is system
        for row in rnnt["rows"]:
            assert row["words"] == counted[row["name"]].words
            assert row["rates"][place] == pytest.approx(counted[row["name"]].rate, abs=1e-3)
    assert re.fullmatch(r"ILME makes fewer errors than BS for .*speakers.*\.", rnnt["caption"])
    one = {i: replace(r, speaker="the same") for i, r in results.references.items()}
    assert gather_set(replace(results, references=one), transcripts=0, audio=0)["speakers"] == []


@needs_chromium
def test_many_speakers_are_shown_when_asked_for(files: tuple[Path, list[Path], Path], tmp_path: Path) -> None:
    results = Results.load(files[0])
    many = {i: replace(r, speaker=f"speaker-{k % 30}") for k, (i, r) in enumerate(results.references.items())}
    out = tmp_path / "many.html"
    out.write_text(build_report([replace(results, references=many, systems=results.systems[:1])]))
    count = 'document.querySelectorAll("[data-figure=speakers] .speaker").length'
    with Page() as browser:
        browser.open(out)
        assert browser.run(count) == 25
        browser.run('document.querySelector("#speaker-panels button").click()')
        assert browser.run(count) == 31
        assert browser.run('document.querySelector("#speaker-panels button")') is None
        assert browser.problems == []


def test_a_transcript_cannot_break_out_of_its_script(files: tuple[Path, list[Path], Path]) -> None:
    results = Results.load(files[0])
    first = next(iter(results.references))
    evil = {**results.references, first: replace(results.references[first], text="</script><b>x {{data}} \u2028")}
    page = build_report([replace(results, references=evil)])
    assert page.count("</script>") == 2
    assert data_of(page)["sets"][0]["total"] == 60


def test_only_so_many_transcripts_and_recordings(files: tuple[Path, list[Path], Path]) -> None:
    results = Results.load(files[0])
    few = gather_set(results, transcripts=5, audio=1)
    assert len(few["utterances"]) == 5 and few["total"] == 60
    assert sum(u["audio"] is not None for u in gather_set(results, transcripts=60, audio=2)["utterances"]) == 2
    assert sum(u["audio"] is not None for u in gather_set(results, transcripts=60, audio=9)["utterances"]) == 3


def test_audio_is_compressed_and_plays(files: tuple[Path, list[Path], Path], tmp_path: Path) -> None:
    import io

    import soundfile

    wav = files[0].parent / "novels-000.wav"
    uri = data_uri(wav)
    assert uri.startswith("data:audio/ogg;base64,") and len(uri) < wav.stat().st_size
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert rate in (16000, 48000) and abs(len(samples) / rate - 0.5) < 0.1
    small = tmp_path / "x.mp3"
    soundfile.write(small, samples, rate, format="MP3")
    assert data_uri(small) == "data:audio/mpeg;base64," + base64.b64encode(small.read_bytes()).decode()


def test_a_recording_that_cannot_be_read_is_told_and_the_rest_is_shown(
    files: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    results = Results.load(files[0])
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF and no more")
    ids = list(results.references)
    changed = {i: replace(r, audio=str(broken) if i == ids[0] else r.audio) for i, r in results.references.items()}
    rows = gather_set(replace(results, references=changed), transcripts=400, audio=400)["utterances"]
    by_id = {row["id"]: row for row in rows}
    assert by_id[ids[0]]["audio"] is None and "broken.wav cannot be read" in by_id[ids[0]]["noAudio"]
    assert sum(bool(row["audio"]) for row in rows) == sum(bool(r.audio) for r in changed.values()) - 1


def test_curves_come_from_training(files: tuple[Path, list[Path], Path], tmp_path: Path) -> None:
    series, over = gather_curves(files[1])
    assert [s["name"] for s in series] == ["rnnt, internal LM", "rnnt, source LM", "aed, internal LM"]
    assert over == "hours of training speech" and len(series[0]["points"]) == 39
    with pytest.raises(BadInputError, match=r"no metrics\.jsonl"):
        gather_curves([tmp_path])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    with pytest.raises(BadInputError, match="no internal-LM perplexity"):
        gather_curves([tmp_path])
    (tmp_path / "metrics.jsonl").write_text('{"step": \n{"step": 2}\n')
    with pytest.raises(BadInputError, match="line 1 is not JSON"):
        gather_curves([tmp_path])


def test_test_sets_are_kept_apart(files: tuple[Path, list[Path], Path]) -> None:
    results = Results.load(files[0])
    a, b = (replace(results, systems=results.systems[k : k + 1]) for k in (0, 1))
    other = replace(a, name="other", references=dict(list(a.references.items())[:30]))
    other = replace(other, systems=(replace(a.systems[0], hypotheses=dict.fromkeys(other.references, "x")),))
    groups = group_by_test_set([a, other, b])
    assert [(g.name, len(g.systems)) for g in groups] == [("novels test", 2), ("other", 1)]
    assert len(data_of(build_report(groups))["sets"]) == 2
    with pytest.raises(BadInputError, match="at least one results file"):
        build_report([])
    with pytest.raises(BadInputError, match="audio must not be negative"):
        ReportOptions(audio=-1)


@pytest.fixture(scope="module")
def page(files: tuple[Path, list[Path], Path]) -> Iterator[Page]:
    with Page() as browser:
        browser.open(files[2])
        yield browser


@needs_chromium
def test_every_figure_is_drawn(page: Page) -> None:
    drawn = page.run(
        """Object.fromEntries(["bars", "heat", "balance", "curves", "lengths", "speakers"].map((name) => [name,
        [...document.querySelectorAll(`[data-figure="${name}"]`)].map((f) => f.querySelectorAll("svg *").length)]))"""
    )
    assert len(drawn["bars"]) == 1 and drawn["bars"][0] > 40
    assert len(drawn["heat"]) == 5 and min(drawn["heat"]) > 15 and max(drawn["heat"]) > 200
    assert len(drawn["balance"]) == 5 and min(drawn["balance"]) > 10
    assert drawn["curves"][0] > 10 and drawn["lengths"][0] > 15
    assert len(drawn["speakers"]) == 2
    rows = page.run(
        '[...document.querySelectorAll("[data-figure=speakers] svg")].map((s) => s.querySelectorAll(".dot").length)'
    )
    assert rows == [4 * 10, 3 * 10]  # nine speakers and all of them, one dot for each method
    assert page.run('document.querySelectorAll("#stories .story svg .label-shares").length') > 20
    assert page.run('[...document.querySelectorAll("svg *")].some((e) => /NaN|undefined/.test(e.outerHTML))') is False
    assert page.run('document.querySelectorAll("#table tbody tr").length') == 7
    assert page.run('document.querySelectorAll("#words .wordlist li").length') > 5


@needs_chromium
def test_audio_controls_play(page: Page) -> None:
    assert page.run('document.querySelectorAll("#cards audio[controls]").length') == 3
    length = page.run(
        """new Promise((done) => { const a = document.querySelector("audio");
        a.onloadedmetadata = () => done(a.duration); a.onerror = () => done(-1); a.preload = "metadata"; a.load(); })"""
    )
    assert length == pytest.approx(0.5, abs=0.1)


@needs_chromium
def test_filters_work(page: Page) -> None:
    every = page.run('document.getElementById("count").textContent')
    assert every.startswith("6") and page.run('document.querySelectorAll("#cards .card").length') == 8
    type_in = """(() => { const f = document.getElementById("find"); f.value = %s; f.dispatchEvent(new Event("input"));
    return [...document.querySelectorAll("#cards .card .reference")].map((e) => e.textContent); })()"""
    found = page.run(type_in % '"Harpooneer"')
    assert len(found) == 5 and all("harpooneer" in text for text in found)
    assert page.run(type_in % '"no such word"') == []
    page.run(type_in % '""')
    choose = """(() => { const s = document.getElementById("show"); s.value = %s; s.onchange();
    return document.getElementById("count").textContent; })()"""
    fixed, broken = (int(page.run(choose % f'"{kind} 3 0"').split()[0]) for kind in ("fixed", "broken"))
    assert fixed > 20 > broken
    assert page.run(choose % '"audio"').startswith("3 of 60")
    assert page.run(choose % '"all"').startswith("60 of 60")
    page.run('document.getElementById("more").click()')
    assert page.run('document.querySelectorAll("#cards .card").length') == 16
    assert page.run('document.querySelectorAll("#cards .sub").length') > 3


@needs_chromium
def test_theme_story_and_words_can_be_changed(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.run('document.getElementById("theme").click()')
    assert page.run(colour) != light
    page.run('document.getElementById("theme").click()')
    assert page.run(colour) == light
    said = page.run('document.querySelector("#stories .said").textContent')
    page.run('(() => { const s = document.getElementById("story"); s.value = "1"; s.onchange(); })()')
    assert page.run('document.querySelector("#stories .said").textContent') != said
    words = page.run('document.getElementById("words").textContent')
    page.run('(() => { const s = document.getElementById("words-pair"); s.value = "0"; s.onchange(); })()')
    assert page.run('document.getElementById("words").textContent') != words
    assert page.problems == []


@needs_chromium
def test_fits_a_phone_in_the_dark(files: tuple[Path, list[Path], Path], tmp_path: Path) -> None:
    with Page(390, 800, phone=True, dark=True) as phone:
        phone.open(files[2])
        assert phone.run("document.documentElement.scrollWidth") <= 390
        background = phone.run("getComputedStyle(document.body).backgroundColor")
        assert max(int(n) for n in re.findall(r"\d+", background)[:3]) < 60
        phone.picture(tmp_path / "phone.png", whole=False)
        assert (tmp_path / "phone.png").stat().st_size > 10_000
        assert phone.problems == []


@needs_chromium
def test_a_bare_result_is_shown_without_empty_sections(files: tuple[Path, list[Path], Path], tmp_path: Path) -> None:
    results = Results.load(files[0])
    references = {i: replace(r, speaker="", seconds=0.0, audio="") for i, r in results.references.items()}
    system = replace(results.systems[0], tuning=None, details={}, parameters=0, dev_wer=None)
    out = tmp_path / "bare.html"
    out.write_text(build_report([replace(results, references=references, systems=(system,))]))
    with Page() as browser:
        browser.open(out)
        hidden = browser.run('[...document.querySelectorAll("section[hidden]")].map((s) => s.id)')
        assert sorted(hidden) == ["balance", "curves", "opening", "weights", "why"]
        assert browser.run('document.getElementById("by-speaker").hidden') is True
        assert browser.run('document.querySelectorAll("[data-figure=bars] .bar").length') == 1
        assert browser.run('document.querySelectorAll("#cards .card").length') == 8
        assert browser.problems == []
