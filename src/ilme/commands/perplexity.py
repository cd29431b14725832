"""`ilme perplexity`: how well a model's internal LM, or an LM, predicts a text."""

from __future__ import annotations

import json as json_format
from pathlib import Path


def perplexity(
    model: Path, text: Path, internal: Path | None = None, json: bool = False, samples: int = 0, seed: int = 0
) -> None:
    """Score a text file, one sentence a line, with an LM or with the internal LM of an RNN-T or AED.

    Args:
        model: A checkpoint of ours: an LM, an RNN-T or an AED.
        text: Text in the style the model was trained on.
        internal: A learned internal LM of that RNN-T or AED (`ilme ilm learn`); the paper's without it.
        json: Print JSON instead of a table.
        samples: Also print this many sentences drawn from the model.
        seed: For the drawing.
    """
    from ilme.checkpoint import load_model
    from ilme.errors import BadInputError
    from ilme.ilm import internal_lm
    from ilme.ilm.stand_in import load_stand_in
    from ilme.perplexity import perplexity as measure
    from ilme.perplexity import sample

    loaded = load_model(model)
    if loaded.tokenizer is None:
        raise BadInputError(f"{model} has no tokenizer, so it cannot read text; save it with one")
    if loaded.kind == "lm":
        if internal is not None:
            raise BadInputError(f"{model} is a language model: it has no internal LM, leave out --internal")
        scorer = loaded.model
    elif internal is None:
        scorer = internal_lm(loaded.model)
    else:
        learned = load_stand_in(internal, loaded.model)
        scorer = internal_lm(loaded.model, learned.vector, learned.scale)
    with text.open(encoding="utf-8-sig", errors="replace") as lines:
        result = measure(scorer, (line.strip() for line in lines), loaded.tokenizer)
    figures = {
        "model": loaded.kind if loaded.kind == "lm" else f"internal LM of {loaded.kind}",
        "sentences": result.sentences,
        "words": result.words,
        "tokens": result.tokens,
        "log_probability": result.log_probability,
        "perplexity_per_token": result.per_token,
        "perplexity_per_word": result.per_word,
    }
    drawn = [loaded.tokenizer.decode(ids) for ids in sample(scorer, samples, 60, seed)] if samples else []
    if json:
        print(json_format.dumps({**figures, **({"samples": drawn} if drawn else {})}))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<22} {value:,.2f}" if isinstance(value, float) else f"{name:<22} {value}")
    for line in drawn:
        print(f"  {line}")
