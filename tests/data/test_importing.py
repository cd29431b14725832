"""Every layout imports to the same ids and texts; what is bad is listed; nothing is lost."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ilme.data.batches import cut_text, cut_waveform
from ilme.data.corpora import detect_layout, read_corpus
from ilme.data.importing import Checks, ImportReport, import_corpus
from ilme.data.manifests import open_cuts
from ilme.errors import BadInputError
from tests.data.speech_corpora import (
    speech,
    utterances,
    write_commonvoice,
    write_folder,
    write_kaldi,
    write_librispeech,
    write_nemo,
)

WRITERS = {
    "librispeech": write_librispeech,
    "commonvoice": write_commonvoice,
    "kaldi": write_kaldi,
    "nemo": write_nemo,
    "folder": write_folder,
}


def rejected(out: Path) -> dict[str, str]:
    with (out / "rejected.jsonl").open(encoding="utf-8") as lines:
        return {row["id"]: row["reason"] for row in map(json.loads, lines)}


def run(source: Path, out: Path, **options: Any) -> ImportReport:
    report = import_corpus(str(source), out, **options)
    assert report.accepted + report.rejected == report.found
    assert report.accepted == sum(1 for _ in open_cuts(out))
    assert sum(report.reasons.values()) == report.rejected == len((out / "rejected.jsonl").read_bytes().splitlines())
    assert not list(out.glob(".*"))
    return report


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_keeps_ids_texts_speakers_and_sound(tmp_path: Path, layout: str) -> None:
    spoken = utterances(8)
    source = WRITERS[layout](tmp_path / "corpus", spoken)
    assert detect_layout(str(source)) == layout
    report = run(source, tmp_path / "out")
    assert (report.found, report.accepted, report.reasons) == (8, 8, {})
    assert report.seconds == pytest.approx(sum(s.seconds for s in spoken), rel=1e-3)
    cuts = {cut.id: cut for cut in open_cuts(tmp_path / "out")}
    for item in spoken:
        cut = cuts[f"{item.speaker}-{item.id}" if layout == "folder" else item.id]
        assert cut_text(cut) == item.text
        assert cut.supervisions[0].speaker == (None if layout == "folder" else item.speaker)
        sound = cut_waveform(cut, item.rate).numpy()
        assert len(sound) == len(item.samples)
        assert np.corrcoef(sound, item.samples)[0, 1] > 0.95


def test_fields_and_splits_are_kept(tmp_path: Path) -> None:
    spoken = utterances(8)
    report = run(write_nemo(tmp_path / "nemo", spoken), tmp_path / "out")
    assert report.splits == {"dev": 2, "train": 6}
    assert sum(1 for _ in open_cuts(tmp_path / "out" / "cuts-train.jsonl.gz")) == 6
    cut = next(iter(open_cuts(tmp_path / "out")))
    assert cut.supervisions[0].custom == {"call": spoken[0].chapter, "split": "dev"}
    run(write_librispeech(tmp_path / "libri", spoken), tmp_path / "out2")
    cut = next(iter(open_cuts(tmp_path / "out2")))
    assert cut.supervisions[0].custom == {"chapter": spoken[0].chapter, "subset": "dev-tiny"}


def test_kaldi_segments_are_cut_out_of_the_recording(tmp_path: Path) -> None:
    spoken = utterances(5)
    report = run(write_kaldi(tmp_path / "kaldi", spoken, segments=True), tmp_path / "out")
    assert report.accepted == 5
    for cut, item in zip(open_cuts(tmp_path / "out"), spoken, strict=True):
        assert np.abs(cut_waveform(cut, 16000).numpy() - item.samples).max() < 1e-3


def test_several_channels_and_other_rates_import(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    left, right = speech(1.2, 1, 44100), speech(1.2, 2, 44100)
    soundfile.write(folder / "stereo.wav", np.stack([left, right], axis=1), 44100)
    (folder / "stereo.txt").write_text("two channels")
    assert run(folder, tmp_path / "out").accepted == 1
    cut = next(iter(open_cuts(tmp_path / "out")))
    assert cut.num_channels == 2
    assert len(cut_waveform(cut, 16000)) == 19200


def test_the_same_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_nemo(tmp_path / "corpus", utterances(6))
    run(source, tmp_path / "a", workers=1)
    run(source, tmp_path / "b", workers=3)
    for name in ("cuts.jsonl.gz", "rejected.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def bad_corpus(folder: Path) -> dict[str, str]:
    """A NeMo corpus with one fault in each utterance but the first; the reason expected for each."""
    spoken = utterances(12)
    write_nemo(folder, spoken, extension="wav")
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    path = [folder / line["audio_filepath"] for line in lines]
    reasons: dict[str, str] = {}

    def expect(i: int, reason: str) -> None:
        reasons[spoken[i].id] = reason

    path[1].write_bytes(path[1].read_bytes()[:9000])
    expect(1, "truncated")
    path[2].write_bytes(b"")
    expect(2, "zero bytes")
    soundfile.write(path[3], np.zeros(20000), 16000)
    lines[3]["duration"] = 1.25
    expect(3, "silent")
    lines[4]["text"] = ""
    expect(4, "text missing")
    lines[5]["duration"] *= 1.06
    expect(5, "wrong duration")
    lines[6]["text"] = "very much more than anyone could ever say " * 5
    expect(6, "too fast")
    path[7].unlink()
    expect(7, "missing")
    path[8].write_bytes(b"<html>not found</html>" * 50)
    expect(8, "not audio")
    soundfile.write(path[9], speech(0.05, 0), 16000)
    del lines[9]["duration"]
    expect(9, "too short")
    lines[10]["text"] = "?!…"
    expect(10, "text missing")
    soundfile.write(path[11], np.full(16000, np.nan, np.float32), 16000, subtype="FLOAT")
    lines[11]["duration"] = 1.0
    expect(11, "not finite")
    (folder / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return reasons


def test_each_fault_has_its_reason(tmp_path: Path) -> None:
    expected = bad_corpus(tmp_path / "corpus")
    report = run(tmp_path / "corpus", tmp_path / "out")
    assert rejected(tmp_path / "out") == expected
    assert (report.found, report.accepted) == (12, 1)
    details = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert all(row["detail"] for row in details)


def test_a_duration_within_five_percent_passes(tmp_path: Path) -> None:
    write_nemo(tmp_path / "corpus", utterances(1))
    manifest = tmp_path / "corpus" / "manifest.jsonl"
    row = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**row, "duration": row["duration"] * 1.04}))
    assert run(tmp_path / "corpus", tmp_path / "out").accepted == 1


def test_a_click_in_silence_is_still_silence_and_quiet_speech_is_not(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", utterances(3))
    first, second, _ = sorted(folder.rglob("*.ogg"))
    hiss = 1e-4 * np.random.default_rng(0).standard_normal(20_000)
    hiss[5000] = 0.9
    soundfile.write(first.with_suffix(".wav"), hiss, 16000)
    soundfile.write(second.with_suffix(".wav"), 0.05 * speech(1.5, 0), 16000)
    first.unlink()
    second.unlink()
    assert rejected_after(folder, tmp_path / "out") == {f"100-{first.stem}": "silent"}


def test_strict_stops_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    bad_corpus(tmp_path / "corpus")
    with pytest.raises(BadInputError, match="truncated"):
        import_corpus(str(tmp_path / "corpus"), tmp_path / "out", strict=True)
    assert list((tmp_path / "out").iterdir()) == []


def test_duplicates_orphans_and_commands_are_listed(tmp_path: Path) -> None:
    spoken = utterances(3)
    libri = write_librispeech(tmp_path / "libri", spoken)
    transcript = next(libri.rglob("*.trans.txt"))
    transcript.write_text(transcript.read_text() * 2 + "nonsense line\n")
    soundfile.write(transcript.parent / "100-10-9999.flac", speech(1, 0), 16000)
    report = run(libri, tmp_path / "out")
    assert report.reasons == {"duplicate id": 1, "bad manifest line": 1, "text missing": 1}

    kaldi = write_kaldi(tmp_path / "kaldi", spoken)
    with (kaldi / "wav.scp").open("a") as file:
        file.write("dangerous touch /tmp/never |\n")
    with (kaldi / "text").open("a") as file:
        file.write("dangerous do this\norphan no audio\n")
    assert run(kaldi, tmp_path / "out2").accepted == 3
    assert rejected(tmp_path / "out2") == {"dangerous": "not a file", "orphan": "missing"}

    folder = write_folder(tmp_path / "folder", spoken)
    (folder / "lonely.txt").write_text("text without audio")
    assert rejected_after(folder, tmp_path / "out3") == {"lonely": "missing"}


def rejected_after(source: Path, out: Path) -> dict[str, str]:
    run(source, out)
    return rejected(out)


def test_bad_segments_are_listed(tmp_path: Path) -> None:
    kaldi = write_kaldi(tmp_path / "kaldi", utterances(3), segments=True)
    segments = (kaldi / "segments").read_text().splitlines()
    names = [line.split()[0] for line in segments]
    bad = [f"{names[0]} call 5000 5001", f"{names[1]} call 2.0 1.0", f"{names[2]} call one two"]
    (kaldi / "segments").write_text("\n".join(bad))
    reasons = rejected_after(kaldi, tmp_path / "out")
    assert reasons == {names[0]: "bad segment", names[1]: "bad segment", names[2]: "bad manifest line"}


def test_odd_encodings_line_ends_and_marks(tmp_path: Path) -> None:
    spoken = utterances(4)
    folder = write_folder(tmp_path / "folder", spoken)
    texts = sorted(folder.rglob("*.txt"))
    texts[0].write_bytes(b"\xef\xbb\xbfthe caf\xc3\xa9\r\n")
    texts[1].write_bytes("the café".encode("utf-16"))
    texts[2].write_bytes("the café".encode("latin-1"))
    texts[3].write_bytes(b"\x00t\x00h\x00e")
    assert set(rejected_after(folder, tmp_path / "out").values()) == {"bad encoding"}
    assert [cut_text(cut) for cut in open_cuts(tmp_path / "out")] == ["the café", "the café"]

    nemo = write_nemo(tmp_path / "nemo", spoken)
    lines = (nemo / "manifest.jsonl").read_bytes().splitlines()
    lines[1] = lines[1].replace(b'"text": "', b'"text": "caf\xe9 ')
    (nemo / "manifest.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines) + b"\r\n")
    assert rejected_after(nemo, tmp_path / "out2") == {"manifest.jsonl:3": "bad encoding"}


def test_lines_of_a_hundred_thousand_characters(tmp_path: Path) -> None:
    spoken = utterances(3)
    nemo = write_nemo(tmp_path / "nemo", spoken)
    lines = (nemo / "manifest.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    lines[0] = json.dumps({**row, "text": "word " * 20_000})
    lines[1] = "[" * 100_000
    (nemo / "manifest.jsonl").write_text("\n".join(lines))
    assert sorted(rejected_after(nemo, tmp_path / "out").values()) == ["bad manifest line", "too fast"]
    assert (tmp_path / "out" / "rejected.jsonl").stat().st_size < 10_000


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    line=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=20),
            lambda inner: st.dictionaries(
                st.sampled_from(["audio_filepath", "duration", "text", "offset", "speaker", "id", "x"]), inner
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_manifest_line_is_reported_and_never_a_crash(tmp_path_factory: pytest.TempPathFactory, line: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "manifest.jsonl").write_bytes(b'{"audio_filepath": "absent.wav", "text": "a"}\n' + line)
    report = run(folder, folder / "out")
    assert report.accepted == 0
    assert report.found >= 1


@pytest.mark.parametrize("layout", WRITERS)
def test_random_bytes_in_place_of_every_file(tmp_path: Path, layout: str) -> None:
    """Half the files of a corpus are overwritten: each utterance is still accounted for, or the error is named."""
    random = np.random.default_rng(3)
    source = WRITERS[layout](tmp_path / "corpus", utterances(8))
    for path in sorted(p for p in source.rglob("*") if p.is_file())[::2]:
        path.write_bytes(random.bytes(int(random.integers(1, 3000))))
    try:
        report = run(source, tmp_path / "out", layout=layout)
    except BadInputError as error:
        assert str(source) in str(error)
    else:
        assert report.rejected > 0


def test_wrong_extensions_are_read_by_content(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", utterances(2))
    first, second = sorted(folder.rglob("*.ogg"))
    first.rename(first.with_suffix(".wav"))
    second.write_bytes(b"\x89PNG" + second.read_bytes()[4:])
    report = run(folder, tmp_path / "out")
    assert (report.accepted, report.reasons) == (1, {"not audio": 1})


def test_sources_that_are_no_corpus_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / "table.tsv").write_text("a\tb\n1\t2\n")
    (tmp_path / "nothing.jsonl").write_text("\n\n")
    for source, message in (
        ("absent", "no corpus"),
        ("empty", "no known layout"),
        ("notes.md", "neither a folder"),
        ("table.tsv", "no columns"),
        ("nothing.jsonl", "no utterance"),
    ):
        with pytest.raises(BadInputError, match=message):
            import_corpus(str(tmp_path / source), tmp_path / "out")
    with pytest.raises(BadInputError, match=r"wav\.scp"):
        import_corpus(str(tmp_path / "empty"), tmp_path / "out", "kaldi")
    with pytest.raises(BadInputError, match="fastest"):
        Checks(fastest=0)


def test_names_that_repeat_in_other_folders_are_kept_apart(tmp_path: Path) -> None:
    for speaker in ("anna", "bob"):
        (tmp_path / "corpus" / speaker).mkdir(parents=True)
        soundfile.write(tmp_path / "corpus" / speaker / "001.wav", speech(1, 0), 16000)
    rows = [{"audio_filepath": f"{s}/001.wav", "text": "hello there"} for s in ("anna", "bob")]
    (tmp_path / "corpus" / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [u.id for u in read_corpus(str(tmp_path / "corpus"))] == ["anna-001", "bob-001"]


def test_manifest_offsets_are_segments(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    sound = speech(3, 0)
    soundfile.write(tmp_path / "corpus" / "long.wav", sound, 16000)
    rows = [
        {"audio_filepath": "long.wav", "offset": start, "duration": 1.0, "text": "a part"} for start in (0.5, 1.5, 2.5)
    ]
    (tmp_path / "corpus" / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert rejected_after(tmp_path / "corpus", tmp_path / "out") == {"long-00002500": "bad segment"}
    first = next(iter(open_cuts(tmp_path / "out")))
    assert np.abs(cut_waveform(first, 16000).numpy() - sound[8000:24000]).max() < 1e-3


def test_huggingface_datasets_import(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra 'datasets'")
    spoken = utterances(4)
    write_nemo(tmp_path / "nemo", spoken, extension="flac")
    rows = {
        "audio": [{"bytes": (tmp_path / "nemo/audio" / f"{s.id}.flac").read_bytes(), "path": None} for s in spoken],
        "sentence": [s.text for s in spoken],
        "client_id": [s.speaker for s in spoken],
    }
    table = datasets.Dataset.from_dict(rows).cast_column("audio", datasets.Audio(decode=False))
    datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "saved"))
    report = run(tmp_path / "saved", tmp_path / "out")
    assert (report.accepted, report.splits) == (4, {"train": 4})
    cuts = list(open_cuts(tmp_path / "out"))
    assert [cut_text(cut) for cut in cuts] == [s.text for s in spoken]
    assert [cut.supervisions[0].speaker for cut in cuts] == [s.speaker for s in spoken]


CORPORA = Path(os.environ.get("ILME_CORPORA", Path(__file__).parents[3] / "shared" / "data"))
COUNTS = {  # split: utterances, hours, words, speakers
    "librispeech-dev-clean": {"tune": (1388, 2.69, 27269, 20), "test": (1315, 2.69, 27133, 20)},
    "common-voice-en": {
        "train": (8985, 13.43, 87339, 927),
        "dev": (446, 0.71, 4410, 162),
        "test": (1309, 2.01, 12587, 338),
    },
    "harper-valley-bank": {
        "train": (12269, 7.51, 91096, 59),
        "dev": (1631, 1.02, 12409, 52),
        "test": (2503, 1.57, 18933, 51),
    },
}


@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason=f"no corpora at {CORPORA}; set ILME_CORPORA")
@pytest.mark.parametrize("corpus", COUNTS)
def test_the_real_corpora_have_their_published_counts(tmp_path: Path, corpus: str) -> None:
    """Counts of the manifests; of the audio a sample is decoded, or all with ILME_FULL_IMPORT=1."""
    found = read_corpus(str(CORPORA / corpus))
    for split, (count, hours, words, speakers) in COUNTS[corpus].items():
        mine = [u for u in found if u.fields["split"] == split]
        assert len(mine) == count
        assert sum(u.duration or 0 for u in mine) / 3600 == pytest.approx(hours, abs=0.006)
        assert sum(len((u.text or "").split()) for u in mine) == words
        assert len({u.speaker for u in mine}) == speakers
    source = CORPORA / corpus
    if not os.environ.get("ILME_FULL_IMPORT"):
        rows = (source / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[::100]
        sample = tmp_path / "manifest.jsonl"
        absolute = ({**row, "audio_filepath": str(source / row["audio_filepath"])} for row in map(json.loads, rows))
        sample.write_text("\n".join(map(json.dumps, absolute)), encoding="utf-8")
        found, source = found[::100], sample
    report = run(source, tmp_path / "out")
    assert report.found == len(found)
    # Bank calls hold segments in which the channel is dead; the others must be whole.
    assert set(report.reasons) <= ({"silent", "too fast"} if corpus == "harper-valley-bank" else set())


def test_cuts_are_plain_gzip_json_lines(tmp_path: Path) -> None:
    run(write_nemo(tmp_path / "corpus", utterances(2)), tmp_path / "out")
    with gzip.open(tmp_path / "out" / "cuts.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert [row["type"] for row in rows] == ["MonoCut", "MonoCut"]
    assert all(Path(row["recording"]["sources"][0]["source"]).is_file() for row in rows)
