"""Attacks on the reading of audio: odd places, names, headers, samples and cuts; and `ilme transcribe` with all."""

from __future__ import annotations

import functools
import io
import os
import socket
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal  # noqa: F401  (before memory is measured)
import soundfile
import torch

from ilme.data.audio import AudioError, audio_info, load_audio
from ilme.data.audio_stream import AudioStream
from ilme.recogniser.domain import Domain
from ilme.search.transducer import TransducerOptions
from ilme.workflows.transcribe import transcribe
from tests.attacks.cases import Case, attacks, check_call, check_command
from tests.checkpoints import noise, write_checkpoints, write_wave

DOMAIN = ("--domain", "domain")
MEMORY = 300e6  # bytes that reading any file of these tests may take
FORMATS = {
    "wav": ("WAV", "PCM_16"), "float.wav": ("WAV", "FLOAT"), "adpcm.wav": ("WAV", "IMA_ADPCM"),
    "wavex": ("WAVEX", "PCM_24"),
    "flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III"), "ogg": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"),
    "aiff": ("AIFF", "PCM_16"), "au": ("AU", "PCM_16"), "w64": ("W64", "PCM_16"), "rf64": ("RF64", "PCM_16"),
    "nist": ("NIST", "PCM_16"), "caf": ("CAF", "PCM_16"),
}  # fmt: skip


# --- places and names -------------------------------------------------------------------------------------------------


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.wav")
    return folder / "pipe.wav"


def listener(folder: Path) -> Path:
    here = Path.cwd()
    os.chdir(folder)  # the path of a socket is at most 108 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket.wav")
    finally:
        os.chdir(here)
    return folder / "socket.wav"


def link(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "link.wav").symlink_to(target)
        return folder / "link.wav"

    return make


def below_a_file(folder: Path) -> Path:
    return write_wave(folder / "a.wav", 0.1) / "b.wav"


def nested(folder: Path) -> Path:
    (folder / "sub.wav").mkdir()
    return folder / "sub.wav"


