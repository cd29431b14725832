"""torchaudio's RNNTBeamSearch on the workload's transducer. It has no LM, and decodes one utterance at a time."""

from __future__ import annotations

import driver
import torch
import torchaudio
from torch import Tensor, nn
from torchaudio.models import RNNTBeamSearch


class Network(nn.Module):
    """The calls that RNNTBeamSearch makes. It wants the blank last: ids here are shifted down by one."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        order = torch.arange(1, len(weights["output.bias"]) + 1) % len(weights["output.bias"])
        table = weights["predictor.embedding.weight"][order]
        self.embedding = nn.Embedding.from_pretrained(table)
        self.lstm = nn.LSTM(table.shape[1], table.shape[1], 2, batch_first=True)
        self.lstm.load_state_dict(driver.lstm_weights(weights, "predictor.rnn.lstm."))
        self.head = driver.folded_head(weights)
        self.output = nn.Linear(*reversed(weights["output.weight"].shape))
        self.output.weight.copy_(weights["output.weight"][order])
        self.output.bias.copy_(weights["output.bias"][order])

    def predict(self, labels: Tensor, lengths: Tensor, state):
        """States travel batch first, since RNNTBeamSearch slices them in dimension 0."""
        inner = None if state is None else tuple(x.transpose(0, 1).contiguous() for x in state[0])
        h, inner = self.lstm(self.embedding(labels), inner)
        return self.head(h), lengths, [[x.transpose(0, 1) for x in inner]]

    def join(self, f: Tensor, f_lengths: Tensor, g: Tensor, g_lengths: Tensor):
        return self.output(torch.tanh(f[:, :, None] + g[:, None])), f_lengths, g_lengths


def main() -> None:
    chosen = driver.options(__doc__)
    network = Network(driver.tensors(chosen.workload, "rnnt")).eval()
    frames = driver.given(chosen.workload, "acoustics")[: chosen.utterances]
    search = RNNTBeamSearch(network, blank=len(network.output.bias) - 1)

    def work() -> list[list[int]]:
        best = [search._search(f[None], None, chosen.beam)[0] for f in frames]
        return [[label + 1 for label in hypothesis[0][1:]] for hypothesis in best]

    driver.report(f"torchaudio {torchaudio.__version__.split('+')[0]} RNNTBeamSearch", chosen, work)


main()
