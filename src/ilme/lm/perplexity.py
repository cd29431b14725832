"""How well a language model, external or internal, predicts text; and what text it would write itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ilme.errors import BadInputError
from ilme.protocols import TokenScorer
from ilme.search.rescoring import sequence_scores
from ilme.tokens import Tokenizer

__all__ = ["Perplexity", "perplexity", "sample"]


@dataclass(frozen=True)
class Perplexity:
    """log P of a text, and its perplexity exp(−log P / units).

    Attributes:
        sentences: Sentences scored.
        words: Words of the text.
        tokens: Tokens scored; the ends of sentences count where the scorer scores them.
        log_probability: Natural logarithm of the probability of it all.
    """

    sentences: int
    words: int
    tokens: int
    log_probability: float

    @property
    def per_token(self) -> float:
        return math.exp(-self.log_probability / self.tokens)

    @property
    def per_word(self) -> float:
        return math.exp(min(-self.log_probability / self.words, 700.0))


def perplexity(scorer: TokenScorer, texts: Iterable[str], tokenizer: Tokenizer, batch: int = 64) -> Perplexity:
    """Scores sentences, one text each; a transducer's internal LM does not score their ends (Eq. 26)."""
    ends = scorer.tokens.eos is not None
    sentences = words = tokens = 0
    total = 0.0
    pending: list[list[int]] = []

    def flush() -> float:
        score = float(sequence_scores(scorer, pending, finish=ends).sum())
        pending.clear()
        return score

    for text in texts:
        if not text.strip():
            continue
        ids = tokenizer.encode(text)
        sentences, words, tokens = sentences + 1, words + len(text.split()), tokens + len(ids) + ends
        pending.append(ids)
        if len(pending) == batch:
            total += flush()
    if not tokens:
        raise BadInputError("there is no text to score: every line is empty")
    return Perplexity(sentences, words, tokens, total + (flush() if pending else 0.0))


@torch.no_grad()
def sample(scorer: TokenScorer, count: int, longest: int, seed: int = 0, temperature: float = 1.0) -> list[list[int]]:
    """Label sequences drawn from a scorer: what its language sounds like. Each ends at eos or at `longest` labels."""
    generator = torch.Generator().manual_seed(seed)
    blocked = [i for i in scorer.tokens.special if i != scorer.tokens.eos]
    rows, state = scorer.start(count)
    drawn: list[list[int]] = [[] for _ in range(count)]
    over = [False] * count
    for _ in range(longest):
        logits = (rows / temperature).double().cpu()
        logits[:, blocked] = -torch.inf
        labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
        for i, label in enumerate(labels.tolist()):
            over[i] = over[i] or label == scorer.tokens.eos
            if not over[i]:
                drawn[i].append(label)
        if all(over):
            break
        rows, state = scorer.score(labels.to(scorer.device), state)
    return drawn
