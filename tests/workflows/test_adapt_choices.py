"""What adaptation chooses, and from what: each choice is seen at the function that it is handed to."""

from __future__ import annotations

import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("transformers")

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.fusion import FusionWeights
from ilme.recogniser.domain import INTERNAL_LM, LM, load_domain
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.testing import tiny as tiny_network
from ilme.tuning.weight_search import Optimum, Prior, WeightSpace
from ilme.workflows import adapt as module
from ilme.workflows import tune, with_dev
from ilme.workflows.adapt import AdaptOptions, adapt, safe_choice, style_for
from tests.adapters.tiny import tiny_whisper, waves

NAMES = ("removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned")
OPTIONS = AdaptOptions(
    style="restore", order=2, prune=(0,), beam=3, max_decodes=1, calibration=2, normaliser="none", internal="zeroed"
)
TEXT = "w5 w6 w7 w8\nw5 w6 w9\nw7 w8 w5 w6\nw5 w6 w7\n" * 5


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Every name is the same tiny Whisper, whose words are w0 … w39."""
    model = tiny_whisper()
    monkeypatch.setattr("ilme.recogniser.domain.load_model", lambda *a, **k: model)
    monkeypatch.setattr("ilme.data.written_style.needs_recasing", lambda lines: False)
    return model


@pytest.fixture
def run(tiny, tmp_path):
    """Adapts to a text with dev texts; every utterance is another noise."""
    count = 0

    def adapted(texts=("w5 w6 w7", "w5 w6", "w7 w8 w5"), options=OPTIONS, text=TEXT, speakers=None, say=lambda _: None):
        nonlocal count
        count += 1
        path = tmp_path / f"text{count}.txt"
        path.write_text(text)
        dev = [
            Utterance(f"u{i}", words, wave, speaker=(speakers or "xy" * 9)[i], seconds=len(wave) / 16_000)
            for i, (words, wave) in enumerate(zip(texts, waves(len(texts)), strict=True))
        ]
        out = tmp_path / f"out{count}"
        return adapt("tiny", [str(path)], out, dev=dev, options=options, host=tiny, say=say), out

    return adapted


def seen(monkeypatch, where, name):
    """The arguments of every call of a function, which does its work as before."""
    calls = []
    real = getattr(where, name)

    def spy(*given, **named):
        calls.append((given, named))
        return real(*given, **named)

    monkeypatch.setattr(where, name, spy)
    return calls


def assert_same_lm(one, other):
    ours, theirs = load_file(one), load_file(other)
    assert {name: tuple(x.shape) for name, x in ours.items()} == {name: tuple(x.shape) for name, x in theirs.items()}
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_no_sentence_of_dev_goes_into_the_lm(run):
    spoken = "w20 w21 w22 w23 w24 w25 w26 w27 w28"
    without, clean = run(texts=[spoken, "w5 w6"])
    with_dev, kept_out = run(texts=[spoken, "w5 w6"], text=TEXT + f"{spoken}\n" * 3)
    assert with_dev.domain.report["text"]["left out for overlap with dev"] == 3
    assert_same_lm(kept_out / LM, clean / LM)
    asked_for, leaked = run(texts=[spoken, "w5 w6"], text=TEXT + f"{spoken}\n" * 3, options=replace(OPTIONS, overlap=0))
    assert asked_for.domain.report["text"]["left out for overlap with dev"] == 0
    with pytest.raises(AssertionError):
        assert_same_lm(leaked / LM, clean / LM)
    assert without.domain.report["text"]["left out for overlap with dev"] == 0


def test_the_internal_lm_with_the_fewest_errors_is_chosen_and_tuned(run, monkeypatch):
    errors = dict(zip(NAMES, (9.0, 8.0, 2.126, 5.0, 3.0, 4.0), strict=True))
    left = iter(errors.values())
    monkeypatch.setattr(with_dev, "search_weights", lambda *a, **k: Optimum(np.zeros(3), next(left)))
    tuned = seen(monkeypatch, with_dev, "tune_decoder")
    said = []
    adapted, _ = run(options=replace(OPTIONS, internal="auto"), say=said.append)
    assert list(adapted.ranking.items()) == sorted(
        ((name, round(e, 2)) for name, e in errors.items()), key=lambda item: item[1]
    )
    ((given, _),) = tuned
    assert given[1].subtracted.how == "silence"
    assert any("silence 2, mean-context 3, learned 4" in line for line in said)
    assert adapted.domain.report["internal LMs, errors on the lists"] == adapted.ranking


@pytest.mark.parametrize(("seconds", "ranked"), [((5.0, 0.8, 0.9), list(NAMES)), ((5.0, 4.0), [])])
def test_dev_may_be_longer_than_what_the_model_hears_at_once(tiny, tmp_path, monkeypatch, seconds, ranked):
    """Its hypotheses have more labels than the decoder has places, so they are scored window by window."""
    (tmp_path / "text.txt").write_text(TEXT)
    dev = [
        Utterance(f"u{i}", "w5 w6 w7", waves(1, length)[0], seconds=length, rate=16_000)
        for i, length in enumerate(seconds)
    ]
    known = seen(monkeypatch, with_dev.CachedDecoder, "know")
    options = replace(OPTIONS, internal="auto", max_decodes=2)
    adapted = adapt("tiny", [str(tmp_path / "text.txt")], tmp_path / "out", dev=dev, options=options, host=tiny)
    assert sorted(adapted.ranking) == sorted(ranked) and not known
    assert [s.weights for s in adapted.tuning.steps] == [FusionWeights(), safe_choice(tiny)[1]]
    longest = adapted.after.utterances[0].hypothesis.split()
    assert len(longest) > 64, "else this test would see nothing"


def test_a_named_internal_lm_is_the_only_one_that_is_made(run, monkeypatch):
    ranked = seen(monkeypatch, with_dev, "search_weights")
    adapted, _ = run()
    assert list(adapted.ranking) == ["zeroed"] and len(ranked) == 1


def test_one_utterance_of_dev_is_enough(run):
    """Too little to learn an internal LM from: the others are compared."""
    said = []
    adapted, _ = run(texts=("w5 w6 w7",), options=replace(OPTIONS, internal="auto"), say=said.append)
    assert set(adapted.ranking) == set(NAMES) - {"learned"}
    assert any(line.startswith("internal LM learned is left out: a learned internal LM needs") for line in said)
    with pytest.raises(BadInputError, match="at least two transcripts"):
        run(texts=("w5 w6 w7",), options=replace(OPTIONS, internal="learned"))


def test_internal_lms_are_ranked_as_the_search_ranks(run, tiny, monkeypatch):
    """The same α and the same end of sentence, the safe weights among the starts, the same smoothing and space."""
    built = seen(monkeypatch, with_dev, "build_lists")
    searched = seen(monkeypatch, with_dev, "search_weights")
    tuned = seen(monkeypatch, tune, "find_weights")
    exponent = default_options(tiny, 3).length_normalisation
    assert exponent > 0, "else this test would see nothing"
    run(options=replace(OPTIONS, smoothing=0.03, seed=5))
    assert [named["length_exponent"] for _, named in built] == [exponent]
    ((given, named),) = searched
    assert given[1] == WeightSpace() and named["objective"].smoothing == 0.03 and named["seed"] == 5
    assert [list(start) for start in named["starts"]] == [[0.25, 0.125, 0.0]]
    ((_, named),) = tuned
    options = named["options"]
    assert options.length_exponent == exponent and options.space == WeightSpace()
    assert (options.smoothing, options.seed, options.max_decodes, options.beam) == (0.03, 5, 1, 3)


@pytest.mark.parametrize("end", [False, True])
def test_internal_lms_score_the_end_as_the_search_does(run, monkeypatch, end):
    real = module.default_options
    monkeypatch.setattr(module, "default_options", lambda *a: replace(real(*a), lm_eos=end))
    scorers = seen(monkeypatch, with_dev, "SequenceScorer")
    run()
    assert scorers and all(named["finish"] == end for _, named in scorers)


@pytest.mark.parametrize(("speakers", "resampled"), [("vwxyv", False), ("vwxyz", True)])
def test_speakers_are_resampled_if_there_are_five(run, monkeypatch, speakers, resampled):
    tuned = seen(monkeypatch, tune, "find_weights")
    adapted, _ = run(texts=["w5 w6"] * 5, speakers=speakers)
    ids = [f"u{i}" for i in range(5)]
    expected = list(speakers) if resampled else ids
    assert [u.speaker for u in adapted.before.utterances] == expected
    assert [u.speaker for u in adapted.after.utterances] == expected
    assert list(tuned[0][1]["speakers"].values()) == (list(speakers) if resampled else [""] * 5)


@pytest.mark.parametrize("count", [2, 3])
def test_internal_lms_are_averaged_over_the_first_utterances(run, tiny, monkeypatch, count):
    made = []
    real = Recogniser.calibrate

    def calibrate(self, audio, transcripts):
        audio = list(audio)
        made.append((audio, list(transcripts)))
        return real(self, audio, transcripts)

    monkeypatch.setattr(Recogniser, "calibrate", calibrate)
    run(texts=["w5 w6"] * 4, options=replace(OPTIONS, calibration=count))
    ((audio, transcripts),) = made
    plain = Recogniser(tiny, options=default_options(tiny, 3))
    assert len(audio) == count
    for heard, wave, labels in zip(audio, waves(4), transcripts, strict=False):
        assert np.array_equal(heard, wave) and labels == plain.nbest([wave])[0][0].tokens
    with pytest.raises(BadInputError, match="at least 2"):
        AdaptOptions(calibration=1)


@pytest.fixture
def decided(monkeypatch):
    """Tuning that finds the given weights, whatever they are worth, and is believed."""
    monkeypatch.setattr(with_dev, "EVIDENT", 1.0)

    def weights(lm, subtracted):
        real = tune.tune_decoder
        monkeypatch.setattr(
            with_dev, "tune_decoder", lambda *a, **k: replace(real(*a, **k), weights=FusionWeights(lm, subtracted))
        )

    return weights


def test_weights_of_zero_are_said_and_leave_the_model_as_it_is(run, decided):
    decided(0.0, 0.0)
    adapted, out = run()
    assert adapted.tuning.weights == FusionWeights()
    assert adapted.after == adapted.before and adapted.before.total.errors > 0
    assert adapted.domain.weights == FusionWeights() and adapted.domain.internal == ""
    assert adapted.internal is None and not (out / INTERNAL_LM).exists()
    assert "weights are zero" in adapted.domain.report["note"]
    assert adapted.domain.report["before"] == adapted.domain.report["after"]
    assert adapted.domain.report["relative"] == 0.0


def test_a_small_dev_set_that_got_worse_is_said(run, decided, tiny):
    """Dev says what the plain search hears, so any change is an error."""
    plain = Recogniser(tiny, options=default_options(tiny, OPTIONS.beam))
    decided(3.0, 0.0)
    adapted, out = run(texts=[plain.transcribe(wave).text for wave in waves(3)])
    more = adapted.after.total.errors
    assert adapted.before.total.errors == 0 and more > 0
    assert f"dev has {more} more errors" in adapted.domain.report["note"]
    assert f"ev has {more} more errors" in (out / "card.md").read_text()


def test_the_safe_weights_are_expected_and_decoded_with(run, tiny, monkeypatch):
    """Two errors for a usual step away from them, and for an internal LM that is not the safe one."""
    tuned = seen(monkeypatch, tune, "find_weights")
    adapted, _ = run(options=replace(OPTIONS, max_decodes=2))
    ((_, named),) = tuned
    assert named["options"].prior == Prior(0.25, 0.125, 0.0, with_dev.EXPECTED)
    assert [s.weights for s in adapted.tuning.steps] == [FusionWeights(), safe_choice(tiny)[1]]
    errors = dict(zip(NAMES, (9.0, 8.0, 7.5, 5.6, 6.0, 6.2), strict=True))
    for best, chosen in ((5.6, "silence"), (5.4, "mean-encoder")):
        left = iter((errors | {"mean-encoder": best}).values())
        monkeypatch.setattr(with_dev, "search_weights", lambda *a, left=left, **k: Optimum(np.zeros(3), next(left)))
        run(options=replace(OPTIONS, internal="auto"))
        assert tuned[-1][0][0].decoder.recogniser.subtracted.how == chosen


def test_weights_that_help_are_kept(run, decided, tiny, tmp_path):
    """Dev says what the search with the safe weights hears, so these weights leave no error."""
    (tmp_path / "text.txt").write_text(TEXT)
    options = replace(OPTIONS, overlap=0, decoding="best")
    adapt("tiny", [str(tmp_path / "text.txt")], tmp_path / "safe", options=options, host=tiny)
    safe = load_domain(tmp_path / "safe")
    decided(*(safe_choice(tiny)[1].lm, safe_choice(tiny)[1].subtracted))
    adapted, out = run(texts=[safe.transcribe(wave).text for wave in waves(3)], options=options)
    assert adapted.before.total.errors > 0 and adapted.after.total.errors == 0
    assert adapted.domain.weights == safe_choice(tiny)[1] and adapted.domain.internal == "zeroed"
    assert adapted.internal.how == "zeroed" and (out / INTERNAL_LM).exists()
    assert "note" not in adapted.domain.report
    assert adapted.domain.report["relative"] == 100.0
    assert adapted.domain.report["after"]["WER"] == 0.0
    assert adapted.domain.report["before"]["WER"] == round(adapted.before.rate, 4)
    assert adapted.domain.report["dev utterances"] == 3


def test_an_internal_lm_of_weight_zero_is_none(run, decided, tiny, tmp_path):
    """Dev says what the search hears with the LM alone, so these weights leave no error."""
    (tmp_path / "text.txt").write_text(TEXT)
    options = replace(OPTIONS, overlap=0)
    adapt("tiny", [str(tmp_path / "text.txt")], tmp_path / "alone", options=options, host=tiny)
    alone = load_domain(tmp_path / "alone")
    alone.weights = FusionWeights(lm=0.4)
    decided(0.4, 0.0)
    adapted, out = run(texts=[alone.transcribe(wave).text for wave in waves(3)], options=options)
    assert adapted.domain.weights == FusionWeights(lm=0.4) and adapted.after.total.errors == 0
    assert adapted.domain.internal == "" and adapted.internal is None and not (out / INTERNAL_LM).exists()
    assert "internal LM: none" in (out / "card.md").read_text()
    assert load_domain(out).subtracted is None


@pytest.mark.parametrize(("count", "clear"), [(4, False), (5, True)])
def test_what_is_used_without_dev_stays_until_dev_speaks_clearly(run, decided, tiny, monkeypatch, count, clear):
    """Dev says what the plain search hears and the tuning gives: five of five are better, p 1/32, four of four 1/16."""
    decided(0.0, 0.0)
    monkeypatch.setattr(with_dev, "EVIDENT", 0.05)
    plain, said = Recogniser(tiny, options=default_options(tiny, OPTIONS.beam)), []
    monkeypatch.setattr(with_dev, "safe_choice", lambda host: ("silence", FusionWeights(lm=1.0)))
    texts = [plain.transcribe(wave).text for wave in waves(count)]
    adapted, out = run(texts=texts, options=replace(OPTIONS, decoding="best"), say=said.append)
    evidence = adapted.domain.report["evidence"]
    assert (evidence["better"], evidence["worse"], evidence["p"]) == (count, 0, 0.5**count)
    kept = "what dev has tuned" if clear else "what is used without dev speech"
    assert evidence["kept"] == kept and any(
        line.endswith(f"(sign test p {0.5**count:.3f}); {kept} is kept") for line in said
    )
    assert adapted.domain.weights == FusionWeights(lm=0.0 if clear else 1.0)
    assert (adapted.after.total.errors == 0) == clear
    assert f"without it: {count} utterances, worse: 0 (sign test" in (out / "card.md").read_text()
    again = load_domain(out)
    assert {u.id: u.hypothesis for u in adapted.after.utterances} == {
        f"u{i}": again.transcribe(wave).text for i, wave in enumerate(waves(count))
    }


def test_few_utterances_keep_the_folder_that_no_dev_makes(tiny, tmp_path, monkeypatch):
    """Weights, internal LM and search; and with phrases too, whose list the second search hears as well."""
    monkeypatch.setattr("ilme.lm.phrase_list._Writer.spellings", lambda self, text: [text])  # no capitals here
    (tmp_path / "text.txt").write_text(TEXT)
    options = replace(OPTIONS, internal="auto", overlap=0, max_decodes=3)
    for phrases in ((), ("w7 w8",)):
        none = adapt(
            "tiny", [str(tmp_path / "text.txt")], tmp_path / "none", options=options, host=tiny, phrases=phrases
        )
        dev = [Utterance(f"u{i}", "w5 w6", wave, seconds=len(wave) / 16_000) for i, wave in enumerate(waves(3))]
        few = adapt(
            "tiny", [str(tmp_path / "text.txt")], tmp_path / "few", dev=dev, options=options, host=tiny, phrases=phrases
        )
        assert few.domain.search == none.domain.search and few.domain.search.joined
        assert few.domain.internal == none.domain.internal == "silence"
        assert replace(few.domain.weights, phrases=0.0) == replace(none.domain.weights, phrases=0.0)
        again = load_domain(tmp_path / "few")
        assert [again.transcribe(u.audio).text for u in dev] == [u.hypothesis for u in few.after.utterances]


def test_the_weights_without_dev_are_those_of_the_models_kind():
    assert safe_choice(tiny_whisper()) == ("silence", FusionWeights(lm=0.25, subtracted=0.125))
    assert safe_choice(tiny_network("rnnt")) == ("removed", FusionWeights(lm=0.3, subtracted=0.1, length=0.6))
    assert safe_choice(tiny_network("aed")) == ("removed", FusionWeights(lm=0.15, subtracted=0.075))


def test_dev_is_drawn_at_random_in_its_own_order():
    everything = [Utterance(str(i), "w5", np.zeros(1), seconds=1.0) for i in range(20)]
    for limit in (0, 20, 21):
        assert module._drawn(everything, limit, 0) == everything
    few = [int(u.id) for u in module._drawn(everything, 19, 0)]
    assert len(set(few)) == 19 and few == sorted(few)
    drawn = [[u.id for u in module._drawn(everything, 5, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_style_follows_the_case_of_the_models_pieces():
    def model(*pieces):
        return types.SimpleNamespace(tokens=types.SimpleNamespace(pieces=pieces))

    assert style_for(model("<Unk>", "▁the", "sea"), "auto") == "spoken", "names of special units do not count"
    assert style_for(model("<unk>", "▁THE", "SEA"), "auto") == "spoken"
    assert style_for(model("<unk>", "▁The", "sea"), "auto") == "restore"
    assert style_for(model("<unk>", "▁The", "sea"), "keep") == "keep"


def test_what_is_set_aside_is_neither_measured_nor_tuned_on(run, monkeypatch):
    monkeypatch.setattr(with_dev, "unexplained", lambda *a: [types.SimpleNamespace(id="u1", reason="cut badly")])
    monkeypatch.setattr(with_dev, "_dev_report", lambda *a, **k: {})
    tuned = seen(monkeypatch, tune, "find_weights")
    said = []
    adapted, _ = run(texts=["w5 w6 w7", "w5 w6", "w7 w8 w5"], say=said.append)
    assert [u.id for u in adapted.before.utterances] == ["u0", "u2"]
    assert list(tuned[0][0][1]) == ["u0", "u2"]
    assert any("1 of 3 utterances are set aside; the first: u1: cut badly" in line for line in said)
