"""A causal LM with a tokenizer of its own inside the search: delayed fusion at word ends (arXiv 2501.09258).

A prefix of the recogniser's labels is no prefix of the LM's tokens; but a text up to the end of a word is one in both.
So a hypothesis keeps the bytes of the word that it is in, and the LM's score of a word is added when the word ends:

    score(v | y) = [v begins a word or is the end] · log P(word | words before) + [v is the end] · log P(end | words)

    score(y <end>) = log P(text of y, end)      over a whole sequence nothing is left out or counted twice

The word is scored before it is known to have ended, since every next label asks for it; if it goes on, it is scored
again as a longer one. The LM's cache is kept: its slots are shared by nothing, and two masks say which of them hold the
words before (`before`), and those and the word (`within`).

Shapes: n sequences, S slots of the cache, K tokens of the longest word, V output units of the recogniser.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.lm.ngram import lm_tokens
from ilme.runtime.state import State, map_tensors
from ilme.tokens import Tokens, byte_letters

__all__ = ["DelayedLM", "piece_bytes"]

EMPTY = 0  # pads the bytes of a word, which are kept as byte + 1
ANCHOR = "a"  # what a word is put behind to see the tokens that it has inside a text


class DelayedLM:
    """A causal LM of `transformers`; implements `ilme.protocols.TokenScorer` over the recogniser's tokens.

    Its rows are no distribution over labels, so it cannot be part of a linear mixture.

    Args:
        model: `AutoModelForCausalLM`.
        tokenizer: Its tokenizer, which must cut a text at its spaces: all that write English do.
        tokens: The recogniser's inventory.
    """

    pays_at_end = True  # the score of the last word comes with the end: a search must ask for it
    ragged = True  # states may be padded with zeros, which are no slots and no bytes

    def __init__(self, model: Any, tokenizer: Any, tokens: Tokens) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.tokens = lm_tokens(tokens)
        if self.tokens.eos is None:
            raise BadInputError("an LM of another tokenizer needs an inventory with an end of sentence")
        begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        if begin is None and end is None:
            raise BadInputError(
                "this LM's tokenizer has neither a begin nor an end of sentence; it cannot score a text"
            )
        self.begin: int = end if begin is None else begin
        self.end: int = begin if end is None else end
        self._bytes = piece_bytes(tokens)
        starts = [text[:1].isspace() for text in self._bytes]
        if not any(starts):
            raise BadInputError(
                "no piece of the recogniser's inventory begins with a space: words cannot be told apart"
            )
        self._starts = torch.tensor(starts, device=self.device)  # (V,)
        self._ids = lru_cache(maxsize=1 << 16)(self._encode)

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    @torch.inference_mode()
    def start(self, n: int) -> tuple[Tensor, State]:
        state = {
            "cache": None,
            "before": torch.zeros(1, 0, dtype=torch.bool, device=self.device),
            "within": torch.zeros(1, 0, dtype=torch.bool, device=self.device),
            "last": torch.full((1,), self.begin, device=self.device),
            "next": torch.full((1,), self.begin, device=self.device),
            "word": torch.full((1, 0), EMPTY, dtype=torch.int16, device=self.device),
        }
        rows, state = self._read(state)
        return rows.expand(n, -1), map_tensors(lambda x: x.expand(n, *x.shape[1:]), state)

    @torch.inference_mode()
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        starts = self._starts[labels]  # (n,): the word before them has ended
        added = [[byte + 1 for byte in self._bytes[label]] for label in labels.tolist()]
        words = [
            [*([] if new else [b for b in word if b != EMPTY]), *piece]
            for new, word, piece in zip(starts.tolist(), state["word"].tolist(), added, strict=True)
        ]
        width = max(map(len, words))
        padded = [word + [EMPTY] * (width - len(word)) for word in words]
        return self._read(
            {
                "cache": state["cache"],
                "before": torch.where(starts[:, None], state["within"], state["before"]),
                "within": state["within"],
                "last": torch.where(starts, state["next"], state["last"]),
                "next": state["next"],
                "word": torch.tensor(padded, dtype=torch.int16, device=self.device).view(len(words), width),
            }
        )

    def finish(self, rows: Tensor) -> Tensor:
        return rows[:, self.tokens.eos]

    def _read(self, state: dict[str, Any]) -> tuple[Tensor, State]:
        """Scores the word of each sequence after the words before it: rows (n, V), and the state with it.

        The LM reads the last token before the word, then the word: its outputs there are P(word), and at its last
        token P(end).
        """
        before, last = state["before"], state["last"]
        n = len(before)
        words = [
            self._ids(bytes(b - 1 for b in word if b != EMPTY), not inside)
            for word, inside in zip(state["word"].tolist(), before.any(1).tolist(), strict=True)
        ]
        sizes = torch.tensor([len(word) for word in words], device=self.device)  # (n,), at most K
        ids = torch.full((n, int(sizes.max()) + 1), self.end, device=self.device)
        ids[:, 0] = last
        for row, word in zip(ids, words, strict=True):
            row[1 : len(word) + 1] = torch.tensor(word, dtype=torch.long)
        at = torch.arange(ids.shape[1], device=self.device)
        read = at <= sizes[:, None]  # (n, K + 1): not padding
        logits, cache = self._run(ids, torch.cat([before, read], 1), before.sum(1, keepdim=True) + at, state["cache"])
        logs = logits.float().log_softmax(-1)
        told = logs[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
        paid = told.masked_fill(~read[:, 1:], 0.0).sum(1)  # (n,): log P(word | words before)
        end = logs[torch.arange(n, device=self.device), sizes, self.end]
        rows = torch.where(self._starts, paid[:, None], 0.0)
        rows[:, self.tokens.eos] = paid + end
        kept = at < sizes[:, None]  # the last token is read again, with the next word
        return rows, _compact(
            {
                "cache": cache,
                "before": torch.cat([before, torch.zeros_like(kept)], 1),
                "within": torch.cat([before, kept], 1),
                "last": last,
                "next": ids.gather(1, sizes[:, None]).squeeze(1),
                "word": state["word"],
            }
        )

    def _run(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: State) -> tuple[Tensor, State]:
        """Logits (n, K + 1, units of the LM) of ids after what the mask (n, S + K + 1) says of the cache."""
        from transformers import DynamicCache

        past = DynamicCache() if cache is None else DynamicCache([tuple(layer) for layer in cache])
        out = self.model(
            input_ids=ids, attention_mask=mask.long(), position_ids=positions, past_key_values=past, use_cache=True
        )
        return out.logits, [(layer.keys, layer.values) for layer in out.past_key_values.layers]

    def _encode(self, word: bytes, first: bool) -> tuple[int, ...]:
        """The LM's tokens of a word with the space before it; of a text's first word without."""
        text = word.decode("utf-8", errors="replace")
        if first:
            return tuple(self.tokenizer.encode(text.lstrip(), add_special_tokens=False))
        alone = self.tokenizer.encode(ANCHOR, add_special_tokens=False)
        behind = self.tokenizer.encode(ANCHOR + text, add_special_tokens=False)
        if behind[: len(alone)] == alone:
            return tuple(behind[len(alone) :])
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def _compact(state: dict[str, Any]) -> State:
    """Without slots that no sequence needs: those of padding, of last tokens, and of words that went on."""
    used = (state["before"] | state["within"]).any(0)
    if bool(used.all()):
        return state
    slots = used.nonzero().squeeze(1)
    return {
        **state,
        "cache": map_tensors(lambda x: x.index_select(2, slots), state["cache"]),
        "before": state["before"][:, slots],
        "within": state["within"][:, slots],
    }


def piece_bytes(tokens: Tokens) -> list[bytes]:
    """The text of each unit in UTF-8, the space before a word included; nothing for special ones.

    As `ilme.tokens.spelling`, but a part of a character keeps its bytes. Byte-level inventories (GPT-2, Whisper) write
    a letter for each byte, the space as Ġ; those of SentencePiece write the space as ▁, and bytes as <0x0A>.
    """
    if any("Ġ" in piece for piece in tokens.pieces):
        letters = {letter: byte for byte, letter in byte_letters().items()}
        return [
            b"" if _is_special(i, p, tokens) else bytes(letters[c] for c in p if c in letters)
            for i, p in enumerate(tokens.pieces)
        ]
    found = []
    for i, piece in enumerate(tokens.pieces):
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            found.append(bytes([int(piece[3:5], 16)]))
        else:
            text = " " if piece == "|" else piece.replace("▁", " ")
            found.append(b"" if _is_special(i, piece, tokens) else text.encode())
    return found


def _is_special(index: int, piece: str, tokens: Tokens) -> bool:
    return index in tokens.special or index == tokens.unk or (len(piece) > 2 and piece[0] == "<" and piece[-1] == ">")
