"""Models of torchaudio, SpeechBrain and ESPnet wrapped as ours: the patterns of docs/reference/toolkits.md, tested.

Each package is needed only by its own tests, which are skipped where it is absent. None of the models is trained:
what is checked is that the wrapped model keeps the contract and gives the package's own numbers.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.transducer import TransducerInternalLM
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.transducer import TransducerOptions, TransducerSearch
from ilme.testing import check_transducer, numbered_tokens
from ilme.testing.contract import check_attention_model, check_internal_lm

UNITS, WIDTH, FEATURES = 12, 10, 6
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "toolkits.md"


def speech() -> tuple[torch.Tensor, torch.Tensor]:
    """Features (2, 24, D) of two utterances, the second shorter and padded with zeros."""
    features = torch.randn(2, 24, FEATURES, generator=torch.Generator().manual_seed(5))
    features[1, 16:] = 0
    return features, torch.tensor([24, 16])


class TorchaudioTransducer:
    """A `torchaudio.models.RNNT`. Its two encodings are added before the joiner's activation."""

    def __init__(self, network, tokens, right_context: int) -> None:
        self.network, self.tokens, self.right_context = network.eval(), tokens, right_context
        self.device = next(network.parameters()).device

    def encode(self, features, lengths):
        padded = nn.functional.pad(features, (0, 0, 0, self.right_context))
        return self.network.transcribe(padded, lengths)

    def start(self, n):
        return self.predict(torch.full((n,), self.tokens.blank, device=self.device), None)

    def predict(self, labels, state):
        g, _, state = self.network.predict(labels[:, None], torch.ones_like(labels), state)
        return g[:, 0], state

    def join(self, f, g):
        one = torch.ones(len(g), dtype=torch.long, device=self.device)
        f = torch.zeros_like(g) if f is None else f  # no source encoding: J(0 + g)
        return self.network.join(f[:, None], one, g[:, None], one)[0][:, 0, 0]


class EspnetTransducer:
    """ESPnet's encoder, decoder and joint network. The joint's projections are made here, once."""

    def __init__(self, encoder, decoder, joint, tokens) -> None:
        self.encoder, self.decoder, self.joint, self.tokens = encoder.eval(), decoder.eval(), joint.eval(), tokens
        self.device = next(joint.parameters()).device

    def encode(self, features, lengths):
        states, lengths, _ = self.encoder(features, lengths)
        return self.joint.lin_enc(states), lengths

    def start(self, n):
        hidden, cell = (x.transpose(0, 1) for x in self.decoder.init_state(n))
        return self.predict(torch.full((n,), self.tokens.blank, device=self.device), (hidden, cell))

    def predict(self, labels, state):
        inner = tuple(x.transpose(0, 1).contiguous() for x in state)  # ESPnet's layers first, ours sequences first
        h, new = self.decoder.rnn_forward(self.decoder.embed(labels)[:, None], inner)
        return self.joint.lin_dec(h[:, 0]), tuple(x.transpose(0, 1) for x in new)

    def join(self, f, g):
        return self.joint.lin_out(self.joint.joint_activation(g if f is None else f + g))


class SpeechBrainAttention:
    """SpeechBrain's encoder, embedding, AttentionalRNNDecoder and output layer.

    Its attention remembers what it attends to and where it last looked. A search reorders and branches, so both are
    put in before every step and taken out after it.
    """

    def __init__(self, encoder, embedding, decoder, output, tokens) -> None:
        self.encoder, self.embedding, self.decoder, self.output = encoder, embedding, decoder, output
        self.tokens = tokens
        self.device = next(output.parameters()).device

    def encode(self, features, lengths):
        states, _ = self.encoder(features, lengths=lengths / features.shape[1])
        frames = torch.arange(states.shape[1], device=self.device)
        return {"states": states, "keys": self.decoder.attn.mlp_enc(states), "mask": frames < lengths[:, None]}

    def start(self, memory):
        mask = memory["mask"]
        n, size = len(mask), (len(mask), self.decoder.num_layers, self.decoder.hidden_size)
        state = {
            "rnn": (torch.zeros(size), torch.zeros(size)),
            "context": torch.zeros(n, self.decoder.attn_dim),
            "weights": mask / mask.sum(1, keepdim=True),
        }
        return self.step(torch.full((n,), self.tokens.sos), state, memory)

    def step(self, labels, state, memory):
        each = len(labels) // len(memory["mask"])
        states, keys, mask = (memory[name].repeat_interleave(each, 0) for name in ("states", "keys", "mask"))
        attention = self.decoder.attn
        attention.precomputed_enc_h, attention.mask, attention.prev_attn = keys, mask, state["weights"]
        rnn = tuple(x.transpose(0, 1).contiguous() for x in state["rnn"])
        h, rnn, context, weights = self.decoder.forward_step(
            self.embedding(labels), rnn, state["context"], states, mask.sum(1)
        )
        attention.reset()
        state = {"rnn": tuple(x.transpose(0, 1) for x in rnn), "context": context, "weights": weights}
        return self.output(h).log_softmax(-1), state


