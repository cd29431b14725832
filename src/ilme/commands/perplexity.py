"""`ilme perplexity`: how well a model's internal LM, or an LM, predicts a text."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any


def perplexity(
    model: str,
    text: Path,
    internal: str = "internal",
    tokenizer: str = "",
    json: bool = False,
    samples: int = 0,
    seed: int = 0,
) -> None:
    """Score a text file, one sentence a line, with an LM, with a domain's, or with the internal LM of a recogniser.

    Example:
        ilme perplexity bundled/rnnt held-out.txt

    Args:
        model: An LM (a checkpoint of ours, an n-gram file, a mixture of such), a domain folder for the LM in it, or any
            model, as for `ilme adapt`, for its internal LM.
        text: Text in the style the model was trained on.
        internal: Which internal LM of the model: a name, or the file of one (`ilme ilm learn`, `ilme adapt`).
        tokenizer: What cuts the text into tokens, where an LM does not say: a sentencepiece model or a checkpoint.
        json: Print JSON instead of a table.
        samples: Also print this many sentences drawn from the model.
        seed: Seed of the drawing.
    """
    from ilme.lm.perplexity import perplexity as measure
    from ilme.lm.perplexity import sample

    kind, scorer, reader = _scorer(model, internal, tokenizer)
    with text.open(encoding="utf-8-sig", errors="replace") as lines:
        result = measure(scorer, (line.strip() for line in lines), reader)
    figures = {
        "model": kind,
        "sentences": result.sentences,
        "words": result.words,
        "tokens": result.tokens,
        "log_probability": result.log_probability,
        "perplexity_per_token": result.per_token,
        "perplexity_per_word": result.per_word,
    }
    drawn = [reader.decode(ids) for ids in sample(scorer, samples, 60, seed)] if samples else []
    if json:
        print(json_format.dumps({**figures, **({"samples": drawn} if drawn else {})}))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<22} {value:,.2f}" if isinstance(value, float) else f"{name:<22} {value}")
    for line in drawn:
        print(f"  {line}")


def _scorer(model: str, internal: str, tokenizer: str) -> tuple[str, Any, Any]:
    """What the model is called, its scorer, and the tokenizer that goes with it."""
    from ilme.errors import BadInputError
    from ilme.lm.mixing import is_mixture, read_mixture
    from ilme.lm.ngram import is_ngram
    from ilme.models.checkpoint import checkpoint_kind
    from ilme.recogniser.domain import CARD, load_domain
    from ilme.recogniser.loading import find_tokenizer, is_checkpoint, load_lm, load_model, load_subtracted

    if (Path(model) / CARD).is_file():
        if internal != "internal":
            raise BadInputError(f"{model} is a domain: its LM is scored; name its model to score an internal LM")
        recogniser = load_domain(model)
        if recogniser.lm is None:
            raise BadInputError(f"{model} has no LM, since its weights are zero; without --dev `ilme adapt` keeps one")
        return "LM of a domain", recogniser.lm, recogniser.model.tokenizer
    parts = read_mixture(Path(model)).files if is_mixture(model) else ()
    is_lm = is_checkpoint(model) and checkpoint_kind(model) == "lm"
    if parts or is_lm or is_ngram(model):
        if internal != "internal":
            raise BadInputError(f"{model} is a language model: it has no internal LM, leave out --internal")
        reader = find_tokenizer(tokenizer, [str(part) for part in parts] or [model])
        return "mixture" if parts else "lm" if is_lm else "n-gram", load_lm(model, reader.tokens), reader
    host = load_model(model)
    return f"internal LM of {host.kind}", load_subtracted(internal, host), host.tokenizer
