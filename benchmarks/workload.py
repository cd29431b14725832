"""Paper-size networks that behave like trained ones, and utterances for them: the same in every system measured.

A search's cost depends on what the network says: on how many frames blank wins at once, on how many labels compete
where it does not. Random weights say nothing, so these are wired:

- each label has a code of ±1 (J,); 500 clusters of 8 labels share most of their code, so they are confusable;
- the acoustic term f_t is noise, except at 36 places of 334 frames where a mixture of two codes of one cluster rises
  over three frames;
- the prediction network remembers the last label, and its term g_u subtracts that label's code: a label that has been
  emitted is not emitted again;
- the output layer is a matched filter for the codes; blank has a bias, so it wins wherever nothing rises.

The LM and the attention decoder have random weights of a realistic spread, and do not favour the end of a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ilme.models.aed import AED
from ilme.models.aed import PRESETS as AED_PRESETS
from ilme.models.lstm_lm import LSTMLM
from ilme.models.lstm_lm import PRESETS as LM_PRESETS
from ilme.models.rnnt import PRESETS as RNNT_PRESETS
from ilme.models.rnnt import RNNT
from ilme.testing import numbered_tokens

V, J, E, T = 4000, 1024, 780, 334  # output units, joint dimension, encoder dimension of the AED, frames
LABELS = 36  # in each transducer utterance
AED_LABELS = 40  # that the attention decoder writes
UTTERANCES = 4
CLUSTER = 8  # confusable labels
FLIPPED = 0.035  # share of its cluster's code that a label changes
RISE = 1.2  # height of a spike, and of what the last label subtracts
FILTER_GAIN = 42.0  # logit of a label whose code is fully there
BLANK_BIAS = 13.5
NEVER_END = -30.0  # bias of eos


@dataclass
class Workload:
    """Networks on CPU in float32, in eval mode, without their encoders' outputs: these are given."""

    rnnt: RNNT
    lm: LSTMLM
    aed: AED
    acoustics: Tensor  # (utterances, T, J), f_t of the transducer
    hidden: Tensor  # (utterances, T, E), encoder outputs of the attention decoder
    references: list[list[int]]


def build(seed: int = 0) -> Workload:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        codes = label_codes(generator)
        rnnt = RNNT(RNNT_PRESETS["paper"], numbered_tokens(V, "transducer")).eval()
        wire_transducer(rnnt, codes, generator)
        lm = LSTMLM(LM_PRESETS["paper"], numbered_tokens(V, "attention")).eval()
        aed = AED(AED_PRESETS["paper"], numbered_tokens(V, "attention")).eval()
        spread_lm(lm, generator)
        spread_aed(aed, generator)
        acoustics, references = utterances(codes, seed)
        hidden = torch.randn(UTTERANCES, T, E, generator=generator)
    return Workload(rnnt, lm, aed, acoustics, hidden, references)


def label_codes(generator: torch.Generator) -> Tensor:
    """(V, J) of ±1; the row of blank is zero."""
    shared = torch.randn(V // CLUSTER, J, generator=generator).sign()
    own = 1 - 2 * (torch.rand(V, J, generator=generator) < FLIPPED).float()
    codes = shared.repeat_interleave(CLUSTER, 0) * own
    codes[0] = 0
    return codes


def wire_transducer(model: RNNT, codes: Tensor, generator: torch.Generator) -> None:
    model.predictor.embedding.weight.copy_(codes)
    lstm = model.predictor.rnn.lstm
    for layer, gain in enumerate((1.6, 3.2)):
        w_ih, w_hh = getattr(lstm, f"weight_ih_l{layer}"), getattr(lstm, f"weight_hh_l{layer}")
        w_ih.normal_(0, 0.01, generator=generator)
        w_hh.normal_(0, 0.008, generator=generator)
        rotation = torch.linalg.qr(torch.randn(J, J, generator=generator)).Q
        w_ih[2 * J : 3 * J] = gain * rotation  # the candidate is the rotated input
        getattr(lstm, f"bias_hh_l{layer}").zero_()
        bias = getattr(lstm, f"bias_ih_l{layer}").zero_()
        bias[:J], bias[J : 2 * J], bias[3 * J :] = 3.0, -2.0, 3.0  # let in, forget, let out

    read = torch.randint(1, V, (48, 120), generator=generator)
    norm, first, second = model.prediction_head
    h = norm(lstm(codes[read])[0]).reshape(-1, J)
    wanted = codes[read].reshape(-1, J)
    recall = torch.linalg.solve(h.T @ h + 5.0 * torch.eye(J), h.T @ wanted).T  # ridge: code of the last label
    first.weight.copy_(recall)
    second.weight.copy_(-RISE * torch.eye(J))
    first.bias.zero_()
    second.bias.zero_()

    model.output.weight.copy_(FILTER_GAIN / J * codes)
    model.output.weight[0].normal_(0, 0.02, generator=generator)
    model.output.bias.zero_()
    model.output.bias[0] = BLANK_BIAS


def utterances(codes: Tensor, seed: int) -> tuple[Tensor, list[list[int]]]:
    acoustics, references = [], []
    for number in range(UTTERANCES):
        generator = torch.Generator().manual_seed(1000 * (seed + 1) + number)
        f = 0.25 * torch.randn(T, J, generator=generator)
        labels = torch.randint(1, V, (LABELS,), generator=generator)
        places = torch.linspace(4, T - 8, LABELS).long() + torch.randint(-2, 3, (LABELS,), generator=generator)
        loudness = 0.8 + 0.3 * torch.rand(LABELS, generator=generator)
        rivals = labels // CLUSTER * CLUSTER + torch.randint(0, CLUSTER, (LABELS,), generator=generator)
        share = 0.6 * torch.rand(LABELS, generator=generator)
        for at, loud, label, rival, part in zip(places, loudness, labels, rivals, share, strict=True):
            spike = RISE * loud * ((1 - part) * codes[label] + part * codes[rival])
            f[at : at + 3] += torch.tensor([[0.45], [1.0], [0.5]]) * spike
        acoustics.append(f)
        references.append(labels.tolist())
    return torch.stack(acoustics), references


def spread_lm(model: LSTMLM, generator: torch.Generator) -> None:
    for parameter in model.rnn.parameters():
        parameter.uniform_(-0.03, 0.03, generator=generator)
    model.embedding.weight.normal_(0, 0.3, generator=generator)
    model.project.weight.normal_(0, 0.05, generator=generator)
    model.project.bias.zero_()
    model.output.bias.zero_()
    model.output.bias[0] = NEVER_END


def spread_aed(model: AED, generator: torch.Generator) -> None:
    for parameter in (*model.rnn.parameters(), *model.attend.parameters()):
        width = parameter.shape[-1] ** -0.5
        parameter.uniform_(-width, width, generator=generator)
    model.embedding.weight.normal_(0, 1.0, generator=generator)
    model.output.weight.normal_(0, 0.15, generator=generator)
    model.output.bias.zero_()
    model.output.bias[0] = NEVER_END


def save(work: Workload, path: Path) -> None:
    """One file that every peer reads; encoders are left out."""
    tensors = {"acoustics": work.acoustics, "hidden": work.hidden, "references": torch.tensor(work.references)}
    for name in ("rnnt", "lm", "aed"):
        for key, value in getattr(work, name).state_dict().items():
            if not key.startswith("encoder.") and not (name == "lm" and key == "output.weight"):
                tensors[f"{name}.{key}"] = value
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, path)


