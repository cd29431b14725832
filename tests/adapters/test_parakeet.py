"""Parakeet: upstream's features and logits on tiny random weights, the contract, and folders that are refused."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

from ilme.errors import CheckpointError
from ilme.recogniser.loading import load_model
from ilme.testing import check_transducer
from ilme.testing.contract import check_ctc
from tests.adapters import frame_models
from tests.adapters.tiny import waves


@pytest.fixture(scope="module")
def ctc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parakeet")
    return folder, frame_models.parakeet_ctc(folder)


@pytest.fixture(scope="module", params=["RNNT", "TDT"])
def transducer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, frame_models.parakeet_transducer(folder, request.param)


def upstream_inputs(kind, audio, **settings):
    module = frame_models.upstream_extractor(kind)
    extractor = next(v for k, v in vars(module).items() if k.endswith("FeatureExtractor") and k.lower()[:4] == kind[:4])
    return extractor(**frame_models.NEMO, **settings)(audio, sampling_rate=16_000, return_tensors="pt")


def test_features_are_upstreams(ctc):
    model, audio = load_model(ctc[0]), waves(3)
    theirs = upstream_inputs("parakeet", audio)
    features, lengths = model.features(audio)
    assert lengths.tolist() == theirs["attention_mask"].sum(1).tolist()
    torch.testing.assert_close(features, theirs["input_features"][:, : features.shape[1]], rtol=0, atol=1e-4)
    assert not theirs["input_features"][:, features.shape[1] :].any()


@torch.no_grad()
def test_ctc_logits_are_upstreams(ctc):
    folder, upstream = ctc
    model, audio = load_model(folder), waves(3)
    theirs = upstream_inputs("parakeet", audio)
    expected = upstream(**theirs).logits
    h, lengths = model.encode(*model.features(audio))
    found = model.emit(h)
    for b, frames in enumerate(lengths.tolist()):
        torch.testing.assert_close(found[b, :frames], expected[b, :frames], rtol=0, atol=1e-4)
    assert model.kind == "parakeet_ctc" and model.tokens.blank == len(model.tokens) - 1
    torch.testing.assert_close(model.emit(None), upstream.ctc_head.bias)


def test_ctc_keeps_the_contract(ctc):
    model = load_model(ctc[0])
    check_ctc(model, *model.features(waves(3)))


@torch.no_grad()
def check_joint(model, upstream, inputs, audio, **more):
    """Every logit of the joint network, (t, u) by (t, u), against upstream's in one pass."""
    labels = torch.tensor([[5, 9, 9, 3], [7, 2, 30, 4], [5, 5, 8, 11]])
    start = torch.full((3, 1), model.tokens.blank)
    expected = upstream(**inputs, decoder_input_ids=torch.cat([start, labels], 1), **more).logits  # (B, T, U + 1, ·)
    f, lengths = model.encode(*model.features(audio))
    g, state = model.start(3)
    V = len(model.tokens)
    for u in range(5):
        for t in range(int(lengths.min())):
            torch.testing.assert_close(model.join(f[:, t], g), expected[:, t, u, :V], rtol=0, atol=1e-4)
            if hasattr(model, "durations"):
                units, durations = model.join_durations(f[:, t], g)
                torch.testing.assert_close(units, expected[:, t, u, :V], rtol=0, atol=1e-4)
                torch.testing.assert_close(durations, expected[:, t, u, V:], rtol=0, atol=1e-4)
        if u < 4:
            g, state = model.predict(labels[:, u], state)
    some = torch.tensor([3, 0, 7])
    torch.testing.assert_close(model.join_some(f[:, 0], g, some), model.join(f[:, 0], g)[:, some])


def test_joint_logits_are_upstreams(transducer):
    folder, upstream = transducer
    audio = waves(3)
    model = load_model(folder)
    check_joint(model, upstream, upstream_inputs("parakeet", audio), audio)
    assert getattr(model, "durations", None) == ((0, 1, 2, 3, 4) if model.kind == "parakeet_tdt" else None)


def test_transducers_keep_the_contract(transducer):
    model = load_model(transducer[0])
    check_transducer(model, *model.features(waves(3)), labels=[5, 9])


def test_durations_are_checked(transducer, tmp_path):
    import shutil

    if type(transducer[1]).__name__ != "ParakeetForTDT":
        pytest.skip("an RNN-T has no durations")
    shutil.copytree(transducer[0], tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"durations": [0, 1, 2, -3, 4]}))
    with pytest.raises(CheckpointError, match=r"durations of config\.json"):
        load_model(tmp_path / "model")


def test_equal_neighbours_are_two_labels_and_not_one(ctc):
    tokenizer = load_model(ctc[0]).tokenizer
    assert tokenizer.decode(tokenizer.encode("hello book")) == "hello book"


def test_folders_that_are_refused(ctc, tmp_path):
    import shutil

    def copied(name, **changes):
        folder = tmp_path / name
        shutil.copytree(ctc[0], folder)
        for file, change in changes.items():
            path = folder / f"{file}.json"
            data = json.loads(path.read_text())
            change(data)
            path.write_text(json.dumps(data))
        return folder

    with pytest.raises(CheckpointError, match=r"pad_token_id of config\.json must be one of the"):
        load_model(copied("blank", config=lambda c: c.update(pad_token_id=999)))
    with pytest.raises(CheckpointError, match=r"reads 16 mel bands, and preprocessor_config\.json makes 20"):
        load_model(copied("bands", preprocessor_config=lambda c: c.update(feature_size=20)))
    with pytest.raises(CheckpointError, match=r"hop_length must be a whole number from 1"):
        load_model(copied("hop", preprocessor_config=lambda c: c.update(hop_length=0)))
    with pytest.raises(CheckpointError, match=r"num_hidden_layers=10000000, but the weights beside it"):
        load_model(copied("layers", config=lambda c: c["encoder_config"].update(num_hidden_layers=10**7)))
    folder = copied("extractor")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"the feature extractor of .* cannot be loaded"):
        load_model(folder)
    folder = copied("weights")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError):
        load_model(folder)
