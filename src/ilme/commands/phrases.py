"""`ilme phrases suggest`: names and rare words of a text, as a list to edit."""

from __future__ import annotations

SHOWN = {"suggest": ("text", "model", "count", "least", "device")}


def suggest(text: list[str], model: str = "", count: int = 200, least: int = 2, device: str = "cpu") -> None:
    """Print the words of a text that a model is likely to miss, as a file for --phrases that people can edit.

    A word is judged by the model's internal LM and by the tokens that it takes. Take out what is no name and no term,
    and add what the text does not hold.

    Example:
        ilme phrases suggest handbook.txt --model openai/whisper-tiny.en > names.txt

    Args:
        text: Text files or globs of the domain.
        model: Any model, as for `ilme adapt`.
        count: Most words.
        least: Occurrences below which a word is left out.
        device: Where the model runs.
    """
    from ilme.data.tokenize import text_lines
    from ilme.errors import UsageError
    from ilme.recogniser.loading import load_model
    from ilme.workflows.suggest import suggest_phrases

    if not model:
        raise UsageError("name the model with --model: its internal LM says which words it does not know")
    if count < 1 or least < 1:
        raise UsageError(f"--count and --least are at least 1, got {count} and {least}")
    found = suggest_phrases(text_lines(text), load_model(model, device), count, least)
    print(f"# {len(found)} words that {model} is likely to miss; take out what is no name and no term")
    for word in found:
        print(f"# {word.times} times, {word.surprise:.1f} nats: {' '.join(word.pieces)}\n{word.text}")
