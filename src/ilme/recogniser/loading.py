"""From a name to a model, an LM, a recogniser. One table says what a name can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ilme import bundle
from ilme.adapters.ctranslate2 import is_ctranslate2
from ilme.errors import BadInputError, CheckpointError
from ilme.ilm import internal_lm
from ilme.ilm.decoder_lm import is_decoder_lm, load_decoder_lm
from ilme.ilm.files import is_internal_lm
from ilme.lm.mixing import is_mixture, read_mixture
from ilme.lm.mixture import MixtureScorer
from ilme.lm.phrase_list import read_phrases
from ilme.protocols import TokenScorer
from ilme.recogniser.options import Options, SearchSettings, default_options
from ilme.recogniser.packing import pack_networks
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.cuda import check_device
from ilme.runtime.files import short_hash, weights_file
from ilme.runtime.formats import Format
from ilme.tokens import Tokens, check_same_vocabulary

if TYPE_CHECKING:
    from ilme.data.tokenizer import SentencePieceTokenizer

__all__ = [
    "FORMATS",
    "INTERNAL",
    "ModelFormat",
    "Parts",
    "describe",
    "find_tokenizer",
    "is_causal",
    "is_checkpoint",
    "load_lm",
    "load_model",
    "load_recogniser",
    "load_subtracted",
    "parts_for",
]

INTERNAL = "internal"  # the internal LM that suits the model's family
HUB_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*(?<!\.safetensors)(?<!\.onnx)")
LM_FILES = (".arpa", ".bin", ".binary", ".gguf", ".gz", ".json", ".klm", ".lm", ".mmap", ".safetensors", ".trie")
METHODS = ("BS", "SF", "DR", "LODR", "ILME", "ILME-learned")


# --- models -----------------------------------------------------------------------------------------------------------


class LoadModel(Protocol):
    """Loads a model as `load_model` does."""

    def __call__(self, name: str, device: str = ..., **options: Any) -> Any: ...


@dataclass(frozen=True)
class ModelFormat:
    """One thing that the name of a model can be.

    Attributes:
        name: What it is.
        matches: Whether a name is one; nothing but names and headers are looked at.
        load: Name, device, dtype and the model's own options to the model.
    """

    name: str
    matches: Callable[[str], bool]
    load: Callable[[str, str, torch.dtype, dict[str, Any]], Any]


def load_model(name: str | Path, device: str = "cpu", dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Loads any speech model: it implements `SpeechModel`, and `Transducer`, `CTCModel` or `AttentionDecoder`.

    Args:
        name: A checkpoint of `ilme train` (folder or file), `bundled/rnnt` or `bundled/aed`; a hub id or folder in
            `transformers` format (Whisper, Moonshine, Speech2Text, Parakeet, wav2vec2, HuBERT); OpenAI's `.pt`,
            whisper.cpp's `.bin` or a folder of CTranslate2, as faster-whisper has it; a folder of ONNX files: encoder,
            decoder and joiner as icefall exports them, encoder and decoder_joint as NeMo does, or encoder and merged
            decoder as Optimum does (Whisper, Moonshine).
        device: Where it runs.
        dtype: Number format of the weights; ONNX files have their own.
        options: What the model's own kind takes: language, task, prompt, timestamps, ranks of Whisper; head="ctc" of a
            network of `ilme train`, for its CTC layer in place of its decoder.
    """
    check_device(device)
    found = next((f for f in FORMATS if f.matches(str(name))), None)
    if found is None:
        what = "is no model" if Path(name).exists() else "is not there"
        raise CheckpointError(f"{name} {what}: expected {'; '.join(f.name for f in FORMATS)}")
    return found.load(str(name), device, dtype, options)


def is_checkpoint(name: str | Path) -> bool:
    """Whether it is a checkpoint of ours."""
    from safetensors import SafetensorError, safe_open

    file = weights_file(Path(name))
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    try:
        with safe_open(file, framework="pt") as reader:
            return "ilme" in (reader.metadata() or {})
    except (SafetensorError, OSError):
        return True  # damaged: the checkpoint reader says how


