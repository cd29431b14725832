"""What every peer's driver shares: its options, the workload's tensors, timing, and one JSON line per measurement."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from timing import fastest, peak_memory_mb


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workload", type=Path, help="file written by workload.save")
    parser.add_argument("--beam", type=int, default=25)
    parser.add_argument("--utterances", type=int, default=4, help="how many of the workload's are decoded")
    parser.add_argument("--batch", type=int, default=1, help="utterances at a time, where the peer can take several")
    parser.add_argument("--lm-weight", type=float, default=0.0)
    parser.add_argument("--max-labels", type=int, default=40, help="labels that an attention decoder writes")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.set_grad_enabled(False)
    logging.disable(logging.WARNING)
    return chosen


def tensors(path: Path, part: str) -> dict[str, Tensor]:
    """The tensors of one network, without its prefix."""
    return {k.removeprefix(f"{part}."): v for k, v in load_file(path).items() if k.startswith(f"{part}.")}


def given(path: Path, name: str) -> Tensor:
    return load_file(path)[name]


def folded_head(weights: dict[str, Tensor]) -> nn.Sequential:
    """The transducer's prediction head, its two products made one: the peer shall not pay for the second."""
    size = len(weights["prediction_head.0.weight"])
    first, second = weights["prediction_head.1.weight"], weights["prediction_head.2.weight"]
    head = nn.Sequential(nn.LayerNorm(size), nn.Linear(first.shape[1], second.shape[0]))
    head[0].weight.copy_(weights["prediction_head.0.weight"])
    head[0].bias.copy_(weights["prediction_head.0.bias"])
    head[1].weight.copy_(second @ first)
    head[1].bias.copy_(second @ weights["prediction_head.1.bias"] + weights["prediction_head.2.bias"])
    return head.eval()


def lstm_weights(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


class LanguageModel(nn.Module):
    """The paper's LSTM-LM as a plain torch module: tokens (n, U) and a state to logits (n, U, V) and the state."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        table = weights["embedding.weight"]
        self.embedding = nn.Embedding.from_pretrained(table)
        self.lstm = nn.LSTM(table.shape[1], weights["project.weight"].shape[1], 2, batch_first=True)
        self.lstm.load_state_dict(lstm_weights(weights, "rnn.lstm."))
        self.output = language_output(weights)

    def forward(self, labels: Tensor, state: tuple[Tensor, Tensor] | None = None):
        h, state = self.lstm(self.embedding(labels), state)
        return self.output(h), state


def language_output(weights: dict[str, Tensor]) -> nn.Sequential:
    """2048 → 512 → vocabulary."""
    table, project = weights["embedding.weight"], weights["project.weight"]
    output = nn.Sequential(nn.Linear(*reversed(project.shape)), nn.Linear(*reversed(table.shape)))
    output[0].weight.copy_(project)
    output[0].bias.copy_(weights["project.bias"])
    output[1].weight.copy_(table)
    output[1].bias.copy_(weights["output.bias"])
    return output.eval()


def report(system: str, chosen: argparse.Namespace, work: Callable[[], list[list[int]]]) -> None:
    """Runs `work`, which decodes the utterances and returns their labels, and prints what it cost."""
    seconds, labels = fastest(work, chosen.repeats)
    line = {
        "system": system,
        "beam": chosen.beam,
        "batch": chosen.batch,
        "lm_weight": chosen.lm_weight,
        "cpu_seconds_per_utterance": seconds / chosen.utterances,
        "peak_memory_mb": peak_memory_mb(),
        "labels": labels,
    }
    print(json.dumps(line), flush=True)
