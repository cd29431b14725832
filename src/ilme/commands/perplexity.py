"""`ilme perplexity`: how well a model's internal LM, or an LM, predicts a text."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any


def perplexity(
    model: Path,
    text: Path,
    internal: Path | None = None,
    tokenizer: str = "",
    json: bool = False,
    samples: int = 0,
    seed: int = 0,
) -> None:
    """Score a text file, one sentence a line, with an LM or with the internal LM of an RNN-T or AED.

    Args:
        model: A checkpoint of ours (an LM, an RNN-T or an AED), an n-gram file, or a mixture (`ilme lm mix`).
        text: Text in the style the model was trained on.
        internal: A learned internal LM of that RNN-T or AED (`ilme ilm learn`); the paper's without it.
        tokenizer: What cuts the text into tokens, where the model does not say: a sentencepiece model or a checkpoint.
        json: Print JSON instead of a table.
        samples: Also print this many sentences drawn from the model.
        seed: For the drawing.
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


def _scorer(model: Path, internal: Path | None, tokenizer: str) -> tuple[str, Any, Any]:
    """What the model is called, its scorer, and the tokenizer that goes with it."""
    from ilme.errors import BadInputError
    from ilme.ilm import internal_lm
    from ilme.ilm.learned_vector import load_stand_in
    from ilme.lm.mixing import is_mixture, read_mixture
    from ilme.models.checkpoint import load_model
    from ilme.recogniser.loading import find_tokenizer, is_ours, load_scorer

    ours = is_ours(str(model)) or not model.is_file()
    no_internal = BadInputError(f"{model} is a language model: it has no internal LM, leave out --internal")
    if internal is not None and not ours:
        raise no_internal
    if not ours:
        parts = read_mixture(model).files if is_mixture(model) else ()
        reader = find_tokenizer(tokenizer, [str(part) for part in parts])
        return "mixture" if parts else "n-gram", load_scorer(str(model), reader.tokens), reader
    loaded = load_model(model)
    reader = find_tokenizer(tokenizer, [str(model)])
    if loaded.kind == "lm":
        if internal is not None:
            raise no_internal
        return loaded.kind, loaded.model, reader
    learned = load_stand_in(internal, loaded.model) if internal is not None else None
    scorer = internal_lm(loaded.model, learned.vector, learned.scale) if learned else internal_lm(loaded.model)
    return f"internal LM of {loaded.kind}", scorer, reader