def _load_bundled(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    return _load_checkpoint(str(bundle.file(name.removeprefix(bundle.PREFIX))), device, dtype, options)


def _load_checkpoint(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from ilme.models.checkpoint import load_checkpoint
    from ilme.models.ctc_head import CTCHead

    head = options.get("head", "")
    _no_options(name, {k: v for k, v in options.items() if k != "head"})
    if head not in ("", "ctc"):
        raise BadInputError(f"a network of ilme train has the head 'ctc' beside its own, not {str(head)[:40]!r}")
    loaded = load_checkpoint(name, device=device)
    if loaded.kind == "lm":
        raise BadInputError(f"{name} is a language model; a recogniser (rnnt or aed) is needed here")
    model = loaded.model.to(dtype)
    return CTCHead(model) if head else model


def _is_whisper_file(name: str) -> bool:
    return Path(name).suffix in (".pt", ".bin") and not Path(name).is_dir()


def _load_whisper_file(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from ilme.adapters.openai_whisper import TiktokenTokenizer, build, find_ranks, read_pt
    from ilme.adapters.whisper import Whisper
    from ilme.adapters.whisper_cpp import read_ggml

    path, own = Path(name), dict(options)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    dims, parameters = read_pt(path) if path.suffix == ".pt" else read_ggml(path)
    given = own.pop("ranks", None)
    ranks = find_ranks(dims["n_vocab"] >= 51865, None if given is None else Path(given), beside=path)
    tokenizer = TiktokenTokenizer(ranks, dims["n_vocab"])
    model = build(dims, parameters).to(device=device, dtype=dtype)
    return Whisper(model, tokenizer, Whisper.make_options(**own))


def _load_ctranslate2(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from ilme.adapters.ctranslate2 import read_ctranslate2, read_tokenizer
    from ilme.adapters.openai_whisper import build
    from ilme.adapters.whisper import Whisper

    folder, own = Path(name), dict(options)
    ranks = own.pop("ranks", None)
    dims, parameters = read_ctranslate2(folder)
    words = read_tokenizer(folder, dims["n_vocab"], None if ranks is None else Path(ranks))
    return Whisper(build(dims, parameters).to(device=device, dtype=dtype), words, Whisper.make_options(**own))


def _onnx_kind(name: str) -> str | None:
    """Which ONNX model a folder holds; None where the weights lie open beside it, which can do more."""
    from ilme.adapters.onnx_session import recognise

    folder = Path(name)
    return recognise(folder) if folder.is_dir() and not any(folder.glob("model*.safetensors")) else None


def _load_onnx_transducer(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from ilme.adapters.onnx_nemo import is_nemo, load_nemo
    from ilme.adapters.onnx_transducer import OnnxTransducer

    _no_options(name, options)
    _on_cpu(name, device)
    return load_nemo(name) if is_nemo(Path(name)) else OnnxTransducer.from_folder(name)


def _load_onnx_attention(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from ilme.adapters.onnx_attention import OnnxAttention

    _on_cpu(name, device)
    return OnnxAttention.from_folder(name, options or None)


def _is_hub(name: str) -> bool:
    """A folder with config.json, or a name that may be a hub id: NAME or ORGANISATION/NAME."""
    return Path(name).is_dir() or (not Path(name).exists() and HUB_ID.fullmatch(name) is not None)


def _load_hub(name: str, device: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    from ilme.adapters.hub import adapter_class

    adapter = adapter_class(name)
    return adapter.from_pretrained(name, adapter.make_options(**options), device, dtype)


FORMATS = (
    ModelFormat("bundled/rnnt or bundled/aed", lambda name: name.startswith(bundle.PREFIX), _load_bundled),
    ModelFormat("a checkpoint of ilme train", is_checkpoint, _load_checkpoint),
    ModelFormat("OpenAI's .pt or whisper.cpp's .bin", _is_whisper_file, _load_whisper_file),
    ModelFormat("a folder of CTranslate2, as faster-whisper has it", is_ctranslate2, _load_ctranslate2),
    ModelFormat(
        "a folder of an ONNX transducer", lambda n: _onnx_kind(n) in ("transducer", "nemo"), _load_onnx_transducer
    ),
    ModelFormat(
        "a folder of an ONNX encoder and decoder", lambda n: _onnx_kind(n) == "attention", _load_onnx_attention
    ),
    ModelFormat("a folder of transformers, or a hub id", _is_hub, _load_hub),
)


def _no_options(name: str, options: dict[str, Any]) -> None:
    if options:
        raise BadInputError(f"{name} takes no {', '.join(options)}: those are options of Whisper")


def _on_cpu(name: str, device: str) -> None:
    if device != "cpu":
        raise BadInputError(f"{name} is in ONNX, which runs on the CPU here; the device is {device}")


# --- language models --------------------------------------------------------------------------------------------------


def load_lm(name: str | Path, model: Any, device: str = "") -> TokenScorer:
    """Loads an LM for a model, and checks that both have the same tokens.

    Args:
        name: A checkpoint of `ilme train lm`, an n-gram (`ilme ngram train`, ARPA, KenLM), the model's own decoder as
            `ilme adapt --lm decoder` trained it, a mixture of such (`ilme lm mix`), `bundled/lm` or
            `bundled/source_lm`, or any causal LM of `transformers`, as a hub id, a folder or a .gguf file: label by
            label if its ids are the model's, at word ends otherwise.
        model: The model, or its token inventory.
        device: Where it runs; where the model is, if not given.
    """
    from ilme.lm.ngram import load_ngram

    tokens: Tokens = model if isinstance(model, Tokens) else model.tokens
    device = device or ("cpu" if isinstance(model, Tokens) else str(model.device))
    path = bundle.file(str(name).removeprefix(bundle.PREFIX)) if str(name).startswith(bundle.PREFIX) else Path(name)
    scorer: Any
    if is_mixture(path):
        mixture = read_mixture(path)
        return MixtureScorer([load_lm(f, model, device) for f in mixture.files], mixture.weights, "linear")
    if is_decoder_lm(path):
        if isinstance(model, Tokens):
            raise BadInputError(f"{name} is a model's own decoder, and runs only beside that model: load the model too")
        return load_decoder_lm(path, model)
    if is_checkpoint(path):
        from ilme.models.checkpoint import load_checkpoint

        scorer = load_checkpoint(path, expect="lm", device=device).model
    elif is_causal(path):
        from ilme.lm.hf import causal_scorer

        scorer = causal_scorer(str(path), tokens, device)
    else:
        beside = Path(f"{path}.tokens.json").is_file()
        scorer = load_ngram(str(path), None if beside else tokens, device=device)
    check_same_vocabulary(tokens, scorer.tokens, "model", str(name))
    return scorer  # type: ignore[no-any-return]


def is_causal(name: str | Path) -> bool:
    """Whether it is a causal LM of `transformers`: a folder, a .gguf file, or what may be a hub id, and is no file."""
    path = Path(name)
    if path.exists():
        return (path / "config.json").is_file() or path.suffix == ".gguf"
    return HUB_ID.fullmatch(str(name)) is not None and path.suffix not in LM_FILES


def find_tokenizer(name: str, lms: Sequence[str]) -> SentencePieceTokenizer:
    """The named tokenizer (a sentencepiece model or a checkpoint of ours), or that of the first LM that has one."""
    from ilme.models.checkpoint import load_tokenizer

    for source in (name,) if name else filter(is_checkpoint, lms):
        found: SentencePieceTokenizer | None = load_tokenizer(source)
        if found is not None:
            return found.for_role("lm")
    raise BadInputError(
        f"there is no tokenizer in {name or ', '.join(lms) or 'an n-gram'}; name one with --tokenizer: a sentencepiece "
        "model, or the checkpoint of the recogniser that the LM is for"
    )


# --- recognisers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """Which model, and which scorers beside it, by name: what another process needs to make the recogniser again.

    Attributes:
        model: As `load_model` takes it.
        lm: The external LM, as `load_lm` takes it; empty for none.
        subtracted: What is subtracted: `internal` (the internal LM that suits the model), the name of another internal
            LM of the model, a file of one (`ilme ilm learn`), or a source-domain LM; empty for none.
        device: Where everything runs.
        format: Of the weights on a CPU. `int8` is faster and changes scores a little.
        phrases: A file of names and terms that may be said (`ilme.lm.phrase_list`); empty for none.
    """

    model: str = ""
    lm: str = ""
    subtracted: str = ""
    device: str = "cpu"
    format: Format = "float32"
    phrases: str = ""

    def __post_init__(self) -> None:
        if not self.model:
            raise BadInputError("no model was given; name a checkpoint, a folder or a hub id")
        if self.format != "float32" and self.device != "cpu":
            raise BadInputError(f"weights in {self.format} are for the CPU, and the device is {self.device}")


def parts_for(
    method: str, model: str, lm: str, *, source_lm: str = "", bigram: str = "", learned: str = "", device: str = "cpu"
) -> Parts:
    """The parts of a method of the paper: methods differ in what is subtracted, and in nothing else."""
    subtracted = {"DR": source_lm, "LODR": bigram, "ILME": INTERNAL, "ILME-learned": learned}
    if method not in METHODS:
        raise BadInputError(f"no method is called {method!r}; there are {', '.join(METHODS)}")
    return Parts(model, "" if method == "BS" else lm, subtracted.get(method, ""), device)


def describe(parts: Parts) -> dict[str, str]:
    """The parts by name and by content, so that results of a model that has since been trained again are not reused."""
    described = asdict(parts)
    if parts.format == "float32":
        described.pop("format")  # scores are those of the unpacked network, to rounding
    if not parts.phrases:
        described.pop("phrases")
    for name in ("model", "lm", "subtracted", "phrases"):
        if getattr(parts, name) and (content := _content(Path(getattr(parts, name)))):
            described[f"{name}_content"] = content
    return described


def _content(path: Path) -> str:
    """A hash of a file of weights, or of those that a folder holds; empty for what is not on this machine."""
    file = weights_file(path)
    if file.is_file():
        return short_hash(file)
    found = sorted(p for p in path.glob("**/*") if p.suffix in (".onnx", ".safetensors", ".bin") and p.is_file())
    return "-".join(short_hash(p) for p in found)


def load_recogniser(
    parts: Parts,
    search: SearchSettings | Options | None = None,
    model_options: dict[str, Any] | None = None,
    load: LoadModel = load_model,
) -> Recogniser:
    """The recogniser that the parts name.

    Args:
        parts: Model and scorers.
        search: How to search: all options, or those that differ from the model's own.
        model_options: What the model's own kind takes, such as a language.
        load: Loads the model; a `SharedModels` for recognisers that are to share its weights in memory.
    """
    model = load(parts.model, parts.device, **(model_options or {}))
    lm = load_lm(parts.lm, model) if parts.lm else None
    subtracted = load_subtracted(parts.subtracted, model) if parts.subtracted else None
    options = search.apply(default_options(model)) if isinstance(search, SearchSettings) else search
    phrases = read_phrases(parts.phrases) if parts.phrases else ()
    recogniser = Recogniser(model, lm=lm, subtracted=subtracted, phrases=phrases, options=options)
    if parts.device == "cpu":
        pack_networks(model, (lm, subtracted), parts.format)
    return recogniser


def load_subtracted(name: str, model: Any) -> TokenScorer:
    """What is subtracted: an internal LM by name or file, or a source-domain LM."""
    if name == INTERNAL or name in internal_lm.available(model):
        return internal_lm(model, name)
    return internal_lm(model, Path(name)) if is_internal_lm(name) else load_lm(name, model)
