"""`ilme adapt`: a model that exists, made good at a domain from text alone."""

from __future__ import annotations

from pathlib import Path

from ilme.workflows.adapt import AdaptOptions

OPTIONS = AdaptOptions()


def adapt(
    model: str = "",
    out: Path | None = None,
    text: list[str] | None = None,
    dev: Path | None = None,
    split: str = "",
    limit: int = 300,
    lm: str = "",
    language: str = "en",
    prompt: str = "",
    ranks: str = "",
    device: str = "cpu",
    options: AdaptOptions = OPTIONS,
) -> None:
    """Adapt a pre-existing model to a domain and write a folder for `ilme transcribe --domain`.

    Args:
        model: Hub id, folder in transformers format, OpenAI .pt, or whisper.cpp .bin.
        out: The domain folder to write.
        text: Text files or globs of the domain; plain, compressed, archives or manifests.
        dev: A little transcribed speech of the domain, for the weights: NeMo-style JSON lines, Lhotse cuts, or a
            folder.
        split: Only dev utterances whose split is this.
        limit: At most this many dev utterances, drawn at random; 0 takes all.
        lm: An LM over the model's tokens, in place of one trained on the text.
        language: Language of multilingual models.
        prompt: Text that Whisper is told came before.
        ranks: The .tiktoken file of an OpenAI .pt; found beside it or in an installed openai-whisper otherwise.
        device: Where everything runs.
        options: Order of the LM, internal LM, beam and the like.
    """
    import random

    from ilme.adapters.loading import load_attention_model, options_of
    from ilme.data.utterances import read_utterances
    from ilme.errors import BadInputError
    from ilme.recogniser.loading import load_scorer
    from ilme.workflows.adapt import adapt as run
    from ilme.workflows.card import write_card

    if not model or out is None:
        raise BadInputError("name the model with --model and the folder to write with --out")
    given = options_of(model, language=language, prompt=prompt, ranks=ranks)
    host = load_attention_model(model, device, **given)
    if host.device.type == "cpu":
        host.pack()
    scorer = load_scorer(lm, host.tokens, device) if lm else None
    utterances = read_utterances(dev, split=split) if dev is not None else []
    if limit and len(utterances) > limit:
        chosen = random.Random(options.seed).sample(range(len(utterances)), limit)
        utterances = [utterances[i] for i in sorted(chosen)]
    adapted = run(
        host,
        model,
        text or [],
        out,
        dev=utterances,
        lm=scorer,
        lm_name=lm,
        model_options=given,
        options=options,
        say=lambda line: print(line, flush=True),
    )
    print(write_card(adapted, out))
