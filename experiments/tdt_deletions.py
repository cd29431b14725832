"""Why an LM makes a TDT drop words, and what keeps it from that: a toy whose truth is known.

    python -m experiments.tdt_deletions --out docs/results/data/tdt-deletions.json

Words are one label each and last 1 to 4 frames. The acoustics know the right label with a certain confidence, and a
look-alike with less. A TDT may step over a word with one blank; an RNN-T takes a blank a frame, and hears the word
again at the next one. Both have the same label probabilities; the LM is the bigram that the sentences were drawn from.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ilme.evaluation.metrics import count_each
from ilme.fusion import Fusion, FusionWeights
from ilme.search.tdt import TDTSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens

DURATIONS = (0, 1, 2, 3, 4)
BLANK, BEAM = 0, 4


@dataclass(frozen=True)
class Setting:
    """The toy.

    Attributes:
        utterances: Of each of the two sets, dev and test.
        words: Of an utterance.
        units: Labels, blank included.
        seed: Of every draw.
    """

    utterances: int = 60
    words: int = 12
    units: int = 41
    seed: int = 0


class Toy:
    """f is the log-probabilities of labels and durations, and the word that is being said; g is the last label."""

    def __init__(self, tokens: Tokens, durations: bool) -> None:
        self.tokens, self.device = tokens, torch.device("cpu")
        if durations:
            self.durations = DURATIONS

    def start(self, n: int) -> tuple[Tensor, Tensor]:
        g = torch.zeros(n, len(self.tokens) + len(DURATIONS) + 1)
        return g, g

    def predict(self, labels: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        g = state.clone()
        g[:, -1] = labels
        return g, g

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        V = len(self.tokens)
        if f is None:
            return torch.zeros(len(g), V)
        said = f[:, -1] == g[:, -1]  # the word has been put out: what is left of it is blank
        after = torch.full((V,), 0.05 / (V - 1)).log()
        after[BLANK] = torch.tensor(0.95).log()
        return torch.where(said[:, None], after, f[:, :V])

    def join_durations(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return self.join(f, g), f[:, len(self.tokens) : -1]


class Bigram:
    """The LM that the sentences were drawn from: rows (V, V) of log-probabilities, the first for the start."""

    def __init__(self, tokens: Tokens, rows: Tensor) -> None:
        self.tokens, self.rows, self.device = tokens, rows, torch.device("cpu")

    def start(self, n: int) -> tuple[Tensor, None]:
        return self.rows[BLANK].expand(n, -1), None

    def score(self, labels: Tensor, state: None) -> tuple[Tensor, None]:
        return self.rows[labels], None

    def finish(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(len(rows))


def bigram(setting: Setting) -> Tensor:
    generator = torch.Generator().manual_seed(setting.seed)
    logits = 2.5 * torch.randn(setting.units, setting.units, generator=generator)
    logits[:, BLANK] = -torch.inf
    logits.fill_diagonal_(-torch.inf)  # no word is said twice in a row
    return logits.log_softmax(-1)


def draw(setting: Setting, rows: Tensor, seed: int) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Acoustic terms (B, T, ·), lengths (B,) and the words."""
    g = torch.Generator().manual_seed(seed)
    V, terms, sentences = setting.units, [], []
    for _ in range(setting.utterances):
        words, frames, last = [], [], BLANK
        for _ in range(setting.words):
            last = int(torch.multinomial(rows[last].exp(), 1, generator=g))
            words.append(last)
            length = int(torch.randint(1, 5, (1,), generator=g))
            sure = 0.25 + 0.65 * torch.rand(1, generator=g).item()
            rival = int(torch.randint(1, V, (1,), generator=g))
            p = torch.full((V,), 0.05 / V)
            p[last] += 0.95 * sure * 0.9
            p[rival] += 0.95 * (1 - sure) * 0.6
            p[BLANK] += 0.95 * (sure * 0.1 + (1 - sure) * 0.4)
            for left in range(length, 0, -1):  # wherever one looks at a word, it says how long it still lasts
                d = torch.full((len(DURATIONS),), 0.15 / len(DURATIONS))
                d[DURATIONS.index(left)] += 0.85
                frames.append(torch.cat([p.log(), d.log(), torch.tensor([float(last)])]))
        sentences.append(words)
        terms.append(torch.stack(frames))
    lengths = torch.tensor([len(x) for x in terms])
    return torch.nn.utils.rnn.pad_sequence(terms, batch_first=True), lengths, sentences


def errors(lists: list, sentences: list[list[int]]) -> dict[str, float]:
    """Percent of the words that are wrong, dropped, invented or taken for others."""
    total = sum(map(len, sentences))
    said, heard = ([" ".join(map(str, y)) for y in x] for x in (sentences, [nbest[0].tokens for nbest in lists]))
    counts = count_each(said, heard)
    found = {name: sum(getattr(c, name) for c in counts) for name in ("deletions", "insertions", "substitutions")}
    return {"WER": round(100 * sum(found.values()) / total, 2)} | {
        name: round(100 * value / total, 2) for name, value in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    setting = Setting()
    out = parser.parse_args().out
    tokens = numbered_tokens(setting.units, "transducer")
    rows = bigram(setting)
    lm = Bigram(tokens, rows)
    dev, test = (draw(setting, rows, seed) for seed in (1, 2))

    def run(kind: str, part: tuple, weights: FusionWeights, aware: bool = False) -> dict[str, float]:
        f, lengths, sentences = part
        options = TransducerOptions(beam=BEAM, max_symbols=2, blank_aware=aware)
        model, fusion = Toy(tokens, kind == "TDT"), Fusion(lm, None, weights)
        search = (TDTSearch if kind == "TDT" else TransducerSearch)(model, fusion, options)
        return errors(search(f, lengths), sentences)

    def tuned(kind: str, lm_weights: list[float], lengths: list[float], aware: bool = False) -> dict[str, object]:
        grid = [FusionWeights(lm=a, length=b) for a in lm_weights for b in lengths]
        best = min(grid, key=lambda w: run(kind, dev, w, aware)["WER"])
        return {"lm": best.lm, "length": best.length, **run(kind, test, best, aware)}

    steps, rewards = [0.2, 0.4, 0.6, 0.8], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    found = {
        kind: {
            "no LM": tuned(kind, [0.0], [0.0]),
            **{f"SF {a}": {"lm": a, "length": 0.0, **run(kind, test, FusionWeights(lm=a))} for a in steps},
            "SF, tuned": tuned(kind, [0.0, *steps], [0.0]),
            "SF, length reward": tuned(kind, [0.0, *steps], rewards),
            "SF, blank-aware": tuned(kind, [0.0, *steps], [0.0], aware=True),
            "SF, both": tuned(kind, [0.0, *steps], rewards, aware=True),
        }
        for kind in ("TDT", "RNN-T")
    }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {
        "command": f"python -m experiments.tdt_deletions --out {out}",
        "commit": commit,
        "machine": "CPU, one thread",
        "setting": asdict(setting),
        "beam": BEAM,
    }
    out.write_text(json.dumps({**about, "test": found}, indent=1) + "\n")
    for kind, table in found.items():
        for name, row in table.items():
            print(kind, name, row)


if __name__ == "__main__":
    main()
