"""Qwen3-ASR: an audio encoder whose outputs stand in the prompt of a causal LM, which then writes the transcript.

    model = ilme.load_model("Qwen/Qwen3-ASR-0.6B-hf")     # hub id or folder with safetensors

    prompt = head · a_1 … a_T · tail,   a_t the audio embeddings;   P(y_u | x, y_<u) = LM(prompt · y_<u)

Head and tail come from the model's own chat template. Such a model is an attention decoder whose memory is the prompt's
keys and values: each is computed once per utterance, and label sequences share it. Its internal LM is the same network
with other embeddings between head and tail: none, those of silence, their mean, or learned ones.

Shapes: n label sequences, B utterances, T audio embeddings, L positions of the prompt, D the LM's width, V units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.hf import RATE, Audio, OwnOptions
from ilme.adapters.hf_tokenizer import HuggingFaceTokenizer
from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.state import State
from ilme.tokens import Tokenizer, Tokens

__all__ = ["Qwen3ASR", "Qwen3ASROptions"]

LANGUAGES = {  # as the model's transcripts name them
    **{"ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish"},
    **{"fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French", "hi": "Hindi", "hu": "Hungarian"},
    **{"id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay"},
    **{"nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish"},
    **{"th": "Thai", "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese"},
}
END = "<|im_end|>"


@dataclass(frozen=True)
class Qwen3ASROptions:
    """How a Qwen3-ASR model is asked to write.

    Attributes:
        language: Language code of the audio.
        prompt: What the model is told before it hears: names and terms, or what the talk is about.
        max_labels: The most labels of one window.
    """

    language: str = "en"
    prompt: str = ""
    max_labels: int = 256

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            known = ", ".join(LANGUAGES)
            raise BadInputError(f"language is one of {known}, not {str(self.language)[:40]!r}")
        if self.max_labels < 1:
            raise BadInputError(f"max_labels must be at least 1, got {self.max_labels}")


class Qwen3ASR(OwnOptions):
    """A Qwen3-ASR model; implements `ilme.protocols.AttentionDecoder` and `CompactMemory`.

    Args:
        model: `Qwen3ASRForConditionalGeneration`.
        tokenizer: Its tokenizer.
        template: The model's chat template: from a conversation to the text that the model reads.
        options: Language, prompt.
        extractor: Its feature extractor; made from the model's config if not given.
    """

    kind = "qwen3_asr"
    upstream = "Qwen3ASRForConditionalGeneration"
    options_class = Qwen3ASROptions
    window: float = 30.0
    rate: int = RATE

    def __init__(
        self,
        model: Any,
        tokenizer: HuggingFaceTokenizer,
        template: Callable[[list[dict[str, Any]]], str],
        options: Qwen3ASROptions | None = None,
        extractor: Any = None,
    ) -> None:
        self.options = options or Qwen3ASROptions()
        self.model = model.eval().requires_grad_(False)
        self.tokenizer: Tokenizer = tokenizer
        self.max_labels = self.options.max_labels
        self._extractor = extractor if extractor is not None else feature_extractor(model.config)
        audio = tokenizer.tokens.pieces[model.config.audio_token_id]
        text = template(conversation(self.options))
        if text.count(audio) != 1:
            raise CheckpointError(f"the chat template gives {audio} {text.count(audio)} times, not once")
        self._head, self._tail = (tokenizer.encode_raw(part) for part in text.split(audio))
        self.allowed = torch.zeros(len(tokenizer.tokens), device=self.device)
        self.allowed[unwritten(tokenizer.tokens)] = -torch.inf

    @classmethod
    def from_pretrained(
        cls, name: str, options: Any = None, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Loads a hub id or a local folder. Only safetensors are read, and no code of the repository is run."""
        from ilme.adapters.hub import hub_extractor, hub_model, hub_tokenizer, reason

        model, words = hub_model(name, cls.upstream, device, dtype), hub_tokenizer(name)
        size = int(model.config.text_config.vocab_size)
        end = words.convert_tokens_to_ids(END)
        if not isinstance(end, int) or not 0 <= end < size:
            raise CheckpointError(f"the tokenizer of {name} has no {END}: it is not Qwen3-ASR's")
        if not getattr(words, "chat_template", None):
            raise CheckpointError(f"{name} has no chat template, which says how the model is spoken to: get it whole")

        def template(talk: list[dict[str, Any]]) -> str:
            try:
                return str(words.apply_chat_template(talk, tokenize=False, continue_final_message=True))
            except Exception as error:  # of the template's language, which knows many kinds
                raise CheckpointError(f"the chat template of {name} cannot be used: {reason(error)}") from error

        return cls(model, HuggingFaceTokenizer(words, size, end, end), template, options, hub_extractor(name))

    @property
    def tokens(self) -> Tokens:
        return self.tokenizer.tokens

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = self.model.dtype
        return kind

    @property
    def encoder_width(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[1])

    # --- audio ------------------------------------------------------------------------------------------------------

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """Log-mel spectrograms, padded to whole chunks (B, bands, frames), and the frames that hold audio (B,)."""
        made = self._extractor(
            [np.asarray(a, dtype=np.float32) for a in audio],
            sampling_rate=RATE,
            padding=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return made["input_features"], made["attention_mask"].sum(-1)

    @torch.no_grad()
    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Audio embeddings (B, T, D) in the LM's width, and a mask (B, T); None if all count."""
        tower = self.model.model
        heard = torch.arange(features.shape[-1], device=self.device) < lengths.to(self.device)[:, None]
        packed = tower.get_audio_features(
            features.to(self.device, self.dtype), heard.long(), return_dict=True
        ).pooler_output  # utterances one after the other
        chunk = 2 * int(self.model.config.audio_config.n_window)
        frames = heard.view(len(heard), -1, chunk).sum(-1)
        counts = tower.audio_tower._post_cnn_length(frames).sum(-1).tolist()
        states = torch.nn.utils.rnn.pad_sequence(packed.split(counts), batch_first=True)
        mask = torch.arange(states.shape[1], device=self.device) < torch.tensor(counts, device=self.device)[:, None]
        return states, None if bool(mask.all()) else mask

    @torch.no_grad()
    def encode(self, features: Tensor, lengths: Tensor) -> State:
        return self.memory(*self.hidden(features, lengths))

    @torch.no_grad()
    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """Keys and values of the prompt, layer by layer (B, H, L, D/H), and what follows it."""
        prompt, heard = self._prompt(hidden, mask)
        rows, cache = self._run(prompt, heard, heard.long().cumsum(1).sub(1).clamp(min=0), None)
        return {"rows": rows[:, -1], "keys": [k for k, _ in cache], "values": [v for _, v in cache], "heard": heard}

    def without_audio(self) -> State:
        """The prompt with nothing between head and tail."""
        return self.memory(torch.zeros(1, 0, self.encoder_width, device=self.device, dtype=self.dtype))

    def _prompt(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Embeddings of the prompts, padded on the left (B, L, D), and where they are (B, L)."""
        embed = self.model.get_input_embeddings()
        head, tail = (
            embed(torch.tensor(ids, device=self.device, dtype=torch.long)) for ids in (self._head, self._tail)
        )
        counts = [hidden.shape[1]] * len(hidden) if mask is None else mask.sum(1).tolist()
        whole = [torch.cat([head, h[:t].to(head), tail]) for h, t in zip(hidden, counts, strict=True)]
        longest = max(len(w) for w in whole)
        padded = [torch.nn.functional.pad(w, (0, 0, longest - len(w), 0)) for w in whole]
        begins = torch.tensor([longest - len(w) for w in whole], device=self.device)
        return torch.stack(padded), torch.arange(longest, device=self.device) >= begins[:, None]

    # --- labels -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, memory: State) -> tuple[Tensor, State]:
        empty = [(k[:, :, :0], v[:, :, :0]) for k, v in zip(memory["keys"], memory["values"], strict=True)]
        return self._normalise(memory["rows"]), empty

    @torch.no_grad()
    def step(self, labels: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        each = len(labels) // len(memory["rows"])
        heard = memory["heard"].repeat_interleave(each, 0)
        prompt = [
            (k.repeat_interleave(each, 0), v.repeat_interleave(each, 0))
            for k, v in zip(memory["keys"], memory["values"], strict=True)
        ]
        past = [(torch.cat([a, k], 2), torch.cat([b, v], 2)) for (a, b), (k, v) in zip(prompt, state, strict=True)]
        done = state[0][0].shape[2]
        places = (heard.sum(1) + done)[:, None]
        seen = torch.cat([heard, heard.new_ones(len(labels), done + 1)], 1)
        embedded = self.model.get_input_embeddings()(labels[:, None])
        rows, cache = self._run(embedded, seen, places, past)
        own = heard.shape[1]
        return self._normalise(rows[:, -1]), [(k[:, :, own:], v[:, :, own:]) for k, v in cache]

    def teacher_forced(self, labels: Tensor, context: Callable[[], Tensor]) -> Tensor:
        """Logits (n, U + 1, V) of every label and of the end after given labels (n, U), with gradients.

        What the context gives, (T, D), stands where the audio does.
        """
        n = len(labels)
        prompt, heard = self._prompt(context()[None], None)
        embedded = torch.cat([prompt.expand(n, -1, -1), self.model.get_input_embeddings()(labels)], 1)
        seen = torch.cat([heard.expand(n, -1), heard.new_ones(labels.shape)], 1)
        places = torch.arange(embedded.shape[1], device=self.device).expand(n, -1)
        rows, _ = self._run(embedded, seen, places, None)
        return rows[:, heard.shape[1] - 1 :]

    def _run(
        self, embedded: Tensor, seen: Tensor, places: Tensor, past: list[tuple[Tensor, Tensor]] | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits (n, q, V) after embeddings (n, q, D) at places (n, q), and the keys and values of all positions."""
        from transformers import DynamicCache

        cache = DynamicCache() if past is None else DynamicCache(past)
        out = self.model.model.language_model(
            inputs_embeds=embedded,
            attention_mask=seen.long(),
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        layers = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        return self.model.lm_head(out.last_hidden_state), layers

    def _normalise(self, logits: Tensor) -> Tensor:
        return (logits.float() + self.allowed).log_softmax(-1)


def conversation(options: Qwen3ASROptions) -> list[dict[str, Any]]:
    """What is said to the model before it writes: the prompt, the audio, the language."""
    told = [{"role": "system", "content": [{"type": "text", "text": options.prompt}]}] if options.prompt else []
    begun = f"language {LANGUAGES[options.language]}<asr_text>"
    return [
        *told,
        {"role": "user", "content": [{"type": "audio"}]},
        {"role": "assistant", "content": [{"type": "text", "text": begun}]},
    ]


def unwritten(tokens: Tokens) -> list[int]:
    """Units such as <|im_start|> and <asr_text>, which no transcript contains; the end is none of them."""
    marked = [
        i for i, p in enumerate(tokens.pieces) if p.startswith(("<|", "<id ", "<asr", "<tool", "</tool", "<think"))
    ]
    return [i for i in marked if i != tokens.eos]


def feature_extractor(config: Any) -> Any:
    from transformers import Qwen3ASRFeatureExtractor

    audio = config.audio_config
    return Qwen3ASRFeatureExtractor(  # type: ignore[no-untyped-call]
        feature_size=audio.num_mel_bins, n_window=audio.n_window
    )
