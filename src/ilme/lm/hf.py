"""Causal language models of `transformers` as external LMs.

    HuggingFaceLM   a model over the recogniser's own tokens: a `TokenScorer` like any other, inside the search
    DelayedLM       a model with a tokenizer of its own, inside the search at the ends of words (`ilme.lm.delayed`)
    TextScorer      the same model on the texts of an n-best list afterwards

A text LM on n-best lists can only choose among hypotheses that were found without it: worth it when it is too slow for
a search, and the lists are deep.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.fusion import FusionWeights
from ilme.lm.delayed import DelayedLM
from ilme.protocols import TokenScorer
from ilme.runtime.hub import check_reachable
from ilme.runtime.state import State
from ilme.search.hypothesis import NBest
from ilme.tokens import Tokens

__all__ = ["HuggingFaceLM", "TextScorer", "causal_scorer", "load_causal", "rescore", "same_ids"]

UNKNOWN = -20.0  # log P of a unit that the LM does not have


def load_causal(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A causal LM and its tokenizer from a hub id, a folder or a .gguf file: no pickle is read, no remote code run."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    kind: dict[str, Any] = {"use_safetensors": True}
    place, file = name, Path(name)
    if file.suffix == ".gguf":
        for package in ("gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "gguf")
        place, kind = str(file.parent), {"gguf_file": file.name}
    check_reachable(place)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, trust_remote_code=False, **kind)
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **_of_gguf(kind))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be loaded as a causal LM: {str(error).splitlines()[0]}") from error
    return model.eval().to(device), tokenizer


def _of_gguf(kind: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kind.items() if name == "gguf_file"}


def causal_scorer(name: str, tokens: Tokens, device: str = "cpu") -> TokenScorer:
    """A causal LM as a scorer over a recogniser's tokens: label by label if it has the same ids, else at word ends."""
    model, tokenizer = load_causal(name, device)
    if len(model.get_output_embeddings().weight) == len(tokens) or same_ids(model, tokenizer, tokens):
        return HuggingFaceLM(model, tokens)
    return DelayedLM(model, tokenizer, tokens)


def same_ids(model: Any, tokenizer: Any, tokens: Tokens) -> bool:
    """Whether each id of the LM stands for what it stands for in the inventory, which may have more: GPT-2, Whisper."""
    size = len(model.get_output_embeddings().weight)
    if size > len(tokens) or size > len(tokenizer):
        return False
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    same = all(
        name == piece or i in tokens.special for i, (name, piece) in enumerate(zip(names, tokens.pieces, strict=False))
    )
    return same and _only_marks_follow(tokens, size)


def _only_marks_follow(tokens: Tokens, size: int) -> bool:
    """Whether the units from `size` on are no text, and the end is before them."""
    marks = all(piece.startswith("<") and piece.endswith(">") for piece in tokens.pieces[size:])
    return marks and tokens.eos is not None and tokens.eos < size


class HuggingFaceLM:
    """A causal LM over the recogniser's tokens; implements `ilme.protocols.TokenScorer`.

    The state is the model's key-value cache, as tensors with the sequence first. The recogniser may have units after
    the LM's that stand for no text, as Whisper has time stamps after the ids of GPT-2: each of them costs UNKNOWN, and
    is read as the end of a text.

    Args:
        model: `AutoModelForCausalLM` whose output units are the inventory's, or its first.
        tokens: The recogniser's inventory.
        start: The id that begins a sequence; the inventory's sos, or its eos, if not given.
    """

    def __init__(self, model: Any, tokens: Tokens, start: int | None = None) -> None:
        size = int(model.get_output_embeddings().weight.shape[0])
        if size > len(tokens) or (size < len(tokens) and not _only_marks_follow(tokens, size)):
            raise BadInputError(
                f"the LM has {size} output units, the recogniser {len(tokens)}: it has another tokenizer. "
                "`ilme.lm.delayed.DelayedLM` scores at the ends of words, `ilme.lm.hf.TextScorer` n-best lists"
            )
        first = tokens.sos if start is None else start
        first = tokens.eos if first is None or first >= size else first
        if first is None:
            raise BadInputError("give the id that starts a sequence: the inventory has neither sos nor eos")
        self.model = model.eval().requires_grad_(False)
        self.tokens = tokens
        self.first = first
        self.size, self.more = size, len(tokens) - size  # where there are more, there is an end, too

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    @torch.inference_mode()
    def start(self, n: int) -> tuple[Tensor, State]:
        return self._step(torch.full((n, 1), self.first, device=self.device), None)

    @torch.inference_mode()
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self._step(labels[:, None], state)

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows)) if self.tokens.eos is None else rows[:, self.tokens.eos]

    def _step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        from transformers import DynamicCache

        past = DynamicCache() if state is None else DynamicCache([tuple(layer) for layer in state])
        read = labels if not self.more else labels.masked_fill(labels >= self.size, self.tokens.eos or 0)
        out = self.model(input_ids=read, past_key_values=past, use_cache=True)
        layers = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        rows = out.logits[:, -1].float().log_softmax(-1)
        return torch.nn.functional.pad(rows, (0, self.more), value=UNKNOWN), layers


class TextScorer:
    """log P(text) of a causal LM with its own tokenizer.

    Args:
        model: `AutoModelForCausalLM`.
        tokenizer: Its tokenizer.
        batch: Texts scored at once.
    """

    def __init__(self, model: Any, tokenizer: Any, batch: int = 16) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.batch = batch
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if begin is None:
            raise BadInputError(
                "this LM's tokenizer has neither a begin nor an end of sentence; it cannot score a text"
            )
        self.begin: int = begin
        self.end: int = begin if tokenizer.eos_token_id is None else tokenizer.eos_token_id

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[float]:
        """log P of each text, its end included, in nats."""
        known: dict[str, float] = {}
        todo = sorted(set(texts), key=len)
        for at in range(0, len(todo), self.batch):
            chunk = todo[at : at + self.batch]
            known.update(zip(chunk, self._score(chunk), strict=True))
        return [known[text] for text in texts]

    def _score(self, texts: Sequence[str]) -> list[float]:
        rows = [[self.begin, *self.tokenizer.encode(text, add_special_tokens=False), self.end] for text in texts]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.end, device=self.model.device)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, device=ids.device)
            mask[i, : len(row)] = 1
        logits = self.model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        picked = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        return [float(x) for x in (picked * mask[:, 1:]).sum(1).double()]


def rescore(
    lists: Mapping[str, NBest], scorer: TextScorer, weights: FusionWeights, length_exponent: float = 0.0
) -> dict[str, NBest]:
    """The lists with the LM's component replaced by the text LM's, ranked anew by fused score / (|y| + 1)^α."""
    texts = [h.text for nbest in lists.values() for h in nbest]
    values = iter(scorer(texts))
    out: dict[str, NBest] = {}
    for name, nbest in lists.items():
        scored = [replace(h, scores=replace(h.scores, lm=next(values))) for h in nbest]
        ranked = [replace(h, score=h.scores.fused(weights) / (h.scores.length + 1) ** length_exponent) for h in scored]
        out[name] = sorted(ranked, key=lambda h: -h.score)
    return out
