"""Dev speech made from the text: which lines are spoken, that the LM does not read them, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ilme.data.exclude import Exclusion
from ilme.errors import BadInputError, MissingExtraError
from ilme.workflows import adapt as module
from ilme.workflows import spoken_dev
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.card import _spoken, card_text
from ilme.workflows.domain_lm import DomainText
from ilme.workflows.spoken_dev import check_voices, hold_out_spoken, speak_lines

COLOURS = ("red", "green", "blue", "white")
LINES = [f"{a} ships carry {b} flags." for a in COLOURS for b in COLOURS] + ["Yes."] * 8 + ["Oh no!"] * 8


def text_of(lines):
    return DomainText(list(lines), [[i] for i in range(len(lines))], {"lines": len(lines)})


# --- which lines ------------------------------------------------------------------------------------------------------


def test_lines_are_drawn_once_and_leave_the_text():
    held, rest = hold_out_spoken(text_of(LINES), 4, 8, seed=0)
    assert len(held) == 4 and set(held) <= set(LINES[:16]), "what is too short is not spoken"
    assert not set(held) & set(rest.lines) and len(rest.lines) == len(LINES) - 4
    assert [LINES[ids[0]] for ids in rest.ids] == rest.lines, "ids and lines stay side by side"
    assert hold_out_spoken(text_of(LINES), 4, 8, seed=0)[0] == held
    assert hold_out_spoken(text_of(LINES), 4, 8, seed=1)[0] != held


def test_at_most_a_fifth_is_spoken():
    assert len(hold_out_spoken(text_of(LINES), 60, 8, seed=0)[0]) == len(LINES) // 5


def test_what_says_the_same_goes_too():
    """In other letters and marks as well; nothing that is said twice is spoken twice."""
    twice = [*LINES, *(line.upper().replace(".", ",") for line in LINES)]
    held, rest = hold_out_spoken(text_of(twice), 8, 8, seed=0)
    assert len({line.lower().strip(".,") for line in held}) == len(held) == 8
    assert not {line.lower().strip(".,") for line in held} & {line.lower().strip(".,") for line in rest.lines}
    assert len(rest.lines) == len(twice) - 16


def test_what_shares_words_in_a_row_goes_too_unless_it_may_stay():
    common = "the captain of the ship said that all was well"
    lines = [f"{common} {end}" for end in ("today", "tonight", "again")] + LINES
    held, rest = hold_out_spoken(text_of(lines), 7, 8, seed=3)
    assert any(common in line for line in held), "the seed draws one of them"
    assert not any(common in line for line in rest.lines)
    assert Exclusion.from_texts(held).overlaps(rest.lines) == [None] * len(rest.lines)
    again, left = hold_out_spoken(text_of(lines), 7, 0, seed=3)
    assert again == held and any(common in line for line in left.lines)


def test_a_text_with_nothing_to_spare_is_refused():
    with pytest.raises(BadInputError, match="needs lines of 4 to 40 words, 5 at least, and the text has 4 lines"):
        hold_out_spoken(text_of(LINES[:4]), 60, 8, seed=0)
    with pytest.raises(BadInputError, match="none to spare"):
        hold_out_spoken(text_of(["Yes."] * 20), 60, 8, seed=0)
    same = "one two three four five six seven eight nine"
    with pytest.raises(BadInputError, match="no line of the text is left"):
        hold_out_spoken(text_of([f"{same} {end}" for end in "abcde"]), 60, 8, seed=0)


# --- voices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "share"), [(("espeakng_loader",), 0.0), (("hibari",), 1.0), (("espeakng_loader", "hibari"), 1.0)]
)
def test_the_neural_voice_speaks_where_it_is_installed(monkeypatch, installed, share):
    monkeypatch.setattr(spoken_dev.importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert check_voices() == share


def test_without_voices_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(spoken_dev.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"hibari-tts is not installed; .*'ilme\[natural\]'"):
        check_voices()
    with pytest.raises(MissingExtraError):  # before the model is loaded or the text is read
        adapt("no model", ["no-text.txt"], tmp_path / "out", dev="speak")
    assert not list(tmp_path.iterdir())


def test_other_languages_are_refused():
    check_voices("en")
    with pytest.raises(BadInputError, match="reads English alone, not 'de'"):
        check_voices("de")


def test_lines_are_spoken_through_each_channel_and_kept(tmp_path, monkeypatch):
    pytest.importorskip("espeakng_loader")
    spoken = speak_lines(LINES[:6], tmp_path, 0.0, seed=0)
    assert [u.text for u in spoken] == LINES[:6]
    assert [u.id.rpartition("-")[2] for u in spoken] == ["clean", "room", "telephone"] * 2
    assert len({u.id for u in spoken}) == 6 and all(abs(len(u.audio) / 16_000 - u.seconds) < 0.01 for u in spoken)
    monkeypatch.setattr("ilme.data.synth.speak", lambda *a: pytest.fail("spoken again, though it is kept"))
    again = speak_lines(LINES[:6], tmp_path, 0.0, seed=0)
    assert all(np.array_equal(a.audio, b.audio) for a, b in zip(spoken, again, strict=True))
    monkeypatch.undo()
    other = speak_lines(LINES[:6], tmp_path, 0.0, seed=1)
    assert not any(np.array_equal(a.audio, b.audio[: len(a.audio)]) for a, b in zip(spoken, other, strict=True))


# --- adaptation -------------------------------------------------------------------------------------------------------

OPTIONS = AdaptOptions(
    style="restore", order=2, prune=(0,), beam=3, max_decodes=1, calibration=2, normaliser="none", internal="zeroed",
    spoken_lines=4,
)  # fmt: skip
WORDS = "".join(f"w{a} w{b} w{a + 1} w{b - 1}\n" for a in range(3, 9) for b in range(20, 25))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Adapts a tiny Whisper, whose words are w0 … w39, with spoken dev."""
    pytest.importorskip("transformers")
    pytest.importorskip("espeakng_loader")
    from tests.adapters.tiny import tiny_whisper

    model = tiny_whisper(max_source_positions=500)  # ten seconds
    monkeypatch.setattr("ilme.recogniser.domain.load_model", lambda *a, **k: model)
    monkeypatch.setattr("ilme.data.written_style.needs_recasing", lambda lines: False)
    monkeypatch.setattr("ilme.workflows.adapt.check_voices", lambda language: 0.0)
    (tmp_path / "text.txt").write_text(WORDS)

    def adapted(out="out", **given):
        given = {"dev": "speak", "options": OPTIONS, "host": model, **given}
        return adapt("tiny", [str(tmp_path / "text.txt")], tmp_path / out, **given)

    return adapted


