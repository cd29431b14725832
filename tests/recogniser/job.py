"""A tiny decode that other processes can run: `python job.py FOLDER [SECONDS_PER_BATCH]`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ilme import models
from ilme.data.features import Frontend
from ilme.data.utterances import Utterance
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.decoder import DecodingOptions, Processes, SearchDecoder
from ilme.recogniser.recogniser import Recogniser
from ilme.testing import numbered_tokens
from ilme.tokens import Tokens

SIZE = 12
WEIGHTS = FusionWeights(lm=0.3, subtracted=0.2)
BEAM = 3


class PieceTokenizer:
    """Writes ids as the words they are named by."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def encode(self, text: str) -> list[int]:
        return [self.tokens.pieces.index("▁" + word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.tokens.pieces[i].strip("▁") for i in ids)


def make_utterances(count: int = 7) -> list[Utterance]:
    g = np.random.default_rng(0)
    out = []
    for k in range(count):
        samples = g.normal(0, 0.1, size=int(g.integers(6000, 12000))).astype(np.float32)
        out.append(Utterance(f"u{k}", "2 3", samples, f"s{k % 3}", len(samples) / 16000))
    return out


def make_recogniser(kind: str = "rnnt") -> Recogniser:
    torch.manual_seed(0)
    use = "transducer" if kind == "rnnt" else "attention"
    tokens = numbered_tokens(SIZE, use)
    model = models.build(kind, models.preset(kind, "tiny"), tokens).eval()
    for parameter in model.parameters():  # small random weights decide nothing; larger ones do
        parameter.data.mul_(2.0)
    lm = models.build("lm", models.preset("lm", "tiny"), numbered_tokens(SIZE, "attention")).eval()
    options = None
    if kind == "aed":
        from ilme.search.attention import AttentionOptions

        options = AttentionOptions(max_length=8)
    return Recogniser(model, Frontend(), PieceTokenizer(tokens), lm=lm, subtracted=internal_lm(model), options=options)


class Slow(Recogniser):
    pause = 0.0

    def search(self, *arguments):  # type: ignore[no-untyped-def]
        time.sleep(self.pause)
        return super().search(*arguments)


def main() -> None:
    folder = Path(sys.argv[1])
    recogniser = make_recogniser()
    recogniser.__class__ = Slow
    Slow.pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    processes = Processes.from_environment()
    decoder = SearchDecoder(
        recogniser,
        make_utterances(),
        folder=folder,
        options=DecodingOptions(batch_size=2),
        processes=processes,
    )
    lists = decoder.decode(WEIGHTS, BEAM)
    if processes.rank == 0:
        print(json.dumps({i: [h.to_json() for h in nbest] for i, nbest in lists.items()}))


if __name__ == "__main__":
    main()
