"""ESPnet's transducer search (mAES), with or without its LM fusion, on the workload's networks."""

from __future__ import annotations

from importlib.metadata import version

import driver
from espnet2.asr.decoder.transducer_decoder import TransducerDecoder
from espnet2.asr.transducer.beam_search_transducer import BeamSearchTransducer
from espnet2.asr_transducer.joint_network import JointNetwork
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from torch import nn


def prediction(weights) -> TransducerDecoder:
    units, size = weights["predictor.embedding.weight"].shape
    decoder = TransducerDecoder(units, "lstm", 2, size).eval()
    decoder.embed.weight.copy_(weights["predictor.embedding.weight"])
    for name, value in driver.lstm_weights(weights, "predictor.rnn.lstm.").items():
        kind, _, layer = name.rpartition("_l")
        getattr(decoder.decoder[int(layer)], f"{kind}_l0").copy_(value)
    return decoder


def joint(weights) -> JointNetwork:
    units, size = weights["output.weight"].shape
    network = JointNetwork(units, size, size, size).eval()
    network.lin_enc = nn.Identity()  # the acoustic terms are given
    network.lin_dec = driver.folded_head(weights)
    network.lin_out.weight.copy_(weights["output.weight"])
    network.lin_out.bias.copy_(weights["output.bias"])
    return network


def language_model(weights) -> SequentialRNNLM:
    units, size = weights["embedding.weight"].shape
    lm = SequentialRNNLM(units, unit=size, nhid=weights["project.weight"].shape[1], nlayers=2).eval()
    lm.encoder.weight.copy_(weights["embedding.weight"])
    lm.rnn.load_state_dict(driver.lstm_weights(weights, "rnn.lstm."))
    lm.decoder = driver.language_output(weights)
    return lm


def main() -> None:
    chosen = driver.options(__doc__)
    weights = driver.tensors(chosen.workload, "rnnt")
    lm = language_model(driver.tensors(chosen.workload, "lm")) if chosen.lm_weight else None
    frames = driver.given(chosen.workload, "acoustics")[: chosen.utterances]
    search = BeamSearchTransducer(
        prediction(weights), joint(weights), chosen.beam, lm=lm, lm_weight=chosen.lm_weight, search_type="maes",
        score_norm=False, nstep=2, prefix_alpha=1, expansion_beta=2, expansion_gamma=2.3,
    )  # fmt: skip
    driver.report(f"ESPnet {version('espnet')} mAES", chosen, lambda: [search(f)[0].yseq[1:] for f in frames])


main()
