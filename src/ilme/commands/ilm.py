"""`ilme ilm learn`."""

from __future__ import annotations

from pathlib import Path

from ilme.ilm.learned_vector import StandInOptions

OPTIONS = StandInOptions()


def learn(
    model: Path,
    text: Path,
    out: Path,
    held_out: Path | None = None,
    device: str = "cpu",
    options: StandInOptions = OPTIONS,
) -> None:
    """Learn, from text alone, what stands in for the acoustics in a model's internal LM.

    One vector and one factor; the model does not change. `ilme tune` and `ilme evaluate` take the file as --subtracted,
    `ilme perplexity` as --internal. It is for this training of the model alone; those commands refuse it for another.

    Args:
        model: A checkpoint of ours: an RNN-T or an AED.
        text: The transcripts that the model was trained on, or text like them, one sentence a line.
        out: The .safetensors file to write.
        held_out: Text whose perplexity is printed, before and after.
        device: Where the model runs.
        options: How long and how.
    """
    from ilme.errors import BadInputError
    from ilme.ilm import internal_lm
    from ilme.ilm.learned_vector import learn_stand_in, save_stand_in
    from ilme.lm.perplexity import perplexity
    from ilme.models.checkpoint import load_model

    if out.suffix != ".safetensors":
        raise BadInputError(f"the learned internal LM is a .safetensors file; got {out}")
    loaded = load_model(model, device=device)
    if loaded.tokenizer is None:
        raise BadInputError(f"{model} has no tokenizer, so it cannot read text; save it with one")
    learned = learn_stand_in(loaded.model, loaded.tokenizer.encode_many(_lines(text)), options)
    save_stand_in(out, learned, loaded.model)
    length = float(learned.vector.norm())
    print(f"{out}: a vector of {len(learned.vector)} numbers, length {length:.2f}, scale {learned.scale:.3f}")
    if held_out is not None:
        lines = _lines(held_out)
        scorers = (internal_lm(loaded.model), internal_lm(loaded.model, learned.vector, learned.scale))
        before, after = (perplexity(scorer, lines, loaded.tokenizer).per_token for scorer in scorers)
        print(f"perplexity per token of {held_out}: {before:.2f} without acoustics, {after:.2f} learned")


def _lines(file: Path) -> list[str]:
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        return [line.strip() for line in lines if line.strip()]
