"""`ilme adapt`: any model, made good at a domain from text alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from ilme.commands.options import FLAT
from ilme.commands.shared import ModelOptions
from ilme.runtime.console import tell
from ilme.workflows.options import AdaptOptions

OPTIONS, HOST = AdaptOptions(), ModelOptions()
SHOWN = {
    "adapt": (
        "model",
        "text",
        "out",
        "dev",
        "split",
        "limit",
        "lm",
        "minutes",
        "phrases",
        "language",
        "device",
        "format",
        "options.internal",
        "options.style",
        "options.beam",
    )
}


def adapt(
    model: str = "",
    out: Path | None = None,
    text: list[str] | None = None,
    dev: str = "",
    split: str = "",
    limit: int = 300,
    lm: str = "auto",
    minutes: float = 0.0,
    phrases: str = "",
    host: Annotated[ModelOptions, FLAT] = HOST,
    options: AdaptOptions = OPTIONS,
) -> None:
    """Adapt a model to a domain and write a folder for `ilme transcribe --domain`.

    Example:
        ilme adapt --model openai/whisper-tiny.en --text corpus/*.txt --dev dev.jsonl --out my-domain

    Args:
        model: A checkpoint of `ilme train`, bundled/rnnt or bundled/aed, a hub id or folder in transformers format,
            OpenAI .pt, whisper.cpp .bin, or a folder of ONNX files.
        out: The domain folder to write; one that was written before is replaced.
        text: Text files or globs of the domain; plain, compressed, archives or manifests.
        dev: A little transcribed speech of the domain, for the weights: NeMo-style JSON lines, Lhotse cuts, or a
            folder. The word speak in its place has lines of the text spoken by synthetic voices (./speak is a folder).
        split: Only dev utterances whose split is this.
        limit: At most this many dev utterances, drawn at random; 0 takes all.
        lm: What is trained on the text: ngram, lstm, decoder (the model's own), or auto, which trains what --minutes
            allow and keeps what predicts held-out lines best. Or an LM that is there: a file, a folder or a hub id.
        minutes: Time for training neural LMs; 0 trains the n-gram alone. A run that was killed goes on when it is
            started again.
        phrases: A file of names and terms that may be said, one a line; a tab and a number after one is its weight.
        host: What the model is told, and where it runs.
        options: Order of the LM, internal LM, beam and the like.
    """
    from ilme.errors import UsageError
    from ilme.workflows.adapt import adapt as run
    from ilme.workflows.card import card_text

    if not model or out is None:
        raise UsageError("name the model with --model and the folder to write with --out")
    if not text and lm in ("auto", "ngram", "lstm", "decoder"):
        raise UsageError("name text of the domain with --text, or an LM made from it with --lm")
    adapted = run(
        model,
        text or [],
        out,
        dev=dev or (),
        split=split,
        limit=limit,
        lm=lm,
        minutes=minutes,
        phrases=phrases,
        device=host.device,
        format=host.format,
        model_options=host.options,
        options=options,
        say=lambda line: tell(line, sys.stdout),
    )
    print(card_text(adapted, out.name))
