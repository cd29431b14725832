"""What a corpus holds: hours, speakers, words, lengths, and what looks wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ilme.data.batches import cut_text
from ilme.data.manifests import open_cuts
from ilme.errors import BadInputError
from ilme.runtime.files import atomic_path

__all__ = ["CorpusStatistics", "Histogram", "draw_picture", "measure_corpus"]

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Histogram:
    """Counts (n,) between edges (n + 1,), and the quantiles 0, 5, 25, 50, 75, 95 and 100 %."""

    edges: list[float]
    counts: list[int]
    quantiles: list[float]


@dataclass(frozen=True)
class CorpusStatistics:
    """Figures of a set of cuts.

    Attributes:
        utterances: Cuts.
        hours: Audio.
        speakers: Different speakers; 0 where none is named.
        words: White-space separated words.
        vocabulary: Different words, as written.
        characters: Different characters, the rarest last.
        rates: Utterances of each sampling rate.
        channels: Utterances of each number of channels.
        seconds: Lengths of the utterances.
        words_each: Words of the utterances.
        letters_a_second: How fast the speech is.
        problems: What a user should look at, in sentences.
        rejected: Utterances that the import left out, by reason.
    """

    utterances: int
    hours: float
    speakers: int
    words: int
    vocabulary: int
    characters: str
    rates: dict[int, int]
    channels: dict[int, int]
    seconds: Histogram
    words_each: Histogram
    letters_a_second: Histogram
    problems: list[str]
    rejected: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_corpus(cuts: str | Path) -> CorpusStatistics:
    """Reads a manifest once; the audio is not opened."""
    lengths, counts, speeds = [], [], []
    speakers: Counter[str] = Counter()
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    rates: Counter[int] = Counter()
    channels: Counter[int] = Counter()
    texts: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    missing: list[str] = []
    for cut in open_cuts(cuts):
        text = cut_text(cut)
        lengths.append(cut.duration)
        counts.append(len(text.split()))
        speeds.append(sum(c.isalnum() for c in text) / cut.duration)
        words.update(text.split())
        characters.update(text)
        texts[text] += 1
        ids[cut.id] += 1
        speakers.update({s.speaker for s in cut.supervisions if s.speaker})
        rates[cut.sampling_rate] += 1
        channels[cut.num_channels] += 1
        source = cut.recording.sources[0] if cut.has_recording else None
        if source is not None and source.type == "file" and not Path(source.source).is_file():
            missing.append(source.source)
    if not lengths:
        raise BadInputError(f"{cuts} holds no cut")
    return CorpusStatistics(
        utterances=len(lengths),
        hours=round(sum(lengths) / 3600, 4),
        speakers=len(speakers),
        words=sum(counts),
        vocabulary=len(words),
        characters="".join(c for c, _ in characters.most_common()),
        rates=dict(rates.most_common()),
        channels=dict(channels.most_common()),
        seconds=_histogram(lengths),
        words_each=_histogram(counts),
        letters_a_second=_histogram(speeds),
        problems=_problems(lengths, speeds, texts, ids, rates, missing, speakers),
        rejected=_rejected(Path(cuts)),
    )


def _problems(
    lengths: list[float],
    speeds: list[float],
    texts: Counter[str],
    ids: Counter[str],
    rates: Counter[int],
    missing: list[str],
    speakers: Counter[str],
) -> list[str]:
    """What may hurt training or measuring, each as one sentence with its count."""
    n = len(lengths)
    repeated = sum(count - 1 for count in texts.values())
    rough = (
        (len(missing), f"audio files are missing, the first is {missing[0] if missing else ''}"),
        (n - len(ids), "utterances have an id that another one has"),
        (texts[""], "utterances have no text"),
        (sum(s < 0.3 for s in lengths), "utterances are shorter than 0.3 s"),
        (sum(s > 30 for s in lengths), "utterances are longer than 30 s"),
        (sum(0 < s < 2 for s in speeds), "utterances have fewer than 2 letters a second: text or audio may be cut"),
        (sum(s > 25 for s in speeds), "utterances have more than 25 letters a second"),
    )
    problems = [f"{count} {what}" for count, what in rough if count]
    if repeated > 0.2 * n:
        problems.append(f"{repeated} utterances ({100 * repeated / n:.0f} %) repeat the text of another one")
    if len(rates) > 1:
        problems.append(f"there are {len(rates)} sampling rates: {', '.join(map(str, rates))} Hz")
    if not speakers:
        problems.append("no speaker is named: the corpus can only be split by another field")
    elif (top := speakers.most_common(1)[0])[1] > 0.5 * n and len(speakers) > 1:
        problems.append(f"speaker {top[0]} has {100 * top[1] / n:.0f} % of the utterances")
    return problems


def _rejected(cuts: Path) -> dict[str, int]:
    """Reasons in the rejected.jsonl beside the cuts, most frequent first."""
    listing = (cuts if cuts.is_dir() else cuts.parent) / "rejected.jsonl"
    if not listing.is_file():
        return {}
    with listing.open(encoding="utf-8") as lines:
        return dict(Counter(json.loads(line)["reason"] for line in lines).most_common())


def _histogram(values: list[float] | list[int], bins: int = 40) -> Histogram:
    """Bars from 0; the last one holds everything above, since a few outliers would squeeze all others together."""
    array = np.asarray(values, dtype=float)
    top = float(np.quantile(array, 0.995))
    width = max(top / bins, 1e-6)
    if all(isinstance(value, int) for value in values):
        width = float(np.ceil(width))  # each bar holds equally many whole numbers
    edges = width * np.arange(int(top / width) + 2)
    counts, _ = np.histogram(np.minimum(array, (edges[-2] + edges[-1]) / 2), bins=edges)
    quantiles = [round(float(q), 4) for q in np.quantile(array, _QUANTILES)]
    return Histogram([round(float(e), 4) for e in edges], [int(c) for c in counts], quantiles)


def draw_picture(statistics: CorpusStatistics, path: Path, title: str) -> None:
    """Three histograms as a picture (PNG, SVG or PDF, by the file's name)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("seconds", statistics.seconds),
        ("words", statistics.words_each),
        ("letters a second", statistics.letters_a_second),
    )
    for axes, (label, histogram) in zip(figure.subplots(1, 3), panels, strict=True):
        axes.stairs(histogram.counts, histogram.edges, fill=True, color="#3b6ea5")
        axes.axvline(histogram.quantiles[3], color="#222222", linewidth=1, linestyle="--")
        axes.set_xlabel(f"{label} (median {histogram.quantiles[3]:.3g})")
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("utterances")
    figure.supxlabel("the last bar holds everything above", fontsize=8, color="#666666")
    figure.suptitle(
        f"{title}: {statistics.utterances:,} utterances, {statistics.hours:.2f} h, "
        f"{statistics.speakers} speakers, {statistics.words:,} words"
    )
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=120, format=path.suffix[1:] or None)
