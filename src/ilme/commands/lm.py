"""`ilme lm mix` and `ilme lm replace`."""

from __future__ import annotations

from pathlib import Path

from ilme.commands.targets import spare_inputs


def mix(lms: list[str], out: Path, text: list[str] | None = None, tokenizer: str = "") -> None:
    """Mix language models: find on a text how much each should count, and write a file that --lm takes.

    A linear mixture, Σ w_i P_i, of LSTM-LMs and n-grams over the same tokens: a small LM of the domain with a large one
    of much other text, say. The LMs stay where they are, and the file names them.

    Example:
        ilme lm mix out/domain.arpa out/general.safetensors out/mix.json --text dev.txt

    Args:
        lms: Two or more LMs: checkpoints of ours or n-gram files.
        out: The .json file to write.
        text: Files of text of the domain that none of them was trained on, one sentence a line: dev transcripts, say.
        tokenizer: What cuts the text into their tokens: a sentencepiece model or a checkpoint of ours; without it, that
            of the first LM that has one.
    """
    import torch

    from ilme.data.tokenize import text_lines
    from ilme.errors import BadInputError, UsageError
    from ilme.lm.mixing import Mixture, best_weights, token_scores, write_mixture
    from ilme.recogniser.loading import find_tokenizer, load_lm

    if out.suffix != ".json":
        raise UsageError(f"a mixture is a .json file that names its LMs; got {out}")
    if not text:
        raise UsageError("the weights are found on text of the domain that no LM was trained on; give it with --text")
    if len(lms) < 2:
        raise UsageError(f"a mixture needs at least two LMs, got {len(lms)}")
    spare_inputs(out, [*lms, *text])
    if missing := [lm for lm in lms if not Path(lm).exists()]:
        raise BadInputError(f"there is no LM {missing[0]}")
    reader = find_tokenizer(tokenizer, lms)
    ids = [reader.encode(line) for line in text_lines(text)]
    if not ids:
        raise BadInputError(f"there is no text in {', '.join(text)}")
    scores = [token_scores(load_lm(lm, reader.tokens), ids) for lm in lms]
    weights, together = best_weights(torch.stack(scores))
    write_mixture(out, Mixture(tuple(map(Path, lms)), weights))
    width = max(len(str(name)) for name in (*lms, out))
    tokens = sum(map(len, ids)) + len(ids)
    print(f"{'':<{width}}  weight  perplexity ({tokens:,} tokens of {len(ids):,} sentences)")
    for lm, weight, own in zip(lms, weights, scores, strict=True):
        print(f"{lm:<{width}}  {weight:6.3f}  {(-own.mean()).exp():.2f}")
    print(f"{out!s:<{width}}          {together:.2f}")


def replace(model: Path, lm: Path, out: Path) -> None:
    """Replace the LM inside an attention decoder that was trained around one: for a domain, its own LM.

    Example:
        ilme lm replace runs/component runs/lm-target runs/component-target

    Args:
        model: An AED of `ilme train aed --fusion`.
        lm: An LSTM-LM over the same tokens, of `ilme train lm`.
        out: The folder or .safetensors file to write.
    """
    from ilme.workflows.replace_lm import replace_inner_lm

    spare_inputs(out, [model, lm])
    print(replace_inner_lm(model, lm, out))
