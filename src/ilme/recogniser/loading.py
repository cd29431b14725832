"""From names on the command line to a recogniser: a model, what is added to its score, what is subtracted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ilme.errors import BadInputError
from ilme.lm.mixing import is_mixture, read_mixture
from ilme.lm.mixture import MixtureScorer
from ilme.models.packed import Format, pack, worth_packing
from ilme.protocols import TokenScorer
from ilme.recogniser.recogniser import Options, Recogniser
from ilme.runtime.files import short_hash, weights_file
from ilme.search.attention import AttentionOptions
from ilme.search.transducer import TransducerOptions
from ilme.tokens import Tokens, check_same_vocabulary

if TYPE_CHECKING:
    from ilme.data.tokenizer import SentencePieceTokenizer

__all__ = [
    "INTERNAL",
    "Parts",
    "describe",
    "find_tokenizer",
    "is_ours",
    "load_recogniser",
    "load_scorer",
    "pack_recogniser",
    "run_time_parameters",
]

INTERNAL = "internal"


@dataclass(frozen=True)
class Parts:
    """Which model, and which scorers beside it.

    Attributes:
        model: A checkpoint of ours (folder or file), or a model of others: hub id, folder, `.pt` or whisper.cpp `.bin`.
        lm: The external LM: a checkpoint of ours, an n-gram file or a mixture (`ilme lm mix`); empty for none.
        subtracted: What is subtracted: `internal` (the paper's internal LM), the file of a learned one (`ilme ilm
            learn`) or of a source-domain LM, for models of others also the name of an estimator such as `silence`;
            empty for none.
        device: Where everything runs.
        format: Of the decoder's weights on a CPU. `int8` is faster and changes scores a little.
    """

    model: str = ""
    lm: str = ""
    subtracted: str = ""
    device: str = "cpu"
    format: Format = "float32"

    def __post_init__(self) -> None:
        if not self.model:
            raise BadInputError("no model was given; name a checkpoint, a folder or a hub id")
        if self.format != "float32" and self.device != "cpu":
            raise BadInputError(f"weights in {self.format} are for the CPU, and the device is {self.device}")


def describe(parts: Parts) -> dict[str, str]:
    """The parts by name and by content, so that results of a model that has since been trained again are not reused."""
    described = asdict(parts)
    if parts.format == "float32":
        described.pop("format")  # scores are those of the unpacked network, to rounding
    for name in ("model", "lm", "subtracted"):
        file = weights_file(Path(getattr(parts, name)))
        if getattr(parts, name) and file.is_file():
            described[f"{name}_content"] = short_hash(file)
    return described


def load_recogniser(
    parts: Parts,
    transducer: TransducerOptions | None = None,
    attention: AttentionOptions | None = None,
) -> Recogniser:
    """The recogniser that the parts name; the options of the other kind of model are not used."""
    if is_ours(parts.model):
        recogniser = _ours(parts, transducer, attention)
        if parts.device == "cpu":
            pack_recogniser(recogniser, parts.format)
        return recogniser
    from ilme.adapters.loading import load_attention_model
    from ilme.adapters.recognition import SEARCH, AdaptedRecogniser
    from ilme.ilm.transformer import estimate

    model: Any = load_attention_model(parts.model, parts.device)
    if parts.device == "cpu" and hasattr(model, "pack"):
        model.pack(parts.format)
    elif parts.format != "float32":
        raise BadInputError(f"{parts.model} cannot run in {parts.format}: its kind of model is not packed")
    subtracted: TokenScorer | None = None
    if parts.subtracted and not Path(parts.subtracted).exists():
        subtracted = estimate("silence" if parts.subtracted == INTERNAL else parts.subtracted, model)
    elif parts.subtracted:
        subtracted = load_scorer(parts.subtracted, model.tokens, parts.device)
    lm = load_scorer(parts.lm, model.tokens, parts.device) if parts.lm else None
    return AdaptedRecogniser(model, lm=lm, subtracted=subtracted, options=attention or SEARCH)


def _ours(parts: Parts, transducer: TransducerOptions | None, attention: AttentionOptions | None) -> Recogniser:
    from ilme.data.features import Frontend
    from ilme.ilm import internal_lm
    from ilme.ilm.learned_vector import is_stand_in, load_stand_in
    from ilme.models.checkpoint import load_model

    loaded = load_model(parts.model, device=parts.device)
    if loaded.kind == "lm":
        raise BadInputError(f"{parts.model} is a language model; a recogniser (rnnt or aed) is needed here")
    if loaded.tokenizer is None or loaded.frontend is None:
        raise BadInputError(f"{parts.model} has no tokenizer or no frontend; save it with both")
    tokens = loaded.model.tokens
    subtracted: TokenScorer | None = None
    if parts.subtracted == INTERNAL:
        subtracted = internal_lm(loaded.model)
    elif is_stand_in(parts.subtracted):
        learned = load_stand_in(parts.subtracted, loaded.model)
        subtracted = internal_lm(loaded.model, learned.vector, learned.scale)
    elif parts.subtracted:
        subtracted = load_scorer(parts.subtracted, tokens, parts.device)
    options: Options | None = transducer if loaded.kind == "rnnt" else attention
    return Recogniser(
        loaded.model,
        Frontend(loaded.frontend, parts.device),
        loaded.tokenizer,
        lm=load_scorer(parts.lm, tokens, parts.device) if parts.lm else None,
        subtracted=subtracted,
        options=options,
        rate=loaded.frontend.rate,
    )


def pack_recogniser(recogniser: Recogniser, format: Format) -> None:
    """Packs the networks of a recogniser, in place; an attention decoder's linear layers stay in float32.

    Where this build of torch cannot pack float32, the networks stay as they are: slower, with the same results.
    """
    from torch import nn

    if not worth_packing(format):
        return
    pack(recogniser.model, format, None if recogniser.is_transducer else "float32")
    for scorer in (*_unmixed(recogniser.lm), *_unmixed(recogniser.subtracted)):
        if isinstance(scorer, nn.Module):
            pack(scorer, format)


def _unmixed(scorer: Any) -> tuple[Any, ...]:
    """The LMs of a mixture; anything else is itself."""
    return tuple(scorer.scorers) if isinstance(scorer, MixtureScorer) else (scorer,)


def load_scorer(name: str, tokens: Tokens, device: str = "cpu") -> TokenScorer:
    """An LM of ours, an n-gram or a mixture of such, checked against the model's inventory."""
    from ilme.lm.ngram import load_ngram

    scorer: Any
    if is_mixture(name):
        mixture = read_mixture(Path(name))
        return MixtureScorer([load_scorer(str(f), tokens, device) for f in mixture.files], mixture.weights, "linear")
    if is_ours(name):
        from ilme.models.checkpoint import load_model

        scorer = load_model(name, expect="lm", device=device).model
    else:
        beside = Path(f"{name}.tokens.json").is_file()
        scorer = load_ngram(name, None if beside else tokens, device=device)
    check_same_vocabulary(tokens, scorer.tokens, "model", name)
    return scorer  # type: ignore[no-any-return]


def find_tokenizer(name: str, lms: Sequence[str]) -> SentencePieceTokenizer:
    """The named tokenizer (a sentencepiece model or a checkpoint of ours), or that of the first LM that has one."""
    from ilme.models.checkpoint import load_tokenizer

    for source in (name,) if name else filter(is_ours, lms):
        found: SentencePieceTokenizer | None = load_tokenizer(source)
        if found is not None:
            return found.for_role("lm")
    raise BadInputError(
        f"there is no tokenizer in {name or ', '.join(lms) or 'an n-gram'}; name one with --tokenizer: a sentencepiece "
        "model, or the checkpoint of the recogniser that the LM is for"
    )


def is_ours(name: str) -> bool:
    """Whether it is a checkpoint that `ilme.models.checkpoint` wrote."""
    from safetensors import SafetensorError, safe_open

    file = weights_file(Path(name))
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    try:
        with safe_open(file, framework="pt") as reader:
            return "ilme" in (reader.metadata() or {})
    except (SafetensorError, OSError):
        return True  # damaged: the checkpoint reader says how


def run_time_parameters(recogniser: Recogniser, *, lm: bool = True, subtracted: bool = True) -> int:
    """Parameters of every network that runs at recognition time; an internal LM shares its host's."""
    networks = [recogniser.model]
    networks += _unmixed(recogniser.lm) if lm else ()
    networks += _unmixed(recogniser.subtracted) if subtracted and not hasattr(recogniser.subtracted, "host") else ()
    unique: dict[int, int] = {}
    for network in networks:
        for module in _modules(network):
            unique.update({id(p): p.numel() for p in module.parameters()})
    return sum(unique.values())


def _modules(network: Any) -> list[Any]:
    """The torch modules of a network: itself, or those it keeps as attributes."""
    from torch import nn

    if network is None:
        return []
    if isinstance(network, nn.Module):
        return [network]
    return [v for v in vars(network).values() if isinstance(v, nn.Module)]
