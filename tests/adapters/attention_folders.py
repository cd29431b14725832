"""Tiny folders of `transformers` models that write label by label: random weights, words w0, w1, … for a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.adapters import tiny
from tests.adapters.frame_models import NEMO

BANDS = {"feature_extractor_type": "ParakeetFeatureExtractor", **NEMO}
WAVE = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 16_000}
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {% for c in m.content %}"
    "{% if c.type == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% if not loop.last %}<|im_end|>{% endif %}{% endfor %}"
)


def whisper(folder: Path) -> None:
    _write_whisper(folder, tiny.tiny_whisper())


def turbo(folder: Path) -> None:
    """A Whisper of the shape of turbo and the distilled ones: 128 mels, one decoder layer of three, multilingual."""
    words = tiny.WhisperWords(languages=("en", "de"))
    _write_whisper(folder, tiny.tiny_whisper(words, num_mel_bins=128, encoder_layers=3, decoder_layers=1))


def _write_whisper(folder: Path, made: Any) -> None:
    from transformers import WhisperFeatureExtractor

    _write(folder, made, made.tokenizer.tokens.pieces, "w0")
    bands = made.model.config.num_mel_bins
    WhisperFeatureExtractor(feature_size=bands, chunk_length=1).save_pretrained(folder)


def moonshine(folder: Path) -> None:
    made = tiny.tiny_moonshine()
    _write(folder, made, made.tokens.pieces, "<unk>", WAVE)


def moonshine_streaming(folder: Path) -> None:
    made = tiny.tiny_moonshine_streaming()
    _write(folder, made, made.tokens.pieces, "<unk>", WAVE)


def canary(folder: Path) -> None:
    made = tiny.tiny_canary()
    _write(folder, made, made.tokens.pieces, "<unk>", BANDS)


def cohere_asr(folder: Path) -> None:
    made = tiny.tiny_cohere_asr()
    _write(folder, made, made.tokens.pieces, "<unk>", BANDS | {"feature_extractor_type": "CohereAsrFeatureExtractor"})


def speech_to_text(folder: Path) -> None:
    made = tiny.tiny_speech2text()
    _write(folder, made, made.tokens.pieces, "<unk>")
    made._extractor.save_pretrained(folder)


def qwen3_asr(folder: Path) -> None:
    made = tiny.tiny_qwen3_asr()
    made.model.save_pretrained(folder)
    made._extractor.save_pretrained(folder)
    words: Any = made.tokenizer._tokenizer  # type: ignore[attr-defined]
    words.chat_template = QWEN
    words.save_pretrained(folder)


WRITE: dict[str, Callable[[Path], None]] = {
    "whisper": whisper,
    "moonshine": moonshine,
    "moonshine_streaming": moonshine_streaming,
    "canary": canary,
    "cohere_asr": cohere_asr,
    "speech_to_text": speech_to_text,
    "qwen3_asr": qwen3_asr,
}


def _write(folder: Path, made: Any, pieces: tuple[str, ...], unk: str, extractor: dict[str, Any] | None = None) -> None:
    """Weights, config, a tokenizer whose ids are those of the pieces, and what the feature extractor is told."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made.model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=unk))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words)
    fast.add_special_tokens({"additional_special_tokens": [p for p in pieces if p.startswith("<")]})
    fast.save_pretrained(folder)
    if extractor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
