"""SpeechBrain's S2SRNNBeamSearcher on the workload's attention decoder: the same function, in its own modules.

Its decoder concatenates the embedding and a projected context where the paper adds them, and mixes the context into
the output. With repeated, identity and zero blocks in the weights it computes what the paper's network computes.
"""

from __future__ import annotations

from importlib.metadata import version

import driver
import speechbrain
import torch
from speechbrain.decoders.scorer import RNNLMScorer, ScorerBuilder
from speechbrain.decoders.seq2seq import S2SRNNBeamSearcher
from torch import Tensor, nn


def decoder(weights: dict[str, Tensor]):
    attention, hidden = weights["attend.query.weight"].shape
    enc = weights["embedding.weight"].shape[1]
    filters, _, width = weights["attend.filters.weight"].shape
    module = speechbrain.nnet.RNN.AttentionalRNNDecoder(
        "lstm", "location", hidden, attention, 2, enc_dim=enc, input_size=enc, channels=filters,
        kernel_size=width // 2,
    ).eval()  # fmt: skip
    for parameter in module.parameters():
        parameter.zero_()
    attn = module.attn
    attn.mlp_enc.weight.copy_(weights["attend.key.weight"])
    attn.mlp_enc.bias.copy_(weights["attend.key.bias"])
    attn.mlp_dec.weight.copy_(weights["attend.query.weight"])
    attn.mlp_attn.weight.copy_(weights["attend.energy.weight"])
    attn.conv_loc.weight.copy_(weights["attend.filters.weight"])
    attn.mlp_loc.weight.copy_(weights["attend.location.weight"])
    attn.mlp_out.weight[:enc] = torch.eye(enc)  # the context as it is, padded to the attention's dimension
    module.proj.weight[:, attention:] = torch.eye(hidden)  # the output layer sees the LSTM alone
    for layer, cell in enumerate(module.rnn.rnn_cells):
        w_ih = weights[f"rnn.lstm.weight_ih_l{layer}"]
        cell.weight_ih[:, : w_ih.shape[1]] = w_ih
        if layer == 0:
            cell.weight_ih[:, enc : 2 * enc] = w_ih  # W [e; c] with W repeated is W (e + c)
        cell.weight_hh.copy_(weights[f"rnn.lstm.weight_hh_l{layer}"])
        cell.bias_ih.copy_(weights[f"rnn.lstm.bias_ih_l{layer}"])
        cell.bias_hh.copy_(weights[f"rnn.lstm.bias_hh_l{layer}"])
    return module


class Searcher(S2SRNNBeamSearcher):
    """Starts from the context c_0 that the empty decoder state attends to, as the paper's network does."""

    def begin(self, states: Tensor) -> None:
        self.states = states

    def reset_mem(self, batch_size, device):
        memory, attn = super().reset_mem(batch_size, device), self.dec.attn
        lengths = torch.full((len(self.states),), self.states.shape[1])
        context, weights = attn(self.states, lengths, torch.zeros(len(self.states), self.dec.hidden_size))
        attn.reset()
        self.first_weights = weights.repeat_interleave(batch_size // len(weights), 0)
        return memory[0], context.repeat_interleave(batch_size // len(context), 0)

    def forward_step(self, inp_tokens, memory, enc_states, enc_lens):
        if self.dec.attn.precomputed_enc_h is None:  # the first step: its previous weights are those of c_0
            attn = self.dec.attn
            attn.precomputed_enc_h = attn.mlp_enc(enc_states)
            attn.mask = torch.ones(enc_states.shape[:2], dtype=torch.bool)
            attn.prev_attn = self.first_weights
        return super().forward_step(inp_tokens, memory, enc_states, enc_lens)


class OneStep(nn.Module):
    """The LM as RNNLMScorer calls it: one token per sequence."""

    def __init__(self, lm: driver.LanguageModel) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, labels: Tensor, hx=None):
        logits, state = self.lm(labels.long()[:, None], hx)
        return logits[:, 0], state


def main() -> None:
    chosen = driver.options(__doc__)
    weights = driver.tensors(chosen.workload, "aed")
    states = driver.given(chosen.workload, "hidden")[: chosen.utterances]
    units, hidden = weights["output.weight"].shape
    output = speechbrain.nnet.linear.Linear(n_neurons=units, input_size=hidden)
    output.w.weight.copy_(weights["output.weight"])
    output.w.bias.copy_(weights["output.bias"])
    extra = {}
    if chosen.lm_weight:
        lm = OneStep(driver.LanguageModel(driver.tensors(chosen.workload, "lm")).eval())
        extra["scorer"] = ScorerBuilder(
            full_scorers=[RNNLMScorer(language_model=lm)], weights={"rnnlm": chosen.lm_weight}
        )
    search = Searcher(
        embedding=nn.Embedding.from_pretrained(weights["embedding.weight"]), decoder=decoder(weights), linear=output,
        bos_index=0, eos_index=0, min_decode_ratio=0.0, max_decode_ratio=chosen.max_labels / states.shape[1] + 1e-6,
        beam_size=chosen.beam, using_eos_threshold=False, length_normalization=False, **extra,
    )  # fmt: skip

    def work() -> list[list[int]]:
        found = []
        for part in states.split(chosen.batch):
            search.begin(part)
            found += [[int(label) for label in labels] for labels in search(part, torch.ones(len(part)))[0]]
        return found

    driver.report(f"SpeechBrain {version('speechbrain')} S2SRNNBeamSearcher", chosen, work)


main()