def named(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name


def content(data: bytes, name: str = "bad.wav") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


PLACES = [
    Case("a missing file", named("missing.wav"), AudioError, ("there is no file", "missing.wav")),
    Case("a folder", nested, AudioError, ("sub.wav", "is a folder")),
    Case("a pipe", pipe, AudioError, ("pipe.wav", "is a pipe")),
    Case("a socket", listener, AudioError, ("socket.wav", "is a socket")),
    Case("a link to /dev/zero", link("/dev/zero"), AudioError, ("link.wav", "is a device")),
    Case("a link to /dev/null", link("/dev/null"), AudioError, ("link.wav", "is a device")),
    Case("a link to a folder", link("."), AudioError, ("link.wav", "is a folder")),
    Case("a link to itself", link("link.wav"), AudioError, ("link.wav", "cannot be opened")),
    Case("a link to nothing", link("nowhere.wav"), AudioError, ("there is no file", "link.wav")),
    Case("a name below a file", below_a_file, AudioError, ("there is no file", "b.wav")),
    Case("a missing name of 250 characters", named("x" * 246 + ".wav"), AudioError, ("there is no file",)),
    Case("a name of 300 characters", named("x" * 300), AudioError, ("cannot be opened", "too long")),
    Case("a path of 6,000 characters", named("x/" * 3000), AudioError, ("cannot be opened", "too long")),
    Case("a zero byte in the name", named("a\0.wav"), AudioError, ("there is no file",)),
    Case("zero bytes", content(b""), AudioError, ("bad.wav", "zero bytes")),
    Case("a file of /proc without a size", lambda _: Path("/proc/self/status"), AudioError, ("/proc/self/status",)),
]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = write_wave(tmp_path / "secret.wav", 0.1)
    file.chmod(0)
    with pytest.raises(AudioError, match=r"secret\.wav cannot be opened: Permission denied"):
        load_audio(file)


def test_a_file_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_wave(tmp_path / "secret.wav", 0.1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(AudioError, match=r"secret\.wav cannot be opened: Permission denied") as caught:
        load_audio(file)
    assert caught.value.reason == "unreadable"


ODD_NAMES = [
    "-", "--", "-rf.wav", "--domain.wav", "a=b.wav", "model=x.wav", "--model=x.wav", "with\nnewline.wav", "tab\t.wav",
    "a b 'c' \"d\".wav", "%s%n.wav", "$(reboot).wav", "a[1].wav", "star*.wav", "what?.wav", "ünïcödé-日本語-🐋.wav",
    "x" * 246 + ".wav", ".wav", "dots...wav", "no suffix", "[json].wav", "null", "true", "1e5", "{}", "C:\\x.wav",
    "é.wav", "e\u0301.wav", "\u202egpj.wav", "\x1b[31mred.wav", b"caf\xe9.wav".decode("utf-8", "surrogateescape"),
    b"\xff\xfe.wav".decode("utf-8", "surrogateescape"),
]  # fmt: skip


# --- headers ----------------------------------------------------------------------------------------------------------


def riff(
    *, rate: int = 16000, channels: int = 1, bits: int = 16, tag: int = 1, align: int | None = None, frames: int = 800,
    size: int | None = None, before: bytes = b"", data: bytes | None = None,
) -> bytes:  # fmt: skip
    """A WAV file whose header says anything; `size` is what it says of the samples' bytes."""
    if data is None:
        data = np.random.default_rng(0).integers(-3000, 3000, frames, np.int16).tobytes()
    align = channels * bits // 8 if align is None else align
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    body = b"WAVE" + before + chunk(b"fmt ", form) + chunk(b"data", data, size)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def chunk(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(data) if size is None else size) + data


def flac(**fields: int) -> bytes:
    """A FLAC file whose STREAMINFO says anything: rate, channels, bits, samples."""
    whole = bytearray(encoded("flac"))
    packed = int.from_bytes(whole[18:26], "big")
    for name, (shift, width) in {"rate": (44, 20), "channels": (41, 3), "bits": (36, 5), "samples": (0, 36)}.items():
        if name in fields:
            packed = packed & ~(((1 << width) - 1) << shift) | fields[name] << shift
    whole[18:26] = packed.to_bytes(8, "big")
    return bytes(whole)


@functools.cache
def encoded(kind: str, seconds: float = 0.5) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, noise(seconds), 16000, format=FORMATS[kind][0], subtype=FORMATS[kind][1])
    return out.getvalue()


BAD_RATES = [0, 1, 7, 100, 999, 768_001, 1_000_000, 15_999_989, 2**31 - 1, 2**31, 2**32 - 1]
GOOD_RATES = [1000, 1001, 7999, 8000, 11025, 15991, 16001, 44056, 65521, 65537, 96001, 191_999, 767_999, 768_000]
HEADERS = [
    *(Case(f"a rate of {rate}", content(riff(rate=rate)), AudioError, ("bad.wav",)) for rate in BAD_RATES),
    Case("no channel", content(riff(channels=0, align=2)), AudioError, ("bad.wav",)),
    *(
        Case(f"{n} channels", content(riff(channels=n, data=bytes(8 * n))), AudioError, ("bad.wav",))
        for n in (257, 1000, 1025, 65535)
    ),
    *(Case(f"{n} bits", content(riff(bits=n)), AudioError, ("bad.wav",)) for n in (0, 255, 65535)),
    *(
        Case(f"format tag {tag:#x}", content(riff(tag=tag)), AudioError, ("bad.wav",))
        for tag in (0, 0x31, 0x55, 0x9999, 0xFFFE)
    ),
    Case("samples of 4 GB promised", content(riff(size=0xFFFFFFF0)), AudioError, ("bad.wav", "cut off")),
    Case("samples of 2 GB promised", content(riff(size=0x7FFFFFF0)), AudioError, ("bad.wav", "cut off")),
    Case("no samples", content(riff(data=b"")), AudioError, ("bad.wav", "no samples")),
    Case("no chunk of samples", content(riff()[:36]), AudioError, ("bad.wav",)),
    Case(
        "samples before their format",
        content(b"RIFF\0\1\0\0WAVE" + chunk(b"data", bytes(99))),
        AudioError,
        ("bad.wav",),
    ),
    Case("an empty format", content(b"RIFF\0\1\0\0WAVE" + chunk(b"fmt ", b"")), AudioError, ("bad.wav",)),
    Case("a format of 2 GB", content(b"RIFF\0\1\0\0WAVE" + chunk(b"fmt ", b"", 2**31 - 1)), AudioError, ("bad.wav",)),
    Case("a chunk of 4 GB before", content(riff(before=chunk(b"LIST", b"x", 2**32 - 1))), AudioError, ("bad.wav",)),
    Case("only RIFF", content(b"RIFF"), AudioError, ("bad.wav",)),
    Case("a film", content(b"RIFF\0\1\0\0AVI LIST" + bytes(99)), AudioError, ("bad.wav",)),
    *(Case(f"a FLAC of rate {r}", content(flac(rate=r)), AudioError, ("bad.wav",)) for r in (0, 1, 999, 2**20 - 1)),
    *(
        Case(f"a FLAC of {n} promised samples", content(flac(samples=n)), AudioError, ("bad.wav",))
        for n in (8001, 10**6, 2**36 - 1)
    ),
    Case("a FLAC of 8 promised channels", content(flac(channels=7)), AudioError, ("bad.wav",)),
]
ACCEPTED = [
    *(Case(f"a rate of {rate}", content(riff(rate=rate)), 0) for rate in GOOD_RATES),
    *(Case(f"{n} channels", content(riff(channels=n, data=bytes(1600 * n))), 0) for n in (1, 2, 6, 64, 256)),
    *(Case(f"a size of {size:#x}, as of a pipe", content(riff(size=size)), 0) for size in (0x7FFFFFFF, 0xFFFFFFFF)),
    Case("bytes after the end", content(riff() + b"TAG" + bytes(125)), 0),
    Case("silence", content(riff(data=bytes(3200))), 0),
    Case("one sample", content(riff(data=b"\1\0")), 0),
    Case("full scale", content(riff(data=b"\xff\x7f" * 800)), 0),
    *(Case(f"a whole {kind}", content(encoded(kind), f"good.{kind}"), 0) for kind in FORMATS),
    *(Case(f"a {kind} named .wav", content(encoded(kind)), 0) for kind in ("flac", "mp3", "ogg", "opus")),
]


# --- samples ----------------------------------------------------------------------------------------------------------


def floats(samples: Sequence[Any], *, bits: int = 32, channels: int = 1) -> Callable[[Path], Path]:
    data = np.asarray(samples, np.float32 if bits == 32 else np.float64).tobytes()
    return content(riff(tag=3, bits=bits, channels=channels, data=data))


BAD_SAMPLES = [
    Case("all NaN", floats([np.nan] * 800), AudioError, ("bad.wav", "800 NaN")),
    Case("one NaN at the end", floats([0.0] * 799 + [np.nan]), AudioError, ("bad.wav", "1 NaN")),
    Case("infinite", floats([0.1, np.inf, -np.inf] * 99), AudioError, ("bad.wav", "198 NaN or infinite")),
    Case("beyond float32", floats([1e300, -1e300] * 99, bits=64), AudioError, ("bad.wav",)),
    Case("the largest floats", floats([3e38, -3e38] * 99), AudioError, ("bad.wav", "absurdly large")),
    Case("channels that overflow", floats([3e38] * 800, channels=2), AudioError, ("bad.wav",)),
    Case("NaN in the second channel", floats([0.0, np.nan] * 400, channels=2), AudioError, ("bad.wav", "NaN")),
    Case("infinities that cancel", floats([np.inf, -np.inf] * 400, channels=2), AudioError, ("bad.wav", "NaN")),
]
OTHER_FILES = {
    "text": b"this is no audio, but a note about it\n" * 20,
    "HTML": b"<!doctype html><title>404 Not Found</title>" * 10,
    "JSON": b'{"audio": null}' * 30,
    "XML": b'<?xml version="1.0"?><a/>' * 30,
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(400),
    "JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(400),
    "ZIP": b"PK\x03\x04" + bytes(400),
    "PDF": b"%PDF-1.7\n" + bytes(400),
    "ELF": b"\x7fELF\x02\x01\x01" + bytes(400),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(400),
    "MP4": b"\x00\x00\x00\x20ftypisom" + bytes(400),
    "Matroska": b"\x1a\x45\xdf\xa3" + bytes(400),
    "SQLite": b"SQLite format 3\x00" + bytes(400),
    "pickle": b"\x80\x04cposix\nsystem\n(S'false'\ntR." + bytes(400),
    "zeros": bytes(4000),
    "one byte": b"R",
    "newlines": b"\n" * 4000,
    "random bytes": np.random.default_rng(1).bytes(4000),
    "an Ogg of nothing": b"OggS" + bytes(400),
    "a FLAC of nothing": b"fLaC" + bytes(400),
    "an ID3 tag alone": b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(400),
    "an AIFF of nothing": b"FORM" + bytes(4) + b"AIFF" + bytes(400),
    "an AU of nothing": b".snd" + b"\xff" * 400,
    "a CAF of nothing": b"caff" + bytes(400),
    "a SPHERE of nothing": b"NIST_1A\n   1024\n" + bytes(400),
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 32044\n",
    "an AppleDouble file": b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X" + bytes(400),
}
OTHERS = [Case(kind, content(data), AudioError, ("bad.wav",)) for kind, data in OTHER_FILES.items()]
OTHERS += [
    Case("a bare file of samples", content(bytes(4000), "bad.raw"), AudioError, ("bad.raw",)),
    Case("text named .mp3", content(OTHER_FILES["text"], "bad.mp3"), AudioError, ("bad.mp3",)),
    Case("text named .flac", content(OTHER_FILES["text"], "bad.flac"), AudioError, ("bad.flac",)),
]
LENGTHS = (3, 20, 60, 0.25, 0.5, 0.9, -100, -20)  # bytes from the start, shares, bytes from the end
CUTS = [
    Case(
        f"a {kind} cut to {length:g}" if length > 0 else f"a {kind} without {-length} bytes",
        content(encoded(kind)[: int(length * len(encoded(kind))) if 0 < length < 1 else int(length)], f"cut.{kind}"),
        AudioError,
        (f"cut.{kind}",),
        full=length not in (20, 0.5, -100),
    )
    for kind in FORMATS
    for length in LENGTHS
]  # fmt: skip
REFUSED = [*PLACES, *HEADERS, *BAD_SAMPLES, *OTHERS, *CUTS]


def stream(path: Path) -> list[Any]:
    return list(AudioStream(path))


@attacks(REFUSED)
def test_what_cannot_be_read_says_why(case: Case, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        for number, reader in enumerate((load_audio, stream)):
            (tmp_path / str(number)).mkdir()
            error = check_call(case, tmp_path / str(number), reader)
            assert error.reason and "\n" not in str(error).replace(str(tmp_path), "")
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


@attacks(ACCEPTED)
def test_what_is_odd_but_sound_is_read(case: Case, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        whole = check_call(case, tmp_path, load_audio)
        pieces = np.concatenate(check_call(case, tmp_path, stream))
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    info = audio_info(case.make(tmp_path))
    assert abs(len(whole) - info.seconds * 16000) < 2 and np.isfinite(whole).all()
    np.testing.assert_allclose(pieces, whole, atol=2e-4)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_any_name_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(riff())
    assert len(load_audio(tmp_path / name)) == audio_info(tmp_path / name).samples == 800
    assert sum(map(len, stream(tmp_path / name))) == 800


def test_a_file_called_dash_is_not_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "-").write_bytes(riff())
    monkeypatch.chdir(tmp_path)
    assert len(load_audio("-")) == 800


# Bytes of a header changed at random: any outcome but an error of another kind, a hang, or much memory.
FLIPS = [(kind, seed) for kind in FORMATS for seed in range(12)]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [pytest.param(k, s, marks=(pytest.mark.attacks,) if s > 1 else (), id=f"{k}-{s}") for k, s in FLIPS],
)
def test_a_damaged_header_is_read_or_refused(kind: str, seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng([seed, *kind.encode()])
    data = bytearray(encoded(kind))
    for place in draw.integers(0, min(120, len(data)), 1 + seed):
        data[place] = draw.integers(256)
    case = Case("flipped", content(bytes(data), f"flip.{kind}"), 0)

    def read(path: Path) -> None:
        try:
            whole = load_audio(path)
        except AudioError as error:
            assert "flip" in str(error)
            return
        assert np.isfinite(whole).all() and sum(map(len, stream(path))) == len(whole)

    tracemalloc.start()
    try:
        check_call(case, tmp_path, read)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


ARRAYS = [
    Case("None", lambda _: None, AudioError, ("samples",)),
    Case("a number", lambda _: 1.0, AudioError, ("samples",)),
    Case("bytes", lambda _: b"RIFF", AudioError, ("samples",)),
    Case("a dict", lambda _: {"array": [0.0]}, AudioError, ("samples",)),
    Case("texts", lambda _: ["a", "b"], AudioError, ("samples",)),
    Case("lists of different lengths", lambda _: [[0.0], [0.0, 1.0]], AudioError, ("samples",)),
    Case("an empty array", lambda _: np.zeros(0, np.float32), AudioError, ("no samples",)),
    Case("no channel", lambda _: np.zeros((0, 9), np.float32), AudioError, ("no channel",)),
    Case("three axes", lambda _: np.zeros((1, 1, 9), np.float32), AudioError, ("(1, 1, 9)",)),
    Case("samples before channels", lambda _: np.zeros((800, 2), np.float32), AudioError, ("transpose",)),
    Case("NaN", lambda _: np.full(9, np.nan), AudioError, ("NaN",)),
    Case("infinite", lambda _: np.full(9, np.inf), AudioError, ("infinite",)),
    Case("huge", lambda _: np.full(9, 1e200), AudioError, ("infinite",)),
    Case("complex", lambda _: np.zeros(9, np.complex64), AudioError, ("complex64",)),
    Case("truth values", lambda _: np.zeros(9, bool), AudioError, ("bool",)),
    Case("unsigned", lambda _: np.zeros(9, np.uint8), AudioError, ("uint8",)),
    Case("objects", lambda _: np.array([None, 1]), AudioError, ("object",)),
    Case("times", lambda _: np.zeros(9, "datetime64[s]"), AudioError, ("datetime64",)),
    Case("a sparse tensor", lambda _: torch.eye(3).to_sparse(), AudioError, ("samples",)),
    Case("a tensor without data", lambda _: torch.zeros(9, device="meta"), AudioError, ("samples",)),
    Case("a half-precision tensor", lambda _: torch.zeros(9, dtype=torch.bfloat16), 0),
    Case("a tensor with a gradient", lambda _: torch.zeros(9, requires_grad=True), 0),
    Case("a list", lambda _: [0.0, 0.5], 0),
    Case("int32", lambda _: np.zeros(9, np.int32), 0),
]


@attacks(ARRAYS)
@pytest.mark.filterwarnings("ignore")  # of NumPy, about numbers that do not fit
def test_arrays(case: Case, tmp_path: Path) -> None:
    check_call(case, tmp_path, load_audio)


@pytest.mark.parametrize("rate", [-1, 1, 999, 768_001, 2**31, 10**12])
def test_rates_of_arrays(rate: int) -> None:
    with pytest.raises(AudioError, match=f"source_rate must be 1,000 to 768,000 samples a second, not {rate}"):
        load_audio(np.zeros(9, np.float32), source_rate=rate)


# --- ilme transcribe --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("model"), ["rnnt"]) / "rnnt"


@pytest.mark.parametrize("printed", [True, False])
def test_one_run_with_every_bad_file(printed: bool, model: Path, tmp_path: Path) -> None:
    """Each is reported under its name, and the good ones between them are done."""
    bad: list[Path] = []
    for number, case in enumerate(REFUSED):
        folder = tmp_path / f"case{number}"
        folder.mkdir()
        path = case.make(folder)
        if "\0" not in str(path) and (printed or path.name not in {p.name for p in bad}):  # --out: one of each name
            bad.append(path)
    good = [write_wave(tmp_path / f"good{k}.wav", 0.4, k) for k in range(3)]
    inputs = [good[0], *bad[:50], good[1], *bad[50:], good[2]]
    arguments = ["transcribe", *map(str, inputs), "--model", str(model)]
    words = tuple(f"ilme transcribe: {path}: " for path in bad)
    if printed:
        run = check_command(Case("all", lambda _: arguments, 1, words), tmp_path)
        assert [line.split(":")[0] for line in run.out.splitlines()] == list(map(str, good))
    else:
        done = tuple(f"out/good{k}.txt" for k in range(3))
        check_command(Case("all", lambda _: [*arguments, "--out", str(tmp_path / "out")], 1, words, done), tmp_path)
        assert len(list((tmp_path / "out").rglob("*.txt"))) == 3


def test_odd_names_are_transcribed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ODD_NAMES:
        (tmp_path / "in" / name).write_bytes(riff())
    out = tmp_path / "out"
    outcomes = transcribe([tmp_path / "in" / name for name in ODD_NAMES], model=model, out=out, formats=["txt", "json"])
    assert [o.error for o in outcomes] == [""] * len(ODD_NAMES)
    assert len(list(out.rglob("*.txt"))) == len(list(out.rglob("*.json"))) == len(ODD_NAMES)


@attacks(
    [
        Case("a name with a dash, after --", lambda _: ["--", "-a.wav"], 0),
        Case("a name like an option, after --", lambda _: ["--", "--domain.wav"], 0),
        Case("a name with =", lambda _: ["a=b.wav"], 0),
        Case("a glob", lambda _: ["--", "a=*.wav"], 0),
        Case("an empty folder beside a good file", lambda _: ["empty", "a=b.wav"], 1, ("empty: ", "is a folder")),
        Case("a glob for nothing beside a good file", lambda _: ["z*.wav", "a=b.wav"], 1, ("z*.wav: ", "no file")),
        Case("an empty name beside a good file", lambda _: ["", "a=b.wav"], 1, ("is a folder",)),
        Case("one file under four names", lambda f: ["a=b.wav", str(f / "a=b.wav"), "empty/../a=b.wav"], 0),
    ]
)
def test_names_on_the_command_line(case: Case, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("-a.wav", "--domain.wav", "a=b.wav"):
        (tmp_path / name).write_bytes(riff())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["transcribe", "--model", str(model), "--out", "out"]
    check_command(Case(case.name, lambda f: [*words, *case.make(f)], case.expect, case.words), tmp_path)
    assert len(list(tmp_path.rglob("*.txt"))) == 1


@attacks(
    [
        Case("an empty folder", lambda _: ["empty"], 1, ("empty holds no audio file", ".wav")),
        Case("a glob for nothing", lambda _: ["z*.wav"], 1, ("no file matches z*.wav",)),
        Case("an empty name", lambda _: [""], 1, ("no file matches ''",)),
        Case("no name", lambda _: [], 2, ("AUDIO must be given",)),
        Case("a misspelt option", lambda _: ["--domian", "x"], 2, ("did you mean --domain?",)),
    ]
)
def test_nothing_to_transcribe(case: Case, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["transcribe", "--model", str(model), "--out", "out"]
    check_command(Case(case.name, lambda f: [*words, *case.make(f)], case.expect, case.words), tmp_path)
    assert not (tmp_path / "out").exists()


@attacks(
    [
        Case("two suffixes", lambda _: ["a.wav", "a.flac"], 0, done=("out/a.wav.txt", "out/a.flac.txt")),
        Case(
            "a suffix that is a name",
            lambda _: ["a.wav", "a.flac", "a.wav.mp3"],
            0,
            done=("out/a.wav.txt", "out/a.flac.txt", "out/a.wav.mp3.txt"),
        ),
        Case(
            "two files of one name",
            lambda _: ["p/same.wav", "q/same.wav"],
            1,
            ("p/same.wav and q/same.wav", "name the"),
        ),
        Case("two folders", lambda _: ["p", "q"], 1, ("p/same.wav and q/same.wav", "out/same.txt", "name the folder")),
        Case("the folder above", lambda _: ["."], 0, done=("out/p/same.txt", "out/q/same.txt", "out/a.wav.txt")),
        Case("a glob", lambda _: ["*/same.wav"], 0, done=("out/p/same.txt", "out/q/same.txt")),
        Case("a baseline's name", lambda _: ["a.wav", "a.baseline.wav", *DOMAIN, "--baseline"], 1, ("a.baseline",)),
    ]
)
def test_no_transcript_overwrites_another(
    case: Case, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.wav", "a.flac", "a.wav.mp3", "a.baseline.wav", "p/same.wav", "q/same.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(riff())
    Domain(str(model), kind="rnnt", search=TransducerOptions(beam=2)).save(tmp_path / "domain")
    monkeypatch.chdir(tmp_path)
    given = case.make(tmp_path)
    words = ["transcribe", *(() if "--domain" in given else ("--model", str(model))), "--out", "out"]
    arguments = lambda _: [*words, *given]  # noqa: E731
    check_command(Case(case.name, arguments, case.expect, case.words, case.done), tmp_path)
