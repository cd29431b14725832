"""Whisper, all sizes, English-only and multilingual.

    model = ilme.load_model("openai/whisper-tiny.en")     # hub id or folder with safetensors
    model = ilme.load_model("tiny.en.pt")                 # OpenAI's own file, whisper.cpp's, or CTranslate2's folder

The decoder starts from <|startoftranscript|>, language and task (multilingual models) and <|notimestamps|>; a
prompt stands before that, after <|startofprev|>.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.decoder import Linear, TransformerDecoder
from ilme.adapters.encoder import read_encoder
from ilme.adapters.hf import RATE, Audio, TransformerAED, attention, read_bart_layers
from ilme.adapters.openai_whisper import LANGUAGES
from ilme.adapters.whisper_timestamps import TimestampRules
from ilme.data.whisper_mel import WhisperMel
from ilme.errors import BadInputError
from ilme.models.packed import worth_packing
from ilme.runtime.formats import Format
from ilme.runtime.state import State
from ilme.tokens import Tokenizer

__all__ = ["Whisper", "WhisperOptions", "WhisperVocabulary"]

# Marks that are written but not spoken: the ones that openai-whisper and the hub's configs suppress.
NON_SPEECH = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』♩♪♫♬♭♮♯',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]"),
    *("{{", "}}", "♪♪", "♪♪♪"),
]
ENGLISH_ONLY = 51864  # output units of every English-only model
AUTO = "auto"
HOP, SIZE = 160, 400  # samples between two feature frames, and in one
POSITIONS = 50  # of the encoder, in a second
STRIDE = 8  # of the silence after the speech one position in so many is read
TINY = 384  # width of the models that do so unless told otherwise: wider ones have not been measured on enough speech
MARGIN = 100  # positions of silence that are read one by one after it
MUSIC = frozenset("♩♪♫♬♭♮♯")


@dataclass(frozen=True)
class WhisperOptions:
    """How a Whisper model is asked to write.

    Attributes:
        language: Language code of the audio, or `auto` to let the model tell for each window; multilingual models only.
            An internal LM is of one language, so that adapting needs its code.
        task: transcribe, or translate into English; multilingual models only.
        prompt: Text that is taken to have come before, in the style wanted.
        timestamps: Put out time stamps between the segments of speech.
        suppress_non_speech: Never put out brackets, music signs and other marks that are not spoken.
        silence: Of the positions of silence after the speech the encoder reads one in so many, which then counts for
            them all; 1 reads every one, as Whisper was trained, and takes longer. 0: one in eight in models of the
            size of `tiny`, where that was measured to cost no words, and every one in larger ones.
    """

    language: str = "en"
    task: str = "transcribe"
    prompt: str = ""
    timestamps: bool = False
    suppress_non_speech: bool = True
    silence: int = 0

    def __post_init__(self) -> None:
        if self.task not in ("transcribe", "translate"):
            raise BadInputError(f"task must be transcribe or translate, got {str(self.task)[:40]!r}")
        for name, kind in {"language": str, "prompt": str, "timestamps": bool, "suppress_non_speech": bool}.items():
            if not isinstance(getattr(self, name), kind):
                what = "a text" if kind is str else "true or false"
                raise BadInputError(f"{name} must be {what}, got {str(getattr(self, name))[:40]!r}")
        if isinstance(self.silence, bool) or not isinstance(self.silence, int) or not 0 <= self.silence <= POSITIONS:
            raise BadInputError(f"silence must be a whole number from 0 to {POSITIONS}, got {str(self.silence)[:40]!r}")


class WhisperTokenizer(Tokenizer, Protocol):
    """A tokenizer that can also encode a text without the space Whisper puts before it."""

    def encode_raw(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class WhisperVocabulary:
    """The special ids of a Whisper inventory, found by name.

    Attributes:
        tokenizer: The tokenizer.
        ids: Every special name, such as <|notimestamps|>, and its id.
    """

    tokenizer: WhisperTokenizer
    ids: dict[str, int]

    @classmethod
    def of(cls, tokenizer: WhisperTokenizer) -> WhisperVocabulary:
        pieces = tokenizer.tokens.pieces
        ids = {p: i for i, p in enumerate(pieces) if p.startswith("<|") and p.endswith("|>")}
        missing = [n for n in ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>") if n not in ids]
        if missing:
            raise BadInputError(f"this is not a Whisper tokenizer: it has no {', '.join(missing)}")
        if tokenizer.tokens.eos != ids["<|endoftext|>"]:
            raise BadInputError(
                f"the model ends with id {tokenizer.tokens.eos}, and <|endoftext|> is id {ids['<|endoftext|>']}: its "
                "config.json belongs to another tokenizer"
            )
        return cls(tokenizer, ids)

    @property
    def multilingual(self) -> bool:
        """Whether the labels start with language and task; English-only models name the languages too."""
        return "<|en|>" in self.ids and len(self.tokenizer.tokens) != ENGLISH_ONLY

    @property
    def timestamps(self) -> list[int]:
        """Ids of <|0.00|>, <|0.02|>, …: all that follow <|notimestamps|>."""
        return list(range(self.ids["<|notimestamps|>"] + 1, len(self.tokenizer.tokens)))

    def prefix(self, options: WhisperOptions, multilingual: bool, room: int) -> list[int]:
        """The labels before the text; the prompt's last `room` labels are kept."""
        start = [self.ids["<|startoftranscript|>"]]
        if multilingual:
            language = "<|en|>" if options.language == AUTO else f"<|{options.language}|>"
            if language not in self.ids:
                raise BadInputError(f"the model has no language {options.language!r}; give a code such as en, de, fr")
            start += [self.ids[language], self.ids[f"<|{options.task}|>"]]
        elif options.task != "transcribe" or options.language not in ("en", AUTO, ""):
            raise BadInputError(f"an English-only model cannot {options.task} {options.language!r}")
        if not options.timestamps:
            start.append(self.ids["<|notimestamps|>"])
        prompt = self.tokenizer.encode(options.prompt)[-room:]
        return [self.ids["<|startofprev|>"], *prompt, *start] if prompt else start

    @property
    def languages(self) -> dict[str, int]:
        """Codes of the languages that the inventory names, and their ids."""
        return {code: self.ids[f"<|{code}|>"] for code in LANGUAGES if f"<|{code}|>" in self.ids}

    def suppressed(self, options: WhisperOptions) -> list[int]:
        """Ids that no transcript contains; time stamps are among them unless they are asked for."""
        stamps = set(self.timestamps)
        special = {i for name, i in self.ids.items() if name != "<|endoftext|>"} - stamps
        marks = self.non_speech() if options.suppress_non_speech else []
        return sorted({*special, *marks, *(() if options.timestamps else stamps)})

    def non_speech(self) -> list[int]:
        encode = self.tokenizer.encode_raw
        ids = {encode(" -")[0], encode(" '")[0]}  # inside a word both stay allowed
        for mark in NON_SPEECH:
            for text in (mark, f" {mark}"):
                labels = encode(text)
                if len(labels) == 1 or mark in MUSIC:
                    ids.add(labels[0])
        return sorted(ids)


