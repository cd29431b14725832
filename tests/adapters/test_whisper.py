"""Whisper with tiny random weights: equal to `transformers`, and the contract of every adapter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from ilme.adapters.decoder import WatchedAttention  # noqa: E402
from ilme.adapters.hf import attention, followed  # noqa: E402
from ilme.adapters.whisper import Whisper, WhisperOptions  # noqa: E402
from ilme.errors import BadInputError  # noqa: E402
from ilme.ilm import Calibration, internal_lm  # noqa: E402
from ilme.ilm.learned_context import LearnedContextOptions, learn_context, loss_per_label  # noqa: E402
from ilme.ilm.transformer import restored  # noqa: E402
from ilme.testing.contract import check_attention_model, check_internal_lm  # noqa: E402
from tests.adapters.tiny import WhisperWords, tiny_whisper, waves  # noqa: E402

LABELS = [5, 9, 12, 5, 30]


@pytest.fixture(scope="module")
def model() -> Whisper:
    return tiny_whisper()


@pytest.fixture(scope="module")
def speech(model: Whisper) -> tuple[torch.Tensor, torch.Tensor]:
    return model.features(waves(2))


@pytest.fixture(scope="module")
def calibration(model: Whisper, speech: tuple[torch.Tensor, torch.Tensor]) -> Calibration:
    hidden, _ = model.hidden(*speech)
    return Calibration(list(hidden), [[5, 6, 7], [9, 8, 7, 6]])


def test_logits_equal_transformers(model, speech):
    features, lengths = speech
    memory = model.encode(features, lengths)
    prefix = torch.tensor([[*model.prefix, *LABELS]] * 2)
    with torch.no_grad():
        upstream = model.model(input_features=features, decoder_input_ids=prefix).logits
    expected = (upstream[:, len(model.prefix) - 1 :] + model.allowed).log_softmax(-1)
    rows, state = model.start(memory)
    first = (upstream[:, len(model.prefix) - 1] + model.allowed_first).log_softmax(-1)
    torch.testing.assert_close(rows, first, atol=1e-4, rtol=0)
    for u, label in enumerate(LABELS):
        rows, state = model.step(torch.tensor([label] * 2), state, memory)
        torch.testing.assert_close(rows, expected[:, u + 1], atol=1e-4, rtol=0)


def test_contract(model, speech):
    check_attention_model(model, *speech, LABELS)


@pytest.mark.parametrize("name", ["removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned"])
def test_internal_lm_contract(model, speech, calibration, name):
    scorer = internal_lm(model, name, calibration=calibration)
    check_internal_lm(scorer, model, *speech, LABELS)
    rows, _ = scorer.start(2)
    assert scorer.finish(rows).shape == (2,)
    again = restored(model, name, scorer.tensors, 1.0)
    torch.testing.assert_close(again.start(1)[0], scorer.start(1)[0])


def test_zeroed_equals_upstream_on_zero_states(model):
    """`transformers` run on encoder states of zero gives what the constant W_o b_v + b_o gives."""
    from transformers.modeling_outputs import BaseModelOutput

    scorer = internal_lm(model, "zeroed")
    ids = torch.tensor([[*model.prefix, *LABELS]])
    with torch.no_grad():
        zero = BaseModelOutput(last_hidden_state=torch.zeros(1, 8, model.encoder_width))
        upstream = model.model(encoder_outputs=zero, decoder_input_ids=ids).logits[:, -1]
    rows, state = scorer.start(1)
    for label in LABELS:
        rows, state = scorer.score(torch.tensor([label]), state)
    expected = (upstream + model.allowed).log_softmax(-1)
    finite = torch.isfinite(expected)
    torch.testing.assert_close(rows[finite], expected[finite], atol=1e-4, rtol=0)


def test_learning_lowers_the_loss_on_held_out_transcripts(model, calibration):
    transcripts = [[5, 6, 7, 8]] * 20 + [[9, 8, 7]] * 20
    start = loss_per_label(model, internal_lm(model, "mean-context", calibration=calibration).context, transcripts)
    before = {name: p.clone() for name, p in model.model.named_parameters()}
    options = LearnedContextOptions(epochs=3, rate=0.1, rank=2)
    scorer = learn_context(model, calibration, transcripts, options)
    assert loss_per_label(model, scorer.context, transcripts) < 0.8 * start
    assert all(torch.equal(p, before[name]) for name, p in model.model.named_parameters())
    again = restored(model, "learned", scorer.tensors, 1.0)
    torch.testing.assert_close(again.start(1)[0], scorer.start(1)[0])


def test_suppressed_units_are_never_possible(model, speech):
    rows, _state = model.start(model.encode(*speech))
    assert torch.isinf(rows[:, model.tokens.eos]).all(), "a transcript may not be empty"
    stamps = model.vocabulary.timestamps
    assert torch.isinf(rows[:, stamps]).all()
    internal, _ = internal_lm(model, "removed").start(1)
    assert torch.isfinite(internal).all(), "∞ − μ·∞ is not a number"


def test_prompt_stands_before_the_transcript():
    words = WhisperWords()
    plain = tiny_whisper(words)
    prompted = tiny_whisper(words, WhisperOptions(prompt="w5 w6"))
    assert prompted.prefix == (words.ids["<|startofprev|>"], 5, 6, *plain.prefix)
    features, lengths = plain.features(waves(1))
    a, _ = plain.start(plain.encode(features, lengths))
    b, _ = prompted.start(prompted.encode(features, lengths))
    assert not torch.allclose(a[torch.isfinite(a)], b[torch.isfinite(b)])


def test_multilingual_prefix_and_its_errors():
    words = WhisperWords(languages=("en", "de"))
    model = tiny_whisper(words, WhisperOptions(language="de", task="translate"))
    names = [words.tokens.pieces[i] for i in model.prefix]
    assert names == ["<|startoftranscript|>", "<|de|>", "<|translate|>", "<|notimestamps|>"]
    with pytest.raises(BadInputError, match="no language 'xx'"):
        tiny_whisper(words, WhisperOptions(language="xx"))
    with pytest.raises(BadInputError, match="English-only"):
        tiny_whisper(WhisperWords(), WhisperOptions(language="de"))


@pytest.mark.parametrize("timestamps", [False, True])
def test_the_language_is_told_window_by_window(timestamps):
    """As `transformers` tells it, and each window is then written as by a model of that language."""
    words = WhisperWords(languages=("en", "de", "fr"))
    model = tiny_whisper(words, WhisperOptions(language="auto", timestamps=timestamps))
    audio = waves(6)
    features, lengths = model.features(audio)
    ids = [words.ids[f"<|{code}|>"] for code in ("en", "de", "fr")]
    with torch.no_grad():
        start = torch.full((6, 1), words.ids["<|startoftranscript|>"])
        upstream = model.model(input_features=features, decoder_input_ids=start).logits[:, 0, ids].softmax(-1)
    told = model.detect_language(audio)
    for row, probabilities in zip(told, upstream, strict=True):
        assert list(row.values()) == sorted(row.values(), reverse=True)
        torch.testing.assert_close(torch.tensor([row[c] for c in ("en", "de", "fr")]), probabilities)
    best = [next(iter(row)) for row in told]
    assert len(set(best)) > 1, "windows of different languages, or nothing is tested"
    memory = model.encode(features, lengths)
    rows, state = model.start(memory)
    after, _ = model.step(torch.tensor([5] * 6), state, memory)
    for b, code in enumerate(best):
        fixed = tiny_whisper(words, WhisperOptions(language=code, timestamps=timestamps))
        own = fixed.encode(features[b : b + 1], lengths[b : b + 1])
        first, state = fixed.start(own)
        torch.testing.assert_close(rows[b : b + 1], first)
        torch.testing.assert_close(after[b : b + 1], fixed.step(torch.tensor([5]), state, own)[0])
    with pytest.raises(BadInputError, match="an internal LM is of one language"):
        internal_lm(model, "zeroed").start(1)


def test_an_english_only_model_tells_no_language(model):
    assert tiny_whisper(options=WhisperOptions(language="auto")).prefix == model.prefix
    with pytest.raises(BadInputError, match="English-only model cannot tell"):
        model.detect_language(waves(1))


def test_large_and_distilled_shapes():
    """128 mels, as large-v3 and turbo have them, and a decoder of one layer over an encoder of three."""
    words = WhisperWords(languages=("en", "de"))
    model = tiny_whisper(words, WhisperOptions(language="de"), num_mel_bins=128, encoder_layers=3, decoder_layers=1)
    features, lengths = model.features(waves(2))
    assert features.shape == (2, 128, 100)
    check_attention_model(model, features, lengths, LABELS)
    hidden, _ = model.hidden(features, lengths)
    for name in internal_lm.available(model):
        calibration = Calibration(list(hidden), [[5, 6, 7], [9, 8, 7, 6]])
        check_internal_lm(internal_lm(model, name, calibration=calibration), model, features, lengths, LABELS)
    test_logits_equal_transformers(model, (features, lengths))


def test_audio_longer_than_the_window_is_refused(model):
    short, long = np.zeros(8_000, dtype=np.float32), np.zeros(40_000, dtype=np.float32)
    for audio in ([long], [short, long], [long, short]):
        with pytest.raises(BadInputError, match=r"2\.5 s of audio, but the model takes 1 s at once"):
            model.features(audio)
    features, lengths = model.features([short, np.zeros(16_000, dtype=np.float32)])
    assert features.shape == (2, 80, 100) and lengths.tolist() == [50, 100], "10 ms a frame, padded to the window"
    assert model.window == 1.0 and model.rate == 16_000


def test_english_only_inventories_name_languages_too(monkeypatch):
    """tiny.en has <|en|> and <|de|> among its units, but does not start with a language."""
    words = WhisperWords(languages=("en", "de"))
    monkeypatch.setattr("ilme.adapters.whisper.ENGLISH_ONLY", len(words.tokens))
    names = [words.tokens.pieces[i] for i in tiny_whisper(words).prefix]
    assert names == ["<|startoftranscript|>", "<|notimestamps|>"]


def test_of_a_long_prompt_the_last_labels_are_kept():
    """64 positions: half of them, less one, for the prompt; what is left after the prefix bounds the transcript."""
    words = WhisperWords()
    plain = tiny_whisper(words)
    assert plain.max_labels == 32, "half of the positions"
    long = tiny_whisper(words, WhisperOptions(prompt=" ".join(f"w{i}" for i in range(40))))
    assert long.prefix == (words.ids["<|startofprev|>"], *range(9, 40), *plain.prefix)
    assert long.max_labels == 64 - len(long.prefix) == 30


class Marks(WhisperWords):
    """Spells some marks as one unit, some as two, and all else as w0."""

    SPELLED = {  # noqa: RUF012
        " -": [10, 0], " '": [11, 0], "(": [12], " (": [13, 0], "♫": [14, 0], " ♫": [15, 16], "♪♪": [17, 0],
        "♪♪♪": [18],
    }  # fmt: skip

    def encode_raw(self, text):
        return self.SPELLED.get(text, [0, 0])


def test_marks_that_are_not_spoken_are_found_by_their_spelling():
    """One unit is suppressed; of several the first, for music signs alone; a dash and an apostrophe before a word."""
    found = tiny_whisper(Marks()).vocabulary.non_speech()
    assert found == [0, 10, 11, 12, 14, 15, 18], "0: how the other music signs begin; not 13 and 17, not 16"


def test_exactly_the_special_units_the_stamps_and_the_marks_are_suppressed():
    words = Marks(languages=("en",))
    specials = {words.ids[name] for name in words.ids if name.startswith("<|")}
    stamps = set(range(words.ids["<|notimestamps|>"] + 1, len(words.tokens)))
    specials -= stamps | {words.tokens.eos}
    marks = {0, 10, 11, 12, 14, 15, 18}

    def suppressed(**options):
        model = tiny_whisper(words, WhisperOptions(**options))
        return set(torch.isinf(model.allowed).nonzero().flatten().tolist())

    assert suppressed() == specials | stamps | marks
    assert suppressed(suppress_non_speech=False) == specials | stamps
    assert suppressed(timestamps=True) == specials | marks
    first = tiny_whisper(words).allowed_first
    assert set(torch.isinf(first).nonzero().flatten().tolist()) == specials | stamps | marks | {words.tokens.eos}
    assert len(specials) == 6 and len(stamps) == 51


def test_options_of_the_wrong_kind_are_named():
    with pytest.raises(BadInputError, match="task must be transcribe or translate, got 'sing'"):
        WhisperOptions(task="sing")
    for name, what in {"language": "a text", "prompt": "a text", "timestamps": "true or false"}.items():
        with pytest.raises(BadInputError, match=f"{name} must be {what}, got '7'"):
            WhisperOptions(**{name: 7})


def test_attention_is_that_of_transformers(model, speech):
    features, lengths = speech
    memory = model.encode(features[:1], lengths[:1])
    labels = torch.tensor(LABELS)
    seen = []
    whole = torch.cat([torch.tensor(model.prefix), labels])[None]
    watched = WatchedAttention(attention(memory), seen)
    (hidden,), _ = model.decoder.run(model.decoder.stream(whole, None, watched))
    (plain,), _ = model.decoder.run(model.decoder.stream(whole, None, attention(memory)))
    assert torch.equal(hidden, plain), "watching changes nothing"
    model.model.set_attn_implementation("eager")
    with torch.no_grad():
        upstream = model.model(input_features=features[:1], decoder_input_ids=whole, output_attentions=True)
    for ours, theirs in zip(seen, upstream.cross_attentions, strict=True):
        torch.testing.assert_close(ours, theirs[0], atol=1e-5, rtol=0)
    rows, frame = model.attended(labels, memory, 0.5)
    assert rows.shape == (len(LABELS) + 1, 25) and frame == pytest.approx(0.02)


def test_heads_that_follow_the_labels_are_chosen():
    generator = torch.Generator().manual_seed(3)
    heads = torch.rand(12, 8, 40, generator=generator)
    for k in range(6):  # every other head goes along with the labels, five frames for each
        for u in range(8):
            heads[2 * k, u, 5 * u : 5 * u + 5] += 10
    rows = followed(heads / heads.sum(-1, keepdim=True))
    assert [int(r.argmax()) // 5 for r in rows] == list(range(8))
    assert followed(torch.rand(3, 1, 1)).shape == (1, 1)
