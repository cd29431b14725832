"""Tiny random models for the adapters' tests."""

from __future__ import annotations

import numpy as np
import torch

from ilme.adapters.canary import Canary, CanaryOptions, CohereASR
from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer
from ilme.adapters.moonshine import Moonshine
from ilme.adapters.moonshine_streaming import MoonshineStreaming
from ilme.adapters.qwen3_asr import Qwen3ASR, Qwen3ASROptions
from ilme.adapters.speech2text import Speech2Text
from ilme.adapters.whisper import Whisper, WhisperOptions
from ilme.tokens import Tokens


class WhisperWords:
    """A word tokenizer with Whisper's special units: ids 0–39 are w0 … w39."""

    def __init__(self, words: int = 40, languages: tuple[str, ...] = ()) -> None:
        special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages)]
        special += ["<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|notimestamps|>"]
        special += [f"<|{i * 0.02:.2f}|>" for i in range(51)]
        pieces = (*(f"w{i}" for i in range(words)), *special)
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        self.words = words
        self._tokens = Tokens(pieces, sos=words + 1, eos=words)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        return [self.ids[word] for word in text.split()]

    def encode_raw(self, text: str) -> list[int]:
        return [self.ids.get(text.strip(), 39)]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.tokens.pieces[i] for i in ids if i < self.words)


def tiny_whisper(
    words: WhisperWords | None = None, options: WhisperOptions | None = None, device: str = "cpu", **sizes: int
) -> Whisper:
    """Two layers of width 16 over one second of audio, unless other sizes are given."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    words = words or WhisperWords()
    size = len(words.tokens)
    layers = {"num_mel_bins": 80, "encoder_layers": 2, "decoder_layers": 2, "max_source_positions": 50} | sizes
    config = WhisperConfig(
        **layers,
        vocab_size=size,
        d_model=16,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_attention_heads=4,
        decoder_ffn_dim=32,
        max_target_positions=64,
        pad_token_id=words.tokens.eos,
        eos_token_id=words.tokens.eos,
        bos_token_id=words.tokens.eos,
        decoder_start_token_id=words.tokens.sos,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    randomise(model)
    return Whisper(model.to(device), words, options)


def randomise(model: torch.nn.Module) -> None:
    """Weights large enough that every part of the network matters, biases included."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator))


def waves(count: int, seconds: float = 0.9) -> list[np.ndarray]:
    """Different noises, of different lengths."""
    generator = np.random.default_rng(3)
    sizes = [int(16_000 * seconds) - 1600 * i for i in range(count)]
    return [generator.standard_normal(n).astype(np.float32) * 0.1 for n in sizes]


