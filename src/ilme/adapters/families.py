"""Every kind of model that is known here, and what it can do: the tables of models are made from this list.

A row that says what a model cannot is a failing test (`tests/adapters/test_model_table.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAMILIES", "Family"]

TRANSDUCER = ("removed", "silence", "mean-encoder")
CTC = ("removed", "frame-prior", "distilled")
TRANSFORMER = ("removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned")
CLOSED = ("zeroed", "silence", "mean-encoder")  # a decoder that cannot be opened
HUB = "hub id, folder with safetensors"


@dataclass(frozen=True)
class Family:
    """One kind of model.

    Attributes:
        kind: What `model.kind` says.
        title: What it is called in tables.
        named_by: What `ilme.load_model` takes.
        internal: Its internal LMs, in their order.
        extra: Which of the package's extras it needs.
        adapter: Module and class, for models of `transformers`; their `model_type` is then the kind.
        stream: Whether audio can be searched as it comes.
        int8: Whether `--format int8` packs it.
        gpu: Whether it runs on one.
        short: Its name in the short table, where kinds of one name share a row.
    """

    kind: str
    title: str
    named_by: str
    internal: tuple[str, ...]
    short: str
    extra: str = "`hf`"
    adapter: str = ""
    stream: str = "no"
    int8: str = "yes"
    gpu: str = "yes"


FAMILIES = (
    Family(
        "rnnt",
        "RNN-T of `ilme train rnnt`, any preset; a [TDT](../guide/tdt.md) with `--tdt`",
        "folder or `model.safetensors`; `bundled/rnnt`",
        (*TRANSDUCER, "learned"),
        "RNN-T, TDT, AED, CTC of `ilme train`",
        extra="–",
        stream="forward encoders",
    ),
    Family(
        "aed",
        "AED of `ilme train aed`, any preset",
        "folder or `model.safetensors`; `bundled/aed`",
        ("removed", "mean-context", "learned"),
        "RNN-T, TDT, AED, CTC of `ilme train`",
        extra="–",
    ),
    Family(
        "ctc",
        "the CTC layer of an AED or RNN-T of `ilme train` that has one",
        "the same folder, and `--head ctc`",
        CTC,
        "RNN-T, TDT, AED, CTC of `ilme train`",
        extra="–",
        stream="forward encoders",
    ),
    Family(
        "whisper",
        "Whisper, all sizes, English-only and multilingual",
        "hub id, folder with safetensors, OpenAI `.pt`, whisper.cpp `.bin` (float16, float32), CTranslate2 folder as "
        "faster-whisper has it (float32, 16 bits, int8)",
        TRANSFORMER,
        "Whisper: hub, OpenAI, whisper.cpp, faster-whisper",
        extra="`hf`; `.pt` and `.bin` also `openai`",
        adapter="ilme.adapters.whisper:Whisper",
    ),
    Family(
        "moonshine", "Moonshine", HUB, TRANSFORMER, "Moonshine, both generations",
        adapter="ilme.adapters.moonshine:Moonshine",
    ),
    Family(
        "moonshine_streaming",
        "Moonshine, second generation (its windows are heard whole)",
        HUB,
        TRANSFORMER,
        "Moonshine, both generations",
        adapter="ilme.adapters.moonshine_streaming:MoonshineStreaming",
    ),
    Family(
        "canary", "Canary (NVIDIA)", HUB, TRANSFORMER, "Canary, Cohere, Speech2Text",
        adapter="ilme.adapters.canary:Canary",
    ),
    Family(
        "cohere_asr",
        "Cohere's transcription model",
        HUB,
        TRANSFORMER,
        "Canary, Cohere, Speech2Text",
        adapter="ilme.adapters.canary:CohereASR",
    ),
    Family(
        "speech_to_text",
        "Speech2Text",
        HUB,
        TRANSFORMER,
        "Canary, Cohere, Speech2Text",
        adapter="ilme.adapters.speech2text:Speech2Text",
    ),
    Family(
        "qwen3_asr",
        "Qwen3-ASR, a causal LM that hears",
        HUB,
        (*CLOSED, "learned"),
        "Qwen3-ASR",
        adapter="ilme.adapters.qwen3_asr:Qwen3ASR",
        int8="no",
    ),
    Family(
        "parakeet_rnnt",
        "Parakeet as an RNN-T",
        HUB,
        TRANSDUCER,
        "Parakeet: RNN-T, TDT, CTC; Nemotron",
        adapter="ilme.adapters.parakeet:ParakeetRNNT",
        int8="no",
    ),
    Family(
        "parakeet_tdt",
        "Parakeet with durations, a [TDT](../guide/tdt.md)",
        HUB,
        TRANSDUCER,
        "Parakeet: RNN-T, TDT, CTC; Nemotron",
        adapter="ilme.adapters.parakeet:ParakeetTDT",
        int8="no",
    ),
    Family(
        "parakeet_ctc",
        "Parakeet with a CTC layer",
        HUB,
        CTC,
        "Parakeet: RNN-T, TDT, CTC; Nemotron",
        adapter="ilme.adapters.parakeet:ParakeetCTC",
        int8="no",
    ),
    Family(
        "nemotron_asr_streaming",
        "Nemotron streaming ASR, an RNN-T with a chosen look-ahead",
        HUB,
        TRANSDUCER,
        "Parakeet: RNN-T, TDT, CTC; Nemotron",
        adapter="ilme.adapters.nemotron:Nemotron",
        stream="in chunks",
        int8="no",
    ),
    Family(
        "wav2vec2", "wav2vec 2.0 with a CTC layer (`…ForCTC`)", HUB, CTC, "wav2vec 2.0, HuBERT",
        adapter="ilme.adapters.wav2vec2:Wav2Vec2", int8="no",
    ),
    Family(
        "hubert", "HuBERT with a CTC layer (`…ForCTC`)", HUB, CTC, "wav2vec 2.0, HuBERT",
        adapter="ilme.adapters.wav2vec2:Hubert", int8="no",
    ),
    Family(
        "onnx-transducer",
        "transducer as icefall exports it, for whole utterances or for streaming, or [`ilme export onnx`]"
        "(../guide/train.md#take-a-model-elsewhere-onnx)",
        "folder with encoder, decoder, joiner and tokens.txt",
        TRANSDUCER,
        "ONNX transducers: icefall, sherpa-onnx, NeMo",
        extra="`onnx`",
        int8="its files",
        gpu="no",
    ),
    Family(
        "onnx-nemo",
        "RNN-T as NeMo's `export()` writes it, and onnx-asr and sherpa-onnx have it",
        "folder with encoder and decoder_joint (or decoder and joiner), and vocab.txt or tokens.txt",
        TRANSDUCER,
        "ONNX transducers: icefall, sherpa-onnx, NeMo",
        extra="`onnx`",
        int8="its files",
        gpu="no",
    ),
    Family(
        "onnx-nemo-tdt",
        "TDT as NeMo's `export()` writes it",
        "the same files",
        TRANSDUCER,
        "ONNX transducers: icefall, sherpa-onnx, NeMo",
        extra="`onnx`",
        int8="its files",
        gpu="no",
    ),
    Family(
        "onnx-attention",
        "Whisper or Moonshine with a merged decoder, as Optimum exports it",
        "folder with encoder_model and decoder_model_merged, or with `onnx/`",
        CLOSED,
        "ONNX Whisper and Moonshine",
        extra="`onnx`, `hf`",
        int8="its files",
        gpu="no",
    ),
)  # fmt: skip