class Whisper(TransformerAED):
    """A Whisper model; implements `ilme.protocols.AttentionDecoder`.

    Args:
        model: `WhisperForConditionalGeneration`, or one made of OpenAI's weights.
        tokenizer: Its tokenizer.
        options: Language, task, prompt.
        extractor: The feature extractor that belongs to the model, which must make Whisper's features.
    """

    kind = "whisper"
    upstream = "WhisperForConditionalGeneration"
    options_class = WhisperOptions
    lead = " "
    fixed_length = True
    frame = 1 / POSITIONS

    def __init__(
        self,
        model: Any,
        tokenizer: WhisperTokenizer,
        options: WhisperOptions | None = None,
        extractor: Any = None,
    ) -> None:
        options = options or WhisperOptions()
        self.model = model.eval().requires_grad_(False)
        self.options = options
        self.vocabulary = WhisperVocabulary.of(tokenizer)
        config = model.config
        positions = int(config.max_target_positions)
        prefix = self.vocabulary.prefix(options, self.vocabulary.multilingual, room=positions // 2 - 1)
        super().__init__(
            read_decoder(model),
            tokenizer,
            prefix=prefix,
            suppress=self.vocabulary.suppressed(options),
            suppress_first=[self.vocabulary.ids["<|endoftext|>"], *blank(tokenizer)],
            max_labels=min(positions // 2, positions - len(prefix)),
            rules=TimestampRules(self.vocabulary.timestamps[0], self.vocabulary.ids["<|endoftext|>"])
            if options.timestamps
            else None,
        )
        self.detects_language = options.language == AUTO and self.vocabulary.multilingual
        # Where the language stands among the labels before the text, if the model is to tell it.
        self._language_at = len(prefix) - (2 if options.timestamps else 3) if self.detects_language else None
        self._stride = options.silence or (STRIDE if config.d_model <= TINY else 1)
        self.window = config.max_source_positions * 2 / 100  # two 10 ms frames per position
        if extractor is not None:
            check_extractor(extractor, int(config.num_mel_bins))
        self._mel = WhisperMel(RATE, int(config.num_mel_bins), SIZE, HOP).to(self.device)
        self._encoder = read_encoder(model.get_encoder())

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Log-mel spectrograms of audio padded to the full window (B, mels, 3000), and the frames that hold audio."""
        longest = max(len(a) for a in audio)
        if longest > self.window * RATE + 1:
            raise BadInputError(f"{longest / RATE:.1f} s of audio, but the model takes {self.window:.0f} s at once")
        # Four hops on, a frame holds silence alone, and so do all that follow it.
        waves = torch.zeros(len(audio), longest + 4 * HOP)
        for row, samples in zip(waves, audio, strict=True):
            row[: len(samples)] = torch.from_numpy(np.asarray(samples, dtype=np.float32))
        frames = round(self.window * RATE) // HOP
        made = self._mel(waves.to(self.device)).transpose(1, 2)[:, :, :frames]
        silence = made[:, :, -1:].expand(-1, -1, frames - made.shape[2])
        return torch.cat([made, silence], 2), torch.tensor([len(a) // HOP for a in audio])

    @torch.inference_mode()
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder states, and the logarithms of how much each counts: see `ilme.adapters.encoder`."""
        speech = (lengths.to(self.device) + 1) // 2 + MARGIN
        return self._encoder(features.to(self.device, self.dtype), speech, self._stride)

    def pack(self, format: Format = "float32") -> None:
        super().pack(format)
        if worth_packing(format):
            self._encoder.pack(format)

    @torch.inference_mode()
    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """As every decoder's; where the model is to tell the language, with the labels that each text starts with."""
        memory: dict[str, Any] = super().memory(hidden, mask)
        if self._language_at is not None:
            ids = torch.tensor(list(self.vocabulary.languages.values()), device=self.device)
            prefix = super().own_prefix(len(hidden)).clone()
            prefix[:, self._language_at] = ids[self._languages(memory).argmax(1)]
            memory["prefix"] = prefix
        return memory

    def own_prefix(self, n: int) -> Tensor:
        if self._language_at is not None:
            raise BadInputError("an internal LM is of one language: name it in place of auto, such as language=de")
        return super().own_prefix(n)

    @torch.inference_mode()
    def detect_language(self, audio: Sequence[Audio]) -> list[dict[str, float]]:
        """The probability of each language, by its code, for each of several waveforms; the most likely one first."""
        if not self.vocabulary.multilingual:
            raise BadInputError("an English-only model cannot tell languages apart")
        memory = super().memory(*self.hidden(*self.features(audio)))
        codes = list(self.vocabulary.languages)
        found = [dict(zip(codes, row, strict=True)) for row in self._languages(memory).softmax(1).tolist()]
        return [dict(sorted(each.items(), key=lambda pair: -pair[1])) for each in found]

    def _languages(self, memory: State) -> Tensor:
        """Logits (B, languages) of the label after <|startoftranscript|>."""
        start = torch.full((len(memory["keys"][0]), 1), self.vocabulary.ids["<|startoftranscript|>"])
        hidden, _ = self.first(len(start), attention(memory), start.to(self.device))
        return self.decoder.output(hidden)[:, list(self.vocabulary.languages.values())].float()


def read_decoder(model: Any) -> TransformerDecoder:
    """The decoder of a `WhisperForConditionalGeneration`."""
    config, decoder = model.config, model.model.decoder
    layers = read_bart_layers(model)
    factor = math.sqrt(config.d_model) if config.scale_embedding else 1.0
    words, positions = decoder.embed_tokens.weight.detach(), decoder.embed_positions.weight.detach()

    def embed(labels: Tensor, at: int) -> Tensor:
        embedded: Tensor = words[labels] * factor + positions[at : at + labels.shape[1]]
        return embedded

    return TransformerDecoder(layers, embed, decoder.layer_norm, Linear.of(model.proj_out))


def blank(tokenizer: Tokenizer) -> list[int]:
    """The lone space, which openai-whisper does not let a transcript begin with."""
    return [i for i, piece in enumerate(tokenizer.tokens.pieces) if piece in (" ", "Ġ")]


def check_extractor(extractor: Any, bands: int) -> None:
    """Features are made here as Whisper's are; a model that was trained on others would hear noise."""
    for name, wanted in {"feature_size": bands, "sampling_rate": RATE, "hop_length": HOP, "n_fft": SIZE}.items():
        found = getattr(extractor, name, wanted)
        if found != wanted:
            raise BadInputError(f"the feature extractor has {name}={found}, and this Whisper model needs {wanted}")


def feature_extractor(config: Any) -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
        feature_size=config.num_mel_bins, chunk_length=config.max_source_positions * 2 // 100
    )
