"""`ilme data synth` and `ilme data domains`."""

from __future__ import annotations

import time

from ilme.data.synth import SynthOptions


def synth(
    text: list[str],
    out: str,
    options: SynthOptions = SynthOptions(),  # noqa: B008 – frozen
) -> None:
    """Speaks sentences with espeak-ng, each in a voice drawn from a seed; an interrupted run goes on.

    Writes OUT/audio, OUT/manifest.jsonl (NeMo style) and OUT/rejected.jsonl.

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
