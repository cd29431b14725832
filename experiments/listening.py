"""Does a head on Whisper's frozen encoder listen? A quick look on a CPU, before a GPU is spent on training.

A CTC layer (and, with --lstm, a bidirectional LSTM below it) is trained on a few recordings, on encodings that are made
once. Its held-out loss per label is compared with what text alone gives: the cross-entropy of a label under a bigram
of the training transcripts. A head that does not listen cannot be better than that.

    python -m experiments.listening configs/study/real.yaml --train 200 --out out/listening.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ilme.adapters.whisper_weights import load_whisper_encoder
from ilme.data.features import Frontend, FrontendConfig
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.evaluation.metrics import measure
from ilme.lm.ngram import NGramScorer, build_automaton
from ilme.lm.ngram_train import NGramOptions, train_ngram
from ilme.lm.perplexity import perplexity
from ilme.losses.ctc import ctc_loss
from ilme.models.whisper_encoder import WhisperConfig, WhisperEncoder
from ilme.study.config import read_config
from ilme.study.corpora import CorpusPart, RecordingsPlan, audio_of, find_file, rows_of

FRONTEND = FrontendConfig(kind="whisper", stack=1, stride=1, normalisation="none")
WHISPER = WhisperConfig(layers=4)  # the tiny models' encoder
BLANK = 0
LOOKS = 8  # at the held-out sets, beside the one before training

Sets = dict[str, tuple[list[Tensor], list[str]]]  # encodings and texts by the set's name


class Head(nn.Module):
    """Pairs of 20 ms frames, an optional BLSTM, a CTC layer."""

    def __init__(self, units: int, lstm: int) -> None:
        super().__init__()
        pair = 2 * WHISPER.width
        self.lstm = nn.LSTM(pair, lstm, batch_first=True, bidirectional=True) if lstm else None
        self.norm = nn.LayerNorm(2 * lstm or pair)
        self.ctc = nn.Linear(2 * lstm or pair, units)

    def forward(self, x: Tensor) -> Tensor:
        if self.lstm is not None:
            x = self.lstm(x)[0]
        return self.norm(nn.functional.dropout(x, 0.1, self.training))  # type: ignore[no-any-return]


@torch.no_grad()
def encode(plan: RecordingsPlan, part: CorpusPart, seed: int) -> tuple[list[Tensor], list[str], float]:
    """Encodings (T, 2 · width) of each utterance, pairs of frames joined; their texts; seconds of audio."""
    encoder = WhisperEncoder(WHISPER).eval()
    load_whisper_encoder(encoder, find_file(plan, plan.whisper))
    frontend = Frontend(FRONTEND)
    rows = rows_of(plan, part, seed)
    found = []
    for row in rows:
        mel, lengths = frontend([audio_of(plan, part, row)])
        h = encoder(mel, lengths)[0][0]
        found.append(nn.functional.pad(h, (0, 0, 0, len(h) % 2)).reshape(-1, 2 * h.shape[1]))
    return found, [row.text for row in rows], sum(row.seconds for row in rows)


def text_bound(tokenizer: SentencePieceTokenizer, train: list[str], held_out: list[str]) -> float:
    """Nats per label of the held-out transcripts under a bigram of the training transcripts."""
    eos = tokenizer.tokens.eos or 0
    ids = np.concatenate([np.array([*row, eos]) for row in tokenizer.encode_many(train)])
    arpa = train_ngram(ids, tokenizer.tokens, NGramOptions(2, (0,))).arpa
    scorer = NGramScorer(build_automaton(arpa), tokenizer.tokens, arpa.missing, arpa.unknown)
    return float(np.log(perplexity(scorer, held_out, tokenizer).per_token))


def batch_loss(head: Head, xs: list[Tensor], ys: list[Tensor]) -> Tensor:
    """Summed CTC loss of a batch."""
    x = pad_sequence(xs, batch_first=True)
    sizes, labels = torch.tensor([len(v) for v in xs]), pad_sequence(ys, batch_first=True)
    return ctc_loss(head.ctc, head(x), sizes, labels, torch.tensor([len(y) for y in ys]), BLANK)


@torch.no_grad()
def transcribe(head: Head, xs: list[Tensor], tokenizer: SentencePieceTokenizer) -> list[str]:
    """Best path: repeated labels once, blanks left out."""
    texts = []
    for x in xs:
        path = torch.unique_consecutive(head.ctc(head(x[None]))[0].argmax(-1))
        texts.append(tokenizer.decode([int(i) for i in path if i != BLANK]))
    return texts


def look(head: Head, data: Sets, tokenizer: SentencePieceTokenizer) -> dict[str, float]:
    """Held-out loss per label, and the word error rate of best paths on every set."""
    head.eval()
    xs, texts = data["held_out"]
    ys = [torch.tensor(row) for row in tokenizer.encode_many(texts)]
    with torch.no_grad():
        total = sum(float(batch_loss(head, xs[i : i + 32], ys[i : i + 32])) for i in range(0, len(xs), 32))
    found = {"nats_per_label": round(total / sum(len(y) for y in ys), 4)}
    for name, (encoded, said) in data.items():
        guesses = transcribe(head, encoded, tokenizer)
        references = {str(i): text for i, text in enumerate(said)}
        found[f"{name}_wer"] = round(measure(references, {str(i): t for i, t in enumerate(guesses)}).total.rate, 2)
    head.train()
    return found


def learn(
    asked: argparse.Namespace, train: list[Tensor], texts: list[str], data: Sets, tokenizer: SentencePieceTokenizer
) -> list[dict[str, float]]:
    """Trains a head on the encodings; what the looks at the other sets found, the first before training."""
    head = Head(asked.vocabulary, asked.lstm)
    optimiser = torch.optim.AdamW(head.parameters(), lr=asked.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, asked.rate, total_steps=asked.steps, pct_start=0.1)
    ys = [torch.tensor(row) for row in tokenizer.encode_many(texts)]
    looks = [{"step": 0, **look(head, data, tokenizer)}]
    for step in range(1, asked.steps + 1):
        chosen = torch.randint(len(train), (asked.batch,)).tolist()
        loss = batch_loss(head, [train[i] for i in chosen], [ys[i] for i in chosen])
        optimiser.zero_grad()
        (loss / sum(len(ys[i]) for i in chosen)).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        if step % max(1, asked.steps // LOOKS) == 0:
            looks.append({"step": step, **look(head, data, tokenizer)})
            print(json.dumps(looks[-1]), flush=True)
    return looks


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--train", type=int, default=200, help="utterances to learn from")
    parser.add_argument("--held-out", type=int, default=60, help="utterances of each set that is looked at")
    parser.add_argument("--vocabulary", type=int, default=200)
    parser.add_argument("--lstm", type=int, default=0, help="units of a BLSTM below the CTC layer; 0 has none")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--out", type=Path, default=Path("out/listening.json"))
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    config = read_config(asked.plan)
    plan, seed = config.recordings, config.seed
    began = time.monotonic()
    train, texts, seconds = encode(plan, CorpusPart(plan.train.corpus, plan.train.split, asked.train), seed)
    data: Sets = {}
    for name, part in (("held_out", plan.held_out), ("target", plan.sets["target-dev"])):
        encoded, said, _ = encode(plan, CorpusPart(part.corpus, part.split, asked.held_out), seed)
        data[name] = (encoded, said)
    tokenizer = SentencePieceTokenizer.train(texts, asked.vocabulary)
    bound = text_bound(tokenizer.for_role("lm"), texts, data["held_out"][1])
    print(f"encoded in {time.monotonic() - began:.0f} s; text alone gives {bound:.3f} nats a label", flush=True)
    torch.manual_seed(seed)
    began = time.monotonic()
    looks = learn(asked, train, texts, data, tokenizer)
    result = {
        "text_alone_nats_per_label": round(bound, 4),
        "train_utterances": len(train),
        "train_minutes": round(seconds / 60, 1),
        "vocabulary": asked.vocabulary,
        "lstm": asked.lstm,
        "training_seconds": round(time.monotonic() - began, 1),
        "looks": looks,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
