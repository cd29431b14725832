"""Would weights that change from token to token beat one pair of weights? Asked on lists of the tuning half.

python -m experiments.whisper_tokens --model tiny.en.pt --lm out/whisper-lm --speech librispeech-dev-clean --count 400 \
    --json docs/results/data/whisper-tokens.json

Each utterance has one list, joined from three searches: without LM, Shallow Fusion, and ILME. A hypothesis y of it
scores

    (Σ_u log P(y_u | x) + Σ_u g_u (λ log P_LM(y_u) − μ log P_ILM(y_u))) / (labels + 1)

where the gate g_u says how much token u listens to the LMs:

    constant     1
    confidence   (1 − p_u)^γ, p_u the highest probability that Whisper gives any token there
    marks        c for punctuation and the end of the text, 1 for words

λ, μ and the gate's own number are chosen on one half of the speakers and counted on the other, both ways round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timing import publish
from benchmarks.whisper import encoded_sets, read_lm, with_scorers
from benchmarks.whisper_sets import ListDecoder, Texts, calibration_of, label_scores, note, padded_labels
from numpy.typing import NDArray
from torch import Tensor

from ilme.adapters.hf import TransformerAED, attention
from ilme.evaluation.metrics import Measurement, count_each, measure
from ilme.evaluation.significance import paired_bootstrap
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import TRANSFORMER

Floats = NDArray[np.float64]
LAMBDAS = np.round(np.arange(0.0, 0.81, 0.04), 3)
MUS = np.round(np.arange(0.0, 0.81, 0.04), 3)


@dataclass
class Candidates:
    """The joined list of one utterance; arrays are (hypotheses, tokens), padded with zeros."""

    speaker: str
    reference: str
    texts: list[str]
    errors: Floats
    words: int
    lengths: Floats
    tokens: NDArray[np.int64]
    asr: Floats
    sure: Floats
    lm: Floats
    internal: Floats


Marks = NDArray[np.bool_]  # which tokens are punctuation, or the end of the text
Gate = Callable[[Candidates, Marks], Floats]
GATES: dict[str, dict[float, Gate]] = {
    "constant": {1.0: lambda c, marks: np.ones_like(c.asr)},
    "confidence": {g: lambda c, marks, g=g: (1 - c.sure) ** g for g in (0.0, 0.1, 0.25, 0.5, 1.0)},
    "marks": {f: lambda c, marks, f=f: np.where(marks[c.tokens], f, 1.0) for f in (0.0, 0.5, 1.0, 1.5)},
}  # fmt: skip


def marks_of(model: TransformerAED) -> Marks:
    """By what a token looks like: no letter and no digit."""
    texts = [model.tokenizer.decode([i]) for i in range(len(model.tokens))]
    return np.array([not any(ch.isalnum() for ch in text) for text in texts])


def joined_lists(args: argparse.Namespace, model: TransformerAED, lm: Any, texts: Texts) -> list[Candidates]:
    dev = encoded_sets(args, model)[args.splits[0]]
    note("audio encoded")
    plain = ListDecoder(dev, texts).search(FusionWeights(), args.beam)
    note("without LM")
    internal = internal_lm(model, args.internal, calibration=calibration_of(dev, plain, args.calibration))
    lists = [plain]
    for name, removed, weights in (("SF", None, args.sf), ("ILME", internal, args.ilme)):
        lists.append(ListDecoder(with_scorers(dev, lm, removed), texts).search(FusionWeights(*weights), args.beam))
        note(name)
    found = []
    for batch, encoded in dev.encoded():
        for row, u in enumerate(batch):
            known = sorted({h.tokens: h.text for nbest in (own[u.id] for own in lists) for h in nbest}.items())
            memory = encoded.memory
            hidden = memory["hidden"][row : row + 1]
            mask = None if memory["mask"] is None else memory["mask"][row : row + 1]
            sequences = [tokens for tokens, _ in known]
            asr, sure, read, ids = token_scores(model, model.memory(hidden, mask), lm, internal, sequences)
            reference, *written = texts([u.text, *(text for _, text in known)])
            counts = count_each([reference] * len(written), written)
            lengths = np.array([len(s) + 1.0 for s in sequences])
            errors = np.array([float(c.errors) for c in counts])
            found.append(
                Candidates(
                    u.speaker or u.id, reference, written, errors, counts[0].words, lengths, ids, asr, sure, *read
                )
            )
    note("every token scored")
    return found


@torch.inference_mode()
def token_scores(
    model: TransformerAED, memory: Any, lm: Any, internal: Any, sequences: Sequence[tuple[int, ...]]
) -> tuple[Floats, Floats, tuple[Floats, Floats], NDArray[np.int64]]:
    """log P of each token and of the end under the model, its surest probability there, and log P of LM and ILM."""
    labels, inside = padded_labels(sequences, model.tokens.eos or 0)
    logits = model.teacher_forced(labels[:, :-1], attention(memory)).float()
    logits[:, :1] += model.allowed_first
    logits[:, 1:] += model.allowed
    rows = logits.log_softmax(-1)
    own = rows.gather(2, labels[:, :, None]).squeeze(2)

    def kept(values: Tensor) -> Floats:
        return values.masked_fill(~inside, 0).double().numpy()

    read = (kept(label_scores(lm, labels)), kept(label_scores(internal, labels)))
    return kept(own), kept(rows.amax(-1).exp()), read, labels.numpy()


def choices(candidates: Sequence[Candidates], gates: Sequence[Floats]) -> NDArray[np.int64]:
    """Which hypothesis each pair (λ, μ) takes: (utterances, λ, μ)."""
    out = np.zeros((len(candidates), len(LAMBDAS), len(MUS)), dtype=np.int64)
    for i, (c, gate) in enumerate(zip(candidates, gates, strict=True)):
        lm, internal = (gate * c.lm).sum(1), (gate * c.internal).sum(1)
        score = c.asr.sum(1) + LAMBDAS[:, None, None] * lm - MUS[:, None] * internal
        out[i] = (score / c.lengths**TRANSFORMER.length_normalisation).argmax(-1)
    return out


def trial(candidates: Sequence[Candidates], marks: Marks, name: str) -> dict[str, Any]:
    """WER with the gate and weights that the other half of the speakers chose, and what each half chose."""
    options = list(GATES[name].items())
    taken = [choices(candidates, [gate(c, marks) for c in candidates]) for _, gate in options]
    errors = np.stack([[c.errors[own] for c, own in zip(candidates, t, strict=True)] for t in taken])  # (G, N, λ, μ)
    speakers = sorted({c.speaker for c in candidates})
    first = np.array([c.speaker in speakers[::2] for c in candidates])
    texts = [""] * len(candidates)
    chosen = []
    for tuned, counted in ((first, ~first), (~first, first)):
        at = np.unravel_index(errors[:, tuned].sum(1).argmin(), errors[:, 0].shape)
        g, low, high = (int(x) for x in at)
        chosen.append({"gate": options[g][0], "λ_T": float(LAMBDAS[low]), "μ": float(MUS[high])})
        for i in np.flatnonzero(counted):
            texts[i] = candidates[i].texts[taken[g][i, low, high]]
    every = np.unravel_index(errors.sum(1).argmin(), errors[:, 0].shape)
    words = sum(c.words for c in candidates)
    return {
        "chosen by each half": chosen,
        "texts": texts,
        "chosen on all, counted on all": round(100 * float(errors.sum(1)[every]) / words, 3),
    }


def counted(candidates: Sequence[Candidates], texts: Sequence[str]) -> Measurement:
    ids = [str(i) for i in range(len(candidates))]
    references = dict(zip(ids, (c.reference for c in candidates), strict=True))
    speakers = dict(zip(ids, (c.speaker for c in candidates), strict=True))
    return measure(references, dict(zip(ids, texts, strict=True)), speakers=speakers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400, help="utterances of the split tune")
    parser.add_argument("--internal", default="mean-context")
    parser.add_argument("--sf", type=float, nargs=2, default=[0.1, 0.0], help="λ and μ of the second search")
    parser.add_argument("--ilme", type=float, nargs=2, default=[0.25, 0.2], help="those of the third")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--calibration", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.splits, args.limit, args.test_limit, args.ngram, args.fold = ["tune"], args.count, None, "", False
    args.end_margin, args.certain_end = TRANSFORMER.end_margin, TRANSFORMER.certain_end
    args.no_lm_end, args.ignore_punctuation, args.device = False, False, "cpu"
    texts = Texts("whisper", 1)
    torch.set_num_threads(args.threads)
    model = load_model(args.model, args.device)
    candidates = joined_lists(args, model, read_lm(args, model), texts)
    texts.close()
    report(args, candidates, marks_of(model))


def report(args: argparse.Namespace, candidates: list[Candidates], marks: Marks) -> None:
    trials = {name: trial(candidates, marks, name) for name in GATES}
    measured = {name: counted(candidates, t.pop("texts")) for name, t in trials.items()}
    words = sum(c.words for c in candidates)
    for name, found in trials.items():
        found["WER"] = round(measured[name].rate, 3)
        if name != "constant":
            found["p against constant"] = round(paired_bootstrap(measured[name], measured["constant"])[0], 4)
    whole = {
        "utterances": len(candidates),
        "words": words,
        "hypotheses in a list": round(float(np.mean([len(c.texts) for c in candidates])), 1),
        "best of each list": round(100 * sum(c.errors.min() for c in candidates) / words, 3),
        "gates": trials,
    }
    publish(whole, args.json, seed=args.seed)


if __name__ == "__main__":
    main()