class Words:
    """A word tokenizer whose first four ids are <s>, <pad>, </s> and <unk>."""

    def __init__(self, size: int = 40) -> None:
        self._tokens = Tokens(("<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(4, size))), sos=0, eos=2)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.tokens.pieces[i] for i in ids if i > 3)


def tiny_moonshine(device: str = "cpu") -> Moonshine:
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    config = MoonshineConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=64,
        pad_head_dim_to_multiple_of=None,
        decoder_start_token_id=0,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = MoonshineForConditionalGeneration(config)
    randomise(model)
    return Moonshine(model.to(device), Words())


def tiny_moonshine_streaming(device: str = "cpu") -> MoonshineStreaming:
    """An encoder of another width than the decoder's, so that its states are projected."""
    from transformers import MoonshineStreamingConfig, MoonshineStreamingForConditionalGeneration

    encoder = {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    windows = {"num_key_value_heads": 2, "sliding_windows": [[4, 2], [3, 0]]}
    config = MoonshineStreamingConfig(
        encoder_config=encoder | windows,
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,  # not a field of its own upstream, which reads it all the same
        max_position_embeddings=64,
        decoder_start_token_id=0,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = MoonshineStreamingForConditionalGeneration(config)
    randomise(model)
    return MoonshineStreaming(model.to(device), Words())


QWEN_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<asr_text>"]


def tiny_qwen3_asr(options: Qwen3ASROptions | None = None, device: str = "cpu") -> Qwen3ASR:
    """Two layers that hear and two that write, with two heads for one of keys; ids 0–39 are w0 … w39."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

    names = [*(f"w{i}" for i in range(40)), "system", "user", "assistant", "language", "English", *QWEN_SPECIAL]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words)
    fast.add_special_tokens({"additional_special_tokens": QWEN_SPECIAL})
    config = Qwen3ASRConfig(
        audio_config={
            **{"num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24},
            **{"d_model": 16, "n_window": 50, "n_window_infer": 100, "output_dim": 16, "downsample_hidden_size": 4},
        },
        text_config={
            **{"model_type": "qwen3", "vocab_size": len(names), "hidden_size": 16, "intermediate_size": 24},
            **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
        },
        audio_token_id=names.index("<|audio_pad|>"),
        timestamp_token_id=0,
        pad_token_id=names.index("<|im_end|>"),
        eos_token_id=[names.index("<|im_end|>")],
    )
    torch.manual_seed(0)
    model = Qwen3ASRForConditionalGeneration(config)
    randomise(model)
    end = names.index("<|im_end|>")
    return Qwen3ASR(model.to(device), HuggingFaceTokenizer(fast, len(names), end, end), qwen_template, options)


def qwen_template(talk: list[dict]) -> str:
    said = {turn["role"]: turn["content"][0].get("text", "") for turn in talk}
    before = f"<|im_start|> system {said.get('system', '')} <|im_end|> <|im_start|> user <|audio_start|> "
    return f"{before}<|audio_pad|> <|audio_end|> <|im_end|> <|im_start|> assistant {said['assistant']}"


CANARY_SPECIAL = [
    *("<unk>", "<pad>", "<|endoftext|>", "▁", "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>"),
    *("<|en|>", "<|de|>", "<|pnc|>", "<|nopnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
]


class CanaryWords(Words):
    """A word tokenizer with Canary's special units behind w0 … w39."""

    def __init__(self) -> None:
        names = (*(f"w{i}" for i in range(40)), *CANARY_SPECIAL)
        self._tokens = Tokens(names, sos=names.index("<|startofcontext|>"), eos=names.index("<|endoftext|>"))


FAST_CONFORMER = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24},
    **{"conv_kernel_size": 5, "subsampling_conv_channels": 8, "num_mel_bins": 16, "max_position_embeddings": 100},
}


def tiny_canary(options: CanaryOptions | None = None, device: str = "cpu") -> Canary:
    """Two layers that hear, one that writes."""
    from transformers import CanaryConfig, CanaryForConditionalGeneration

    words = CanaryWords()
    eos, size = words.tokens.eos, len(words.tokens)
    config = CanaryConfig(
        encoder_config=FAST_CONFORMER | {"model_type": "parakeet_encoder", "scale_input": False},
        decoder_config={
            **{"vocab_size": size, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64},
            **{"pad_token_id": 41, "eos_token_id": eos, "bos_token_id": eos},
        },
        vocab_size=size,
        pad_token_id=41,
        eos_token_id=eos,
        bos_token_id=eos,
        decoder_start_token_id=words.tokens.sos,
    )
    torch.manual_seed(0)
    model = CanaryForConditionalGeneration(config)
    randomise(model)
    return Canary(model.to(device), words, options)


def tiny_cohere_asr(options: CanaryOptions | None = None, device: str = "cpu") -> CohereASR:
    """An encoder of another width than the decoder's, so that its states are projected."""
    from transformers import CohereAsrConfig, CohereAsrForConditionalGeneration

    words = CanaryWords()
    eos, size = words.tokens.eos, len(words.tokens)
    config = CohereAsrConfig(
        encoder_config=FAST_CONFORMER | {"model_type": "parakeet_encoder"},
        **{"vocab_size": size, "hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "max_position_embeddings": 64},
        **{"pad_token_id": 41, "eos_token_id": eos, "bos_token_id": eos},
    )
    torch.manual_seed(0)
    model = CohereAsrForConditionalGeneration(config)
    randomise(model)
    return CohereASR(model.to(device), words, options)


def tiny_speech2text(device: str = "cpu") -> Speech2Text:
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    config = Speech2TextConfig(
        vocab_size=40,
        d_model=16,
        encoder_layers=1,
        encoder_ffn_dim=24,
        encoder_attention_heads=2,
        decoder_layers=2,
        decoder_ffn_dim=24,
        decoder_attention_heads=2,
        conv_channels=24,
        conv_kernel_sizes=(3, 3),
        max_source_positions=200,
        max_target_positions=64,
        decoder_start_token_id=2,
    )
    model = Speech2TextForConditionalGeneration(config)
    randomise(model)
    return Speech2Text(model.to(device), Words())
