"""The recogniser: long audio in windows, the guards of every family, and what stays as the search gives it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from ilme.errors import BadInputError
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import TRANSFORMER, bounded, default_options, safe_boost
from ilme.recogniser.recogniser import Recogniser
from ilme.recogniser.windows import Window
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.consensus import consensus
from ilme.search.hypothesis import Hypothesis, Scores
from ilme.search.length import SPARE_LABELS, alike_in_length
from ilme.search.rescoring import sequence_scores
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.tokens import Tokens
from tests.checkpoints import RATE, noise, write_checkpoints
from tests.oracle import transducer_best
from tests.search.test_transducer import acoustics, language_model, transducer

KINDS = pytest.mark.parametrize("kind", ["rnnt", "aed"])
WEIGHTS = FusionWeights(lm=0.4, subtracted=0.2, length=0.3)


# --- long audio -------------------------------------------------------------------------------------------------------


class Listener(Recogniser):
    """Writes how many samples of each window it heard."""

    def __init__(self) -> None:
        model = SimpleNamespace(tokens=Tokens(("<eos>", "a"), sos=0, eos=0), rate=RATE, window=30.0)
        super().__init__(model, lambda audio: audio, SimpleNamespace())  # type: ignore[arg-type]
        self.heard = 0
        self.largest = 0

    def nbest(self, audio):
        self.heard += sum(map(len, audio))
        self.largest = max(self.largest, len(audio))
        return [[Hypothesis((1,), -1.0, Scores(asr=-1.0), text=f"{len(samples)}")] for samples in audio]


def write(path, minutes: float, rate: int, channels: int) -> None:
    """Minutes of noise, written one second at a time."""
    second = (np.random.default_rng(0).standard_normal((rate, channels)) * 3000).astype(np.int16)
    with soundfile.SoundFile(path, "w", rate, channels) as file:
        for _ in range(int(minutes * 60)):
            file.write(second)


def transcribed(path) -> tuple[Listener, object, int, list]:
    """The listener, the transcript, the largest memory that Python and NumPy held meanwhile, and the progress."""
    listener, seen = Listener(), []
    tracemalloc.start()
    transcript = listener.transcribe(path, batch=2, progress=lambda done, whole: seen.append((done, whole)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return listener, transcript, peak, seen


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2)])
def test_memory_does_not_grow_with_the_file(tmp_path, rate, channels):
    peaks = {}
    for minutes in (3, 9):
        file = tmp_path / "long.wav"
        write(file, minutes, rate, channels)
        listener, transcript, peaks[minutes], seen = transcribed(file)
        assert listener.heard == minutes * 60 * 16_000 and listener.largest == 2
        assert sum(int(s.text) for s in transcript.segments) == listener.heard
        ends = [s.end for s in transcript.segments]
        assert ends == sorted(ends) and ends[-1] == transcript.seconds == minutes * 60
        assert seen[-1] == (minutes * 60, minutes * 60) and len(seen) > minutes
    assert peaks[9] < 1.3 * peaks[3], "three times as long, but windows fall a little otherwise"
    assert peaks[9] < 10 * 30 * rate * channels * 4, "ten blocks as they are in the file"


def test_an_array_and_its_file_give_the_same(tmp_path):
    file = tmp_path / "a.wav"
    write(file, 1.7, 16_000, 1)
    samples, _ = soundfile.read(file, dtype="float32")
    from_file, from_array = transcribed(file)[1], transcribed(samples)[1]
    assert from_file.segments == from_array.segments and from_file.seconds == from_array.seconds
    with pytest.raises(BadInputError, match="batch must be at least 1"):
        Listener().transcribe(samples, batch=0)


def test_long_silent_and_empty_audio():
    pytest.importorskip("transformers")
    from tests.adapters.tiny import tiny_whisper, waves

    recogniser = Recogniser(tiny_whisper())
    long = np.concatenate([waves(1)[0], np.zeros(40_000, np.float32), waves(2)[1]])
    seen = []
    transcript = recogniser.transcribe(long, progress=lambda done, total: seen.append(done / total))
    assert len(transcript.segments) > 3 and seen[-1] == 1.0
    assert any(s.text == "" for s in transcript.segments), "windows of silence hold no text"
    assert transcript.segments[-1].end == pytest.approx(len(long) / 16_000)
    assert recogniser.transcribe(np.zeros(16_000, np.float32)).text == ""
    with pytest.raises(BadInputError, match="no samples"):
        recogniser.transcribe(np.zeros(0, np.float32))


# --- our own networks -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoints(tmp_path_factory.mktemp("recogniser"))


def recogniser_of(folder, kind, **changes) -> Recogniser:
    """With LM and internal LM; without the guards of the family, unless they are given."""
    model = load_model(folder / kind)
    options = TransducerOptions(beam=4) if kind == "rnnt" else AttentionOptions(beam=4, max_length=8)
    return Recogniser(
        model,
        lm=load_lm(folder / "lm", model),
        subtracted=internal_lm(model),
        weights=WEIGHTS,
        options=replace(options, **changes),
    )


@KINDS
@torch.no_grad()
def test_without_guards_the_lists_are_those_of_the_search(kind, folder):
    recogniser = recogniser_of(folder, kind)
    audio = [noise(0.7, 1), noise(0.4, 2)]
    fusion = Fusion(recogniser.lm, recogniser.subtracted, WEIGHTS)
    encoded = recogniser.model.encode(*recogniser.model.features(audio))
    if kind == "rnnt":
        expected = TransducerSearch(recogniser.model, fusion, recogniser.options)(*encoded)
    else:
        expected = AttentionSearch(recogniser.model, fusion, recogniser.options)(encoded)
    found = recogniser.nbest(audio)
    assert [[replace(h, text="") for h in nbest] for nbest in found] == expected  # to the last bit
    assert [h.text for h in found[0]] == [recogniser.tokenizer.decode(list(h.tokens)) for h in found[0]]


@KINDS
def test_a_recogniser_without_fusion_is_the_model_as_it_is(kind, folder):
    recogniser = recogniser_of(folder, kind)
    plain = Recogniser(recogniser.model, options=recogniser.options)
    audio = [noise(0.7, 1), noise(0.4, 2)]
    bare = [[(h.tokens, h.score, h.text) for h in nbest] for nbest in plain.nbest(audio)]
    assert [[(h.tokens, h.score, h.text) for h in n] for n in recogniser.without_fusion().nbest(audio)] == bare
    assert recogniser.weights == WEIGHTS, "it is another recogniser"


@KINDS
def test_windows_of_many_recordings_are_recognised_as_each_alone(kind, folder):
    recogniser = recogniser_of(folder, kind)
    sizes = (0.9, 0.3, 0.6)
    windows = [Window(0.0, s, noise(s, k)) for k, s in enumerate(sizes)]
    windows.insert(1, Window(0.9, 1.9, np.zeros(RATE, np.float32)))
    together = recogniser.recognise(windows)
    assert [s.text for s in together[1]] == [""]
    for window, segments in zip(windows, together, strict=True):
        (alone,) = recogniser.recognise([window])
        assert [s.text for s in segments] == [s.text for s in alone]
        assert [s.score for s in segments] == pytest.approx([s.score for s in alone], abs=1e-4)


@KINDS
def test_a_clip_shorter_than_a_frame_is_recognised(kind, folder):
    recogniser = recogniser_of(folder, kind)
    for samples in (1, 100, 399):
        transcript = recogniser.transcribe(noise(1.0)[:samples])
        assert transcript.seconds == pytest.approx(samples / RATE) and len(transcript.segments) == 1


def test_options_of_the_other_family_are_refused(folder):
    with pytest.raises(BadInputError, match="searched with TransducerOptions, not AttentionOptions"):
        Recogniser(load_model(folder / "rnnt"), options=AttentionOptions())


# --- guards -----------------------------------------------------------------------------------------------------------


@KINDS
def test_the_length_of_the_audio_caps_the_labels(kind, folder, monkeypatch):
    """A reward for each label makes hypotheses as long as they may be; each utterance has its own cap."""
    monkeypatch.setattr("ilme.search.length.SPARE_LABELS", 0)
    recogniser = recogniser_of(folder, kind, labels_per_second=6.0, **({"max_length": 99} if kind == "aed" else {}))
    recogniser.weights = FusionWeights(length=9.0)
    seconds = (1.0, 0.5, 0.1)
    lists = recogniser.nbest([noise(s, k) for k, s in enumerate(seconds)])
    assert [max(len(h.tokens) for h in nbest) for nbest in lists] == [6, 3, 0]
    free = replace(recogniser.options, labels_per_second=float("inf"))
    recogniser.options = replace(free, max_length=20) if kind == "aed" else free  # type: ignore[call-arg]
    lists = recogniser.nbest([noise(s, k) for k, s in enumerate(seconds)])
    assert max(len(h.tokens) for h in lists[0]) > 6


@KINDS
def test_families_have_guards_and_short_audio_has_labels_to_spare(kind, folder):
    model = load_model(folder / kind)
    options = Recogniser(model).options
    assert options == default_options(model) and options.plausible_length
    assert options.labels_per_second == 40, "an inventory this small spells words out"
    recogniser = Recogniser(model, weights=FusionWeights(length=9.0))
    most = max(len(h.tokens) for h in recogniser.nbest([noise(0.2)])[0])
    assert 8 < most <= int(0.2 * 40) + SPARE_LABELS


# --- listed phrases ---------------------------------------------------------------------------------------------------


@KINDS
def test_a_listed_phrase_is_written(kind, folder):
    recogniser = recogniser_of(folder, kind)
    audio = noise(0.7, 1)
    plain = recogniser.nbest([audio])[0]
    wanted = next(h.text for h in plain[1:] if h.text and h.text not in plain[0].text)
    expecting = recogniser.with_phrases([wanted], boost=50.0)
    (found,) = expecting.nbest([audio])
    assert wanted in found[0].text and found[0].scores.phrases > 0
    assert expecting.transcribe(audio).text == recogniser.transcribe(audio, phrases=[(wanted, 50.0)]).text
    assert recogniser.nbest([audio])[0] == plain, "it is another recogniser"
    assert all(h.scores.fused(expecting.weights) == pytest.approx(h.score) for h in found if kind == "rnnt")


def test_lists_of_phrases_are_added_and_compiled_once(folder):
    recogniser = recogniser_of(folder, "rnnt")
    assert recogniser.phrases is None and recogniser.with_phrases([]) is recogniser
    first = recogniser.with_phrases(["a", ("b", 2.0)])
    assert first.weights == replace(WEIGHTS, phrases=safe_boost(recogniser.model))
    assert recogniser.with_phrases(["a", ("b", 2.0)]).phrases is first.phrases
    both = first.with_phrases([("b", 3.0), "c"], boost=0.7)
    assert [(p.text, p.weight) for p in both.listed] == [("a", 1.0), ("b", 3.0), ("c", 1.0)]
    assert both.weights.phrases == 0.7 and first.phrases is not both.phrases
    for number in range(40):
        recogniser.with_phrases(["a" * (number + 1)])
    assert recogniser.with_phrases(["a", ("b", 2.0)]).phrases is not first.phrases, "old lists are given up"


def repeats(labels: tuple[int, ...], most: int, span: int) -> bool:
    """Whether a run of up to `span` labels stands more than `most` times in a row; by trying all of them."""
    for size in range(1, span + 1):
        for at in range(len(labels) - size * (most + 1) + 1):
            run = labels[at : at + size]
            if all(labels[at + k * size : at + (k + 1) * size] == run for k in range(most + 1)):
                return True
    return False


@cache
def every_sequence(seed: int):
    """A tiny transducer, what it hears, a fusion, and all that three frames can say, scored without a beam."""
    model, lm = transducer(seed, units=3), language_model(seed, units=3)
    weights, internal = FusionWeights(0.3, 0.2, 0.4), internal_lm(model)
    f = acoustics(seed, 3)
    return model, f, Fusion(lm, internal, weights), transducer_best(model, f[0], lm, internal, weights, most=2)


@pytest.mark.parametrize(("most", "span"), [(1, 1), (1, 2), (2, 1), (2, 8)])
@pytest.mark.parametrize("seed", range(3))
def test_a_transducer_repeats_nothing_too_often(seed, most, span):
    """A beam that holds everything finds what is left of all sequences when those that repeat are struck out."""
    model, f, fusion, everything = every_sequence(seed)
    options = TransducerOptions(beam=400, max_symbols=2, max_repeats=most, repeat_span=span)
    (found,) = TransducerSearch(model, fusion, options)(f, torch.tensor([3]))
    allowed = [(score, labels, asr) for score, labels, asr in everything if not repeats(labels, most, span)]
    assert {h.tokens for h in found} == {labels for _, labels, _ in allowed}
    best = found[: len(allowed) // 2]
    assert [h.tokens for h in best] == [labels for _, labels, _ in allowed[: len(best)]]
    assert [h.score for h in best] == pytest.approx([score for score, _, _ in allowed[: len(best)]], abs=1e-9)
    assert [h.scores.asr for h in best] == pytest.approx([asr for _, _, asr in allowed[: len(best)]], abs=1e-9)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_is_an_exact_filter(limit):
    model, lm = transducer(1, units=3), language_model(1, units=3)
    weights, f = FusionWeights(0.3, 0.0, 0.4), acoustics(1, 3)
    search = TransducerSearch(model, Fusion(lm, None, weights), TransducerOptions(beam=400, max_symbols=2))
    (found,) = search(f, torch.tensor([3]), torch.tensor([limit]))
    allowed = [row for row in transducer_best(model, f[0], lm, None, weights, most=2) if len(row[1]) <= limit]
    assert [h.tokens for h in found] == [labels for _, labels, _ in allowed]
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in allowed], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_guards_that_never_bite_change_nothing(seed):
    """To the last bit: the search without guards, and with guards that no hypothesis reaches."""
    model, lm = transducer(seed, units=9), language_model(seed, 9)
    fusion = Fusion(lm, internal_lm(model), FusionWeights(0.4, 0.3, 0.2))
    f, lengths = acoustics(seed, 12, batch=3), torch.tensor([12, 3, 7])

    def search(limits=None, **guards):
        return TransducerSearch(model, fusion, TransducerOptions(beam=4, **guards))(f, lengths, limits)

    plain = search()
    assert search(torch.tensor([10**9] * 3)) == plain
    assert search(max_repeats=99) == plain


@KINDS
def test_hypotheses_of_implausible_length_are_left_out(kind, folder):
    recogniser = recogniser_of(folder, kind, **({"max_length": 30} if kind == "aed" else {"max_symbols": 5}))
    recogniser.weights = FusionWeights(length=3.0)
    audio = [noise(0.9, k) for k in range(4)]
    everything = recogniser.nbest(audio)
    recogniser.options = replace(recogniser.options, plausible_length=True)
    lists = recogniser.nbest(audio)
    assert lists == [alike_in_length(nbest, recogniser.length_exponent) for nbest in everything]
    plain = recogniser.without_fusion()
    best = [nbest[0] for nbest in plain.nbest(audio)]
    plain.options = replace(plain.options, plausible_length=False)
    assert best == [nbest[0] for nbest in plain.nbest(audio)], "without fusion the best stays"


# --- two lists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [WEIGHTS, FusionWeights(lm=0.8, subtracted=0.4)])
@KINDS
def test_the_list_without_lms_has_its_say(kind, folder, weights):
    """What both lists agree on comes first, with the score that the search with LMs gives it."""
    model = load_model(folder / kind)
    options = replace(default_options(model, 4), consensus=4.0, joined=True)
    scorers = {"lm": load_lm(folder / "lm", model), "subtracted": internal_lm(model, "removed")}
    both = Recogniser(model, **scorers, weights=weights, options=options)
    alone = Recogniser(model, **scorers, options=replace(options, consensus=0.0, joined=False))
    audio = [noise(0.5), noise(0.8, seed=1)]
    encoded = alone.encode(audio)
    found = both.nbest(audio)
    for nbest, fused, plain in zip(
        found, alone.search(encoded, weights), alone.search(encoded, FusionWeights()), strict=True
    ):
        wanted = consensus([fused, plain], 4.0, both.length_exponent)[0]
        assert nbest[0].tokens == wanted.tokens
        assert {h.tokens for h in nbest} == {h.tokens for h in fused} | {wanted.tokens}
        own = {h.tokens: h for h in fused}
        for h in nbest:
            length = (len(h.tokens) + 1) ** both.length_exponent
            assert h == own.get(h.tokens, h) and h.score == pytest.approx(h.scores.fused(weights) / length, abs=1e-4)
            assert h.scores.lm < 0 and h.scores.subtracted < 0
    plain = alone.search(encoded, FusionWeights())
    assert both.without_fusion().search(encoded) == plain, "the plain model is as it was"


@KINDS
def test_what_the_plain_list_alone_has_gets_the_scores_of_the_fusion(kind, folder):
    model = load_model(folder / kind)
    options = replace(default_options(model, 4), plausible_length=False)
    lm, internal = load_lm(folder / "lm", model), internal_lm(model, "removed")
    recogniser = Recogniser(model, lm=lm, subtracted=internal, options=options)
    encoded = recogniser.encode([noise(0.5)])
    (fused,), (plain,) = recogniser.search(encoded, WEIGHTS), recogniser.search(encoded, FusionWeights())
    told = [replace(h, score=-1.0, text=text) for h, text in zip(fused, ("sea", "whale ship"), strict=False)]
    sure = replace(plain[0], tokens=(*plain[0].tokens, 5), text="whale")
    first, *others = recogniser.agreed(told, [sure], WEIGHTS, 1.0)
    assert first.tokens == sure.tokens and others == told
    assert first.scores.asr == sure.scores.asr
    for scorer, score in (("lm", lm), ("subtracted", internal)):
        (expected,) = sequence_scores(score, [first.tokens], finish=recogniser.ends[scorer])
        assert getattr(first.scores, scorer) == pytest.approx(float(expected), abs=1e-4)
    length = (len(first.tokens) + 1) ** recogniser.length_exponent
    assert first.score == pytest.approx(first.scores.fused(WEIGHTS) / length)


def test_two_lists_need_a_temperature():
    with pytest.raises(BadInputError, match=r"search\.joined takes the consensus of two lists"):
        bounded(replace(TRANSFORMER, joined=True))