class SpeechBrainInternalLM:
    """The same decoder with zeros in place of the context, wherever it enters (Section 4.2 of the paper)."""

    def __init__(self, model) -> None:
        self.model, self.tokens, self.device = model, model.tokens, model.device

    def start(self, n):
        size = (n, self.model.decoder.num_layers, self.model.decoder.hidden_size)
        return self.score(torch.full((n,), self.tokens.sos), (torch.zeros(size), torch.zeros(size)))

    def score(self, labels, state):
        decoder, absent = self.model.decoder, torch.zeros(len(labels), self.model.decoder.attn_dim)
        rnn = tuple(x.transpose(0, 1).contiguous() for x in state)
        h, rnn = decoder.rnn(torch.cat([self.model.embedding(labels), absent], -1), rnn)
        rows = self.model.output(decoder.proj(torch.cat([absent, h], -1))).log_softmax(-1)
        return rows, tuple(x.transpose(0, 1) for x in rnn)

    def finish(self, rows):
        return rows[:, self.tokens.eos]


def needs(package: str) -> None:
    pytest.importorskip(
        package, reason=f"{package} is not installed: its pattern cannot be tried", exc_type=ImportError
    )


def torchaudio_rnnt():
    needs("torchaudio")
    from torchaudio.models.rnnt import emformer_rnnt_model

    torch.manual_seed(0)
    network = emformer_rnnt_model(
        input_dim=FEATURES,
        encoding_dim=WIDTH,
        num_symbols=UNITS,
        segment_length=8,
        right_context_length=4,
        time_reduction_input_dim=8,
        time_reduction_stride=2,
        transformer_num_heads=2,
        transformer_ffn_dim=16,
        transformer_num_layers=1,
        transformer_dropout=0.0,
        transformer_activation="gelu",
        transformer_left_context_length=8,
        transformer_max_memory_size=0,
        transformer_weight_init_scale_strategy="depthwise",
        transformer_tanh_on_mem=True,
        symbol_embedding_dim=8,
        num_lstm_layers=2,
        lstm_layer_norm=True,
        lstm_layer_norm_epsilon=1e-3,
        lstm_dropout=0.0,
    )
    return TorchaudioTransducer(network, numbered_tokens(UNITS, "transducer"), right_context=4)


def espnet_rnnt():
    needs("espnet2")
    from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
    from espnet2.asr.encoder.rnn_encoder import RNNEncoder
    from espnet2.asr_transducer.joint_network import JointNetwork

    torch.manual_seed(0)
    encoder = RNNEncoder(FEATURES, num_layers=1, hidden_size=8, output_size=8, subsample=[1], use_projection=True)
    decoder = TransducerDecoder(UNITS, "lstm", 2, 8)
    return EspnetTransducer(encoder, decoder, JointNetwork(UNITS, 8, 8, WIDTH), numbered_tokens(UNITS, "transducer"))


def speechbrain_aed():
    needs("speechbrain")
    from speechbrain.nnet.linear import Linear
    from speechbrain.nnet.RNN import LSTM, AttentionalRNNDecoder

    torch.manual_seed(0)
    encoder = LSTM(hidden_size=4, input_size=FEATURES, bidirectional=True)
    decoder = AttentionalRNNDecoder("lstm", "location", 9, 7, 2, enc_dim=8, input_size=5, channels=3, kernel_size=2)
    parts = encoder.eval(), nn.Embedding(UNITS, 5), decoder.eval(), Linear(n_neurons=UNITS, input_size=9)
    return SpeechBrainAttention(*parts, numbered_tokens(UNITS, "attention"))