def load(path: Path) -> Workload:
    tensors = load_file(path)
    rnnt = RNNT(RNNT_PRESETS["paper"], numbered_tokens(V, "transducer")).eval()
    lm = LSTMLM(LM_PRESETS["paper"], numbered_tokens(V, "attention")).eval()
    aed = AED(AED_PRESETS["paper"], numbered_tokens(V, "attention")).eval()
    for name, model in (("rnnt", rnnt), ("lm", lm), ("aed", aed)):
        given = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        missing, unexpected = model.load_state_dict(given, strict=False)
        strange = [key for key in missing if not key.startswith("encoder.") and key != "output.weight"]
        if strange or unexpected:
            raise ValueError(f"{path} is not a workload file: missing {strange}, unexpected {unexpected}")
    return Workload(rnnt, lm, aed, tensors["acoustics"], tensors["hidden"], tensors["references"].tolist())


def without_encoder(model: nn.Module) -> nn.Module:
    """The encoder takes no part here; leaving it out saves memory."""
    model.encoder = nn.Identity().eval()  # type: ignore[assignment]
    return model


# --- exact scores of a label sequence, by teacher forcing in float32 -------------------------------------------------


@torch.no_grad()
def transducer_score(model: RNNT, f: Tensor, labels: list[int]) -> float:
    """log P(y|x) summed over ALL alignments: f (T, J)."""
    g = model.predict_all(torch.tensor([labels], dtype=torch.long))[0]
    targets = [*labels, 0]
    emit, blank = torch.empty(len(f), len(g)), torch.empty(len(f), len(g))
    for u, target in enumerate(targets):
        logp = model.join(f, g[u].expand(len(f), -1)).log_softmax(-1)
        blank[:, u], emit[:, u] = logp[:, 0], logp[:, target]
    blank, emit = blank.double(), emit.double()
    alpha = torch.full((len(g),), -torch.inf, dtype=torch.float64)
    alpha[0] = 0
    for t in range(len(f)):
        for u in range(1, len(g)):
            alpha[u] = torch.logaddexp(alpha[u], alpha[u - 1] + emit[t, u - 1])
        alpha = alpha + blank[t]
    return float(alpha[-1])


@torch.no_grad()
def attention_score(model: AED, hidden: Tensor, labels: list[int]) -> float:
    """log P(y, eos | x) of hidden (T, E)."""
    memory = (hidden[None], model.attend.key(hidden[None]), torch.zeros(1, len(hidden)))
    logp = model.decode_all(memory, torch.tensor([labels], dtype=torch.long))[0].log_softmax(-1)
    return float(logp.gather(1, torch.tensor([*labels, 0])[:, None]).double().sum())


@torch.no_grad()
def language_score(scorer, labels: list[int], end: bool) -> float:
    """log P(y) of a TokenScorer, with its end of sentence or without."""
    rows, state = scorer.start(1)
    total = 0.0
    for label in labels:
        total += float(rows[0, label])
        rows, state = scorer.score(torch.tensor([label]), state)
    return total + (float(scorer.finish(rows)[0]) if end else 0.0)