def same_lm(one, other):
    ours, theirs = load_file(one), load_file(other)
    return ours.keys() == theirs.keys() and all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_adaptation_tunes_on_lines_that_the_lm_has_not_read(run, tmp_path, monkeypatch):
    read, tuned = [], []
    choose, on_dev = module.choose_lm, module.choose_on_dev
    monkeypatch.setattr(module, "choose_lm", lambda *a: (read.append(a[2].lines), choose(*a))[1])
    monkeypatch.setattr(module, "choose_on_dev", lambda *a: (tuned.append(a), on_dev(*a))[1])
    said = []
    adapted = run(say=said.append)
    ((_, _, lm, dev, *_),) = tuned
    spoken = {u.text for u in dev}
    assert len(spoken) == 4 and spoken <= set(WORDS.splitlines()) and not spoken & set(read[0])
    assert len(read[0]) == len(WORDS.splitlines()) - 4
    everything = run(out="all", dev=())
    assert same_lm(tmp_path / "out" / "lm.safetensors", tmp_path / "all" / "lm.safetensors"), "it has read all lines"
    lm.save(tmp_path / "meanwhile.safetensors")
    assert not same_lm(tmp_path / "out" / "lm.safetensors", tmp_path / "meanwhile.safetensors"), (
        "that of the tuning not"
    )
    assert everything.before is None and adapted.before is not None
    about = adapted.domain.report["spoken dev"]
    assert (about["lines"], about["voice"], about["kept out"]) == (4, "espeak-ng", 4)
    assert any("4 lines of the text, " in line for line in said)
    card = card_text(adapted, "out")
    assert (
        "**Dev is synthetic: 4 lines of the text, spoken by espeak-ng" in card
        and "worse than none in three" in card
        and "| synthetic dev (4 utterances) |" in card
    )
    assert "worse than none in three" not in _spoken(about | {"voice": "a neural voice"})
    assert "Dev is synthetic" not in card_text(everything, "all")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all", "meanwhile.safetensors", "out", "text.txt"]


def test_a_run_that_was_killed_finds_its_voices(run, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "choose_on_dev", stop)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("ilme.data.synth.speak", lambda *a: pytest.fail("spoken again, though it is kept"))
    assert run().domain.report["spoken dev"]["lines"] == 4


def test_a_network_keeps_what_it_has_learned(run, tmp_path, monkeypatch):
    """What was spoken is given back to an n-gram alone; a mixture would have to be trained anew."""
    choose = module.choose_lm

    def mixed(*given):
        found = choose(*given)
        return replace(found, about=found.about | {"weights": {"ngram": 0.5, "decoder": 0.5}})

    monkeypatch.setattr(module, "choose_lm", mixed)
    monkeypatch.setattr(module, "train_ngram_lm", lambda *a: pytest.fail("made anew"))
    run()


def test_a_named_lm_may_have_read_what_would_be_spoken(run):
    with pytest.raises(BadInputError, match=r"my\.arpa may have read them: let the LM be trained here"):
        run(lm="my.arpa")


def test_a_folder_of_that_name_is_dev_like_any_other(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match="no manifest at speak"):
        run(dev="./speak")