@pytest.mark.parametrize("make", [torchaudio_rnnt, espnet_rnnt])
def test_transducers_keep_the_contract_and_are_searched(make):
    model = make()
    features, lengths = speech()
    check_transducer(model, features, lengths, labels=[3, 7])
    fusion = Fusion(None, TransducerInternalLM(model), FusionWeights(subtracted=0.2))
    with torch.no_grad():
        lists = TransducerSearch(model, fusion, TransducerOptions(beam=3))(*model.encode(features, lengths))
    assert len(lists) == 2 and all(len(nbest) > 0 for nbest in lists)


@torch.no_grad()
def test_torchaudio_gives_its_own_logits():
    model = torchaudio_rnnt()
    features, lengths = speech()
    labels = torch.tensor([[0, 3, 7], [0, 5, 2]])
    padded = nn.functional.pad(features, (0, 0, 0, 4))
    theirs = model.network(padded, lengths, labels, torch.tensor([3, 3]))[0]  # (B, T, U, V)
    f, _ = model.encode(features, lengths)
    g, state = model.start(2)
    for u in range(3):
        torch.testing.assert_close(model.join(f[:, 4], g), theirs[:, 4, u], rtol=0, atol=1e-5)
        if u < 2:
            g, state = model.predict(labels[:, u + 1], state)


@torch.no_grad()
def test_espnet_gives_its_own_logits_and_drops_the_bias_of_the_acoustic_projection():
    model = espnet_rnnt()
    features, lengths = speech()
    labels = torch.tensor([[0, 3, 7], [0, 5, 2]])
    states, _, _ = model.encoder(features, lengths)
    theirs = model.joint(states[:, :, None], model.decoder(labels)[:, None])  # (B, T, U, V)
    f, _ = model.encode(features, lengths)
    g, state = model.start(2)
    torch.testing.assert_close(model.join(f[:, 4], g), theirs[:, 4, 0], rtol=0, atol=1e-5)
    g, state = model.predict(labels[:, 1], state)
    torch.testing.assert_close(model.join(f[:, 4], g), theirs[:, 4, 1], rtol=0, atol=1e-5)
    with_bias = model.join(model.joint.lin_enc(torch.zeros(2, 8)), g)
    assert (model.join(None, g) - with_bias).abs().max() > 1e-3


@torch.no_grad()
def test_speechbrain_keeps_the_contract_and_gives_its_own_logits():
    model = speechbrain_aed()
    features, lengths = speech()
    check_attention_model(model, features, lengths, labels=[3, 7])
    check_internal_lm(SpeechBrainInternalLM(model), model, features, lengths, labels=[3, 7])
    labels = torch.tensor([[0, 3, 7], [0, 5, 2]])
    memory = model.encode(features, lengths)
    h, _ = model.decoder(model.embedding(labels), memory["states"], lengths / 24)
    theirs = model.output(h).log_softmax(-1)
    model.decoder.attn.reset()
    rows, state = model.start(memory)
    for u in range(3):
        torch.testing.assert_close(rows, theirs[:, u], rtol=0, atol=1e-5)
        if u < 2:
            rows, state = model.step(labels[:, u + 1], state, memory)


@torch.no_grad()
def test_speechbrain_is_searched_with_its_internal_lm():
    model = speechbrain_aed()
    fusion = Fusion(None, SpeechBrainInternalLM(model), FusionWeights(subtracted=0.2))
    search = AttentionSearch(model, fusion, AttentionOptions(beam=3, max_length=6, length_normalisation=1.0))
    lists = search(model.encode(*speech()))
    assert len(lists) == 2 and all(len(nbest) == 3 for nbest in lists)


def test_the_page_shows_the_code_that_is_tested():
    section = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 4
    source = Path(__file__).read_text(encoding="utf-8")
    for block in blocks:
        assert block.strip() in source
