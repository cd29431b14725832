"""`ilme ilm learn`."""

from __future__ import annotations

from pathlib import Path

from ilme.commands.targets import spare_inputs
from ilme.ilm.learned_vector import LearnedVectorOptions

OPTIONS = LearnedVectorOptions()


def learn(
    model: str,
    text: Path,
    out: Path,
    held_out: Path | None = None,
    device: str = "cpu",
    options: LearnedVectorOptions = OPTIONS,
) -> None:
    """Learn, from text alone, what takes the place of the acoustics in a model's internal LM.

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
    from ilme.errors import UsageError
    from ilme.ilm import Calibration, internal_lm
    from ilme.ilm.files import save_internal_lm
    from ilme.lm.perplexity import perplexity
    from ilme.recogniser.loading import load_model

    if out.suffix != ".safetensors":
        raise UsageError(f"the learned internal LM is a .safetensors file; got {out}")
    spare_inputs(out, [model, text, *([held_out] if held_out else [])])
    host = load_model(model, device)
    told = Calibration(labels=[host.tokenizer.encode(line) for line in _lines(text)], learning=options)
    learned = internal_lm(host, "learned", calibration=told)
    save_internal_lm(out, learned)
    vector = learned.tensors["vector"]
    print(f"{out}: a vector of {len(vector)} numbers, length {float(vector.norm()):.2f}, scale {learned.scale:.3f}")
    if held_out is not None:
        lines = _lines(held_out)
        before, after = (perplexity(scorer, lines, host.tokenizer).per_token for scorer in (internal_lm(host), learned))
        print(f"perplexity per token of {held_out}: {before:.2f} without acoustics, {after:.2f} learned")


def _lines(file: Path) -> list[str]:
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        return [line.strip() for line in lines if line.strip()]
