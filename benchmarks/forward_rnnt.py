"""A small RNN-T that reads forwards alone, taught by the bundled one: `python -m benchmarks.forward_rnnt TEXT OUT`.

The bundled RNN-T reads an utterance from both ends and cannot stream. Here an encoder of its size that reads in one
direction learns to give what the two-way encoder gives, a few frames later; prediction and joint networks stay as they
are, so that LMs, internal LMs and the tokenizer are the bundled model's. Speech is espeak-ng's.

    loss = ½ |f_student(t + delay) − f(t)|² + KL(P(· | f(t), g_u) ‖ P(· | f_student(t + delay), g_u)),   u by a search
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import publish
from ilme import models
from ilme.data.audio import resample
from ilme.data.espeak import ACCENTS, RATE_HZ, Voice, speak, variants
from ilme.data.features import Frontend, global_statistics
from ilme.models.checkpoint import save_model
from ilme.models.rnnt import RNNT
from ilme.recogniser.loading import load_model
from ilme.search.transducer import TransducerOptions, TransducerSearch

TAIL = 0.3  # seconds of silence after each sentence
BATCH = 16


@dataclass(frozen=True)
class Lesson:
    """One utterance: features (T, D), the teacher's f (T, J), its labels, and how many are out by each frame."""

    features: Tensor
    f: Tensor
    labels: Tensor
    out: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="sentences, one in a line")
    parser.add_argument("out", type=Path, help="folder of the model")
    parser.add_argument("--utterances", type=int, default=1500)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--delay", type=int, default=3, help="frames of 60 ms")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    teacher = load_model("bundled/rnnt").eval()
    audio = list(spoken(args.text.read_text(encoding="utf-8").splitlines(), args.utterances, args.seed))
    print(f"{sum(map(len, audio)) / teacher.rate / 60:.0f} minutes of speech", flush=True)
    student, frontend = untaught(teacher, audio)
    lessons = list(prepared(teacher, frontend, audio))
    losses = taught(teacher, student, lessons, 60 * args.minutes, args.delay, args.seed)
    save_model(args.out, student.eval(), teacher.tokenizer, frontend.config)
    found = {"utterances": len(lessons), "minutes": args.minutes, "delay": args.delay, "losses": losses}
    publish(found, args.out / "taught.json", seed=args.seed)


def spoken(texts: list[str], count: int, seed: int) -> Iterator[np.ndarray]:
    """Sentences in many voices, at 16 kHz, some of them with noise."""
    draw, noise = random.Random(seed), np.random.default_rng(seed)
    voices = variants()
    for text in draw.sample(texts, count):
        voice = Voice(draw.choice(ACCENTS), draw.choice(voices), draw.randint(140, 200), draw.randint(35, 65))
        samples = resample(speak(text, voice).astype(np.float32) / 32768, RATE_HZ, 16_000)
        samples = np.concatenate([np.zeros(draw.randint(0, 8000), np.float32), samples])
        samples = np.pad(samples, (0, int(TAIL * 16_000)))
        yield (samples + noise.normal(0, draw.choice((0.0005, 0.002)), len(samples))).astype(np.float32)


def untaught(teacher: RNNT, audio: list[np.ndarray]) -> tuple[RNNT, Frontend]:
    """The teacher's prediction and joint networks below an encoder that starts with its forward half."""
    own = teacher.config
    config = replace(own, encoder=replace(own.encoder, bidirectional=False, dropout=0.0))
    student = models.build("rnnt", config, teacher.tokens)
    theirs = teacher.state_dict()
    mine = student.state_dict()
    for name, value in mine.items():
        source = theirs[name]
        if source.shape != value.shape:  # a projection of both directions: the forward half, made up for the other
            source = 2 * source[:, : value.shape[1]]
        mine[name] = source.clone()
    student.load_state_dict(mine)
    base = replace(teacher.frontend, normalisation="none")
    config = global_statistics(base, (audio[k : k + BATCH] for k in range(0, min(len(audio), 320), BATCH)))
    return student, Frontend(config)


@torch.no_grad()
def prepared(teacher: RNNT, frontend: Frontend, audio: list[np.ndarray]) -> Iterator[Lesson]:
    search = TransducerSearch(teacher, options=TransducerOptions(beam=2, blank_gate=0.05))
    for k in range(0, len(audio), BATCH):
        features, lengths = teacher.features(audio[k : k + BATCH])
        f, _ = teacher.encode(features, lengths)
        own, _ = frontend(audio[k : k + BATCH])
        for b, nbest in enumerate(search(f, lengths)):
            size, best = int(lengths[b]), nbest[0]
            times = torch.tensor(best.times or (), dtype=torch.long)
            out = (times[None] < torch.arange(size)[:, None]).sum(1)
            yield Lesson(own[b, :size].half(), f[b, :size].half(), torch.tensor(best.tokens, dtype=torch.long), out)


def taught(
    teacher: RNNT, student: RNNT, lessons: list[Lesson], seconds: float, delay: int, seed: int
) -> list[tuple[int, float]]:
    """Trains the encoder for so many seconds of CPU; (step, loss) now and then."""
    draw = random.Random(seed)
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name.startswith(("encoder.", "encoder_head.")))
    weights = [p for p in student.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, 1e-3, weight_decay=1e-4)
    student.train()
    began, recent, losses = time.process_time(), [], []
    for step in itertools.count():
        spent = (time.process_time() - began) / seconds
        if spent >= 1:
            return losses
        optimiser.param_groups[0]["lr"] = 1.5e-3 * min(1, (step + 1) / 50) * (1 - spent) + 1e-5
        batch = draw.sample(lessons, BATCH)
        loss = lesson_loss(teacher, student, batch, delay)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 5.0)
        optimiser.step()
        recent.append(loss.item())
        if step % 50 == 49:
            losses.append((step + 1, round(float(np.mean(recent)), 4)))
            print(*losses[-1], f"{100 * spent:.0f} %", flush=True)
            recent = []
    raise AssertionError


def lesson_loss(teacher: RNNT, student: RNNT, batch: list[Lesson], delay: int) -> Tensor:
    pad = torch.nn.utils.rnn.pad_sequence
    features = pad([torch.nn.functional.pad(x.features.float(), (0, 0, 0, delay)) for x in batch], batch_first=True)
    lengths = torch.tensor([len(x.features) + delay for x in batch])
    f, _ = student.encode(features, lengths)
    total, frames = f.new_zeros(()), 0
    for made, x in zip(f, batch, strict=True):
        mine, theirs = made[delay : delay + len(x.f)], x.f.float()
        with torch.no_grad():
            g = teacher.predict_all(x.labels[None])[0][x.out]
            wanted = teacher.join(theirs, g).log_softmax(-1)
        got = teacher.join(mine, g).log_softmax(-1)
        total = total + torch.nn.functional.kl_div(got, wanted, log_target=True, reduction="sum")
        total = total + 0.5 * (mine - theirs).square().mean(1).sum()
        frames += len(x.f)
    return total / frames


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
