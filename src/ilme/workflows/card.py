"""The card of a domain folder: what was adapted, with what, and what it gave on dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ilme.workflows.adapt import Adapted

__all__ = ["card_text"]

LISTED = 10  # utterances that were set aside, by name


def card_text(adapted: Adapted, name: str) -> str:
    """The text of card.md."""
    domain, report = adapted.domain, adapted.domain.report
    w = domain.weights
    lines = [
        f"# {name}: {Path(domain.model).name} adapted from text",
        "",
        f"Model: {domain.model}",
        "",
        f"Weights: λ_T {w.lm:.4f} (LM), μ {w.subtracted:.4f} (internal LM: {domain.internal or 'none'}), "
        f"β {w.length:.4f}"
        + (f", ε {w.background:g} (of a uniform background)" if w.background else "")
        + (f", κ {w.phrases:g} (listed phrases)." if w.phrases else "."),
    ]
    if "note" in report:
        lines += ["", f"**{report['note'][0].upper()}{report['note'][1:]}.**"]
    if "spoken dev" in report:
        lines += ["", _spoken(report["spoken dev"])]
    if "before" in report:
        lines += ["", *_table(report)]
    if "evidence" in report:
        lines += ["", _evidence(report["evidence"])]
    if "set aside" in report:
        aside = report["set aside"]
        lines += ["", f"Set aside, {len(aside)} dev utterances that no hypothesis explains:", ""]
        lines += [f"- {name}: {reason}" for name, reason in list(aside.items())[:LISTED]]
        lines += [f"- and {len(aside) - LISTED} more in domain.json"] if len(aside) > LISTED else []
    if report.get("decoding", {}).get("temperature"):
        lines += ["", _decoding(report["decoding"])]
    if report.get("confidence", {}).get("after"):
        sure = report["confidence"]
        fits = f"NCE {sure['before']['NCE']:.3f} as the list has them, {sure['after']['NCE']:.3f} fitted"
        lines += ["", f"Confidences of words, {sure['used']} ({sure['words']} words, on folds): {fits}."]
    if "perplexity" in report.get("lm", {}):
        lines += ["", *_lm(report["lm"])]
    if "phrases" in report:
        about = report["phrases"]
        lines += ["", f"Phrases: {about['listed']} listed; {about['why']}. Dev:", ""]
        lines += [f"- {boost}: {errors}" for boost, errors in about["dev"].items()]
    if "text" in report:
        lines += ["", _text(report["text"])]
    lines += [
        "",
        f"Use it: `ilme transcribe --domain {name} AUDIO`; `--baseline` beside it shows what the domain changes.",
    ]
    return "\n".join(lines) + "\n"


def _evidence(about: dict[str, Any]) -> str:
    """What dev was believed."""
    counts = f"{about['better']} utterances, worse: {about['worse']} (sign test p {about['p']:.3f})"
    return f"Dev is better as tuned than with what is used without it: {counts}; {about['kept']} is kept."


def _decoding(taken: dict[str, Any]) -> str:
    """What is taken of each n-best list."""
    joined = taken["taken"] == "joined"
    told = f"the consensus at temperature {taken['temperature']:g}"
    if "errors" in taken:
        errors = taken["joined errors" if joined else "errors"][f"{taken['temperature']:g}"]
        told += f": {errors} errors on dev, the best have {taken['errors']['0']}"
    return f"Of each n-best list{', and one that is searched without LMs,' if joined else ''} is taken {told}."


def _spoken(about: dict[str, Any]) -> str:
    """That dev is no speech of people, and who spoke it."""
    hard = " Weights that espeak-ng chose were worse than none in three domains of four: hear for yourself."
    return (
        f"**Dev is synthetic: {about['lines']} lines of the text, spoken by {about['voice']}, clean, in rooms and by "
        f"telephone. How many errors people's speech has is not known.{hard if about['voice'] == 'espeak-ng' else ''}**"
    )


def _text(about: dict[str, Any]) -> str:
    """What was read of the domain's text, and what was done to it."""
    parts = [f"Text: {about['words']:,} words in {about['lines']:,} lines, {about['tokens']:,} of the model's tokens"]
    parts.append(f"style {about['style']}" + (", which gave it case and punctuation" if about["recased"] else ""))
    if about["left out for overlap with dev"]:
        parts.append(f"{about['left out for overlap with dev']:,} sentences left out that dev says too")
    if about["unreadable"]:
        parts.append("not read: " + ", ".join(about["unreadable"]))
    return "; ".join(parts) + "."


def _lm(about: dict[str, Any]) -> list[str]:
    """Which LMs were trained, how well they predict, and what was kept of them."""
    rows = [
        f"| LM ({about['held-out lines']} held-out lines) | perplexity per token | weight | training |",
        "| --- | --- | --- | --- |",
    ]
    for kind, value in about["perplexity"].items():
        trained = about["training"].get(kind)
        time = f"{trained['seconds']:.0f} s, {trained['epochs']} passes" if trained else ""
        rows.append(f"| {kind} | {value:.2f} | {about['weights'].get(kind, '')} | {time} |")
    return rows


def _table(report: dict[str, Any]) -> list[str]:
    dev = "synthetic dev" if "spoken dev" in report else "dev"
    rows = [
        f"| {dev} ({report['dev utterances']} utterances) | WER | 95 % | substitutions | deletions | insertions |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("before", "after"):
        row = report[name]
        low, high = row["95 %"]
        counts = (row["substitutions"], row["deletions"], row["insertions"])
        rows.append(f"| {name} | {row['WER']:.2f} | {low:.2f}–{high:.2f} | " + " | ".join(map(str, counts)) + " |")
    p = report["p (paired bootstrap)"]
    rows += ["", f"Fewer errors: {report['relative']:.1f} % (p = {p}; dev chose the weights, so it flatters)."]
    return rows
