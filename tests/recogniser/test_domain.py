"""Domain folders: every kind of model, cards of both versions, and folders that are damaged, moved or of others."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ilme.errors import BadInputError, CheckpointError
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.ilm.files import save_internal_lm
from ilme.lm.case_folding import FoldedInternal, FoldedScorer
from ilme.recogniser.domain import CARD, INTERNAL_LM, LM, Domain, load_domain
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import TRANSFORMER, default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.tensors import read_header
from ilme.search.attention import AttentionOptions
from ilme.search.rescoring import sequence_scores
from ilme.search.transducer import TransducerOptions
from ilme.workflows.domain_lm import LMOptions, train_domain_lm
from tests.checkpoints import noise, write_checkpoints

WEIGHTS = FusionWeights(lm=0.3, subtracted=0.2, length=0.1)
WORDS = {"whisper": "w5 w6 w7 w8\nw5 w6 w9\nw7 w8 w5 w6\n" * 5}
KINDS = ("rnnt", "aed", "onnx-transducer", "whisper")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return write_checkpoints(tmp_path_factory.mktemp("domains"))


@pytest.fixture(scope="module")
def model_of(checkpoints):
    """A function from a kind to the name of a model and the model itself."""
    made = {}

    def make(kind):
        if kind not in made:
            made[kind] = _model(kind, checkpoints)
        return made[kind]

    return make


def _model(kind, checkpoints):
    if kind == "whisper":
        pytest.importorskip("transformers")
        from tests.adapters.tiny import tiny_whisper

        return "tiny-whisper", tiny_whisper()
    if kind == "onnx-transducer":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
        from ilme.workflows.export import export_onnx

        export_onnx(load_model(checkpoints / "rnnt"), checkpoints / "onnx")
        return str(checkpoints / "onnx"), load_model(checkpoints / "onnx")
    return str(checkpoints / kind), load_model(checkpoints / kind)


@pytest.fixture(autouse=True)
def whisper_by_name(monkeypatch, model_of):
    """A Whisper folder needs a tokenizer of 51,864 units; the tiny one is found by its name alone."""

    def load(name, *arguments, **options):
        return model_of("whisper")[1] if name == "tiny-whisper" else load_model(name, *arguments, **options)

    monkeypatch.setattr("ilme.recogniser.domain.load_model", load)


def write_domain(folder, kind, model_of, **changes) -> tuple[Domain, Recogniser]:
    """A domain folder of version 2, and the recogniser that it describes."""
    name, model = model_of(kind)
    folder.mkdir()
    text = folder.parent / "text.txt"
    text.write_text(WORDS.get(kind, "the sea was calm\nthe whale swam\n" * 5))
    options = LMOptions(style="keep", order=2, prune=(0,))
    train_domain_lm(model, [str(text)], [], folder / LM, options, lambda line: None)
    internal = internal_lm(model)
    save_internal_lm(folder / INTERNAL_LM, internal)
    card = Domain(
        name,
        kind=model.kind,
        weights=WEIGHTS,
        internal=internal.how,
        search=default_options(model, 3),
        report={"note": "made for a test"},
    )
    domain = replace(card, **changes).save(folder)
    lm = load_lm(folder / LM, model)
    return domain, Recogniser(model, lm=lm, subtracted=internal, weights=WEIGHTS, options=domain.search)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_loaded(kind, model_of, tmp_path):
    domain, expected = write_domain(tmp_path / "domain", kind, model_of)
    assert Domain.read(tmp_path / "domain") == domain
    assert set(domain.files) == {LM, INTERNAL_LM} and all(len(digest) == 64 for digest in domain.files.values())
    found = load_domain(tmp_path / "domain")
    assert (found.weights, found.options, found.model.kind) == (WEIGHTS, expected.options, expected.model.kind)
    sequence = found.tokenizer.encode("w5 w6" if kind == "whisper" else "the sea")
    for ours, theirs in ((found.lm, expected.lm), (found.subtracted, expected.subtracted)):
        scores = [sequence_scores(scorer, [sequence], finish=False) for scorer in (ours, theirs)]
        torch.testing.assert_close(*scores, atol=1e-4, rtol=0)
    audio = noise(0.9, 3)
    (theirs,), (ours,) = expected.nbest([audio]), found.nbest([audio])
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-3)
    assert found.transcribe(audio).text == theirs[0].text


def test_every_search_option_comes_back(tmp_path):
    for options in (
        AttentionOptions(beam=5, nbest=2, length_normalisation=0.7, stop_margin=3.0, certain_end=2.0, look_back=9),
        TransducerOptions(beam=5, nbest=2, max_symbols=4, blank_gate=0.1, max_repeats=3, labels_per_second=9.0),
        AttentionOptions(),
        TransducerOptions(),
        None,
    ):
        Domain("m", search=options).save(tmp_path)
        assert Domain.read(tmp_path).search == options
        json.loads((tmp_path / CARD).read_text(), parse_constant=pytest.fail)  # no Infinity, which JSON does not have


def test_without_a_search_the_family_is_searched_as_it_is_now(model_of, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of, search=None)
    assert load_domain(tmp_path / "domain").options == default_options(model_of("rnnt")[1])


def test_zero_weights_need_no_scorers(model_of, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of, weights=FusionWeights())
    (tmp_path / "domain" / CARD).write_text(
        json.dumps(json.loads((tmp_path / "domain" / CARD).read_text()) | {"files": {}})
    )
    (tmp_path / "domain" / LM).unlink()
    (tmp_path / "domain" / INTERNAL_LM).unlink()
    found = load_domain(tmp_path / "domain")
    assert found.lm is None and found.subtracted is None


def test_a_folded_domain_has_folded_scorers(model_of, tmp_path):
    write_domain(tmp_path / "domain", "whisper", model_of, style="fold")
    found = load_domain(tmp_path / "domain")
    assert isinstance(found.lm, FoldedScorer) and isinstance(found.subtracted, FoldedInternal)


def test_the_folder_and_its_model_may_move_together(model_of, checkpoints, tmp_path, monkeypatch):
    """A path that is not there from here is looked for from the folder; --model says where else it is."""
    write_domain(tmp_path / "domain", "rnnt", model_of, model="../networks/rnnt")
    shutil.copytree(checkpoints / "rnnt", tmp_path / "networks" / "rnnt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    audio = noise(0.8)
    text = load_domain("../domain").transcribe(audio).text
    shutil.move(tmp_path / "networks", tmp_path / "models")
    with pytest.raises(CheckpointError, match="networks/rnnt"):
        load_domain("../domain")
    assert load_domain("../domain", model="../models/rnnt").transcribe(audio).text == text


# --- version 1 --------------------------------------------------------------------------------------------------------


def write_version_1(folder: Path, model, **changes) -> None:
    """As version 0.1 wrote it: no kind, no hashes, `enough`, and an internal LM whose file says nothing of itself."""
    folder.mkdir()
    (folder.parent / "text.txt").write_text(WORDS["whisper"])
    options = LMOptions(style="keep", order=2, prune=(0,))
    train_domain_lm(model, [str(folder.parent / "text.txt")], [], folder / LM, options, lambda line: None)
    internal = internal_lm(model, "zeroed")
    tensors = internal.tensors or {"hidden": torch.zeros(1, 16)}
    save_file({k: v.detach().to("cpu", torch.float32).contiguous() for k, v in tensors.items()}, folder / INTERNAL_LM)
    card = {
        "format": "ilme-domain",
        "version": 1,
        "model": "tiny-whisper",
        "model_options": {},
        "weights": asdict(WEIGHTS),
        "internal": "zeroed",
        "search": {
            "beam": 8, "nbest": 0, "lm_eos": True, "max_length": 448, "certain_end": 3.0, "stop_margin": 10.0,
            "length_normalisation": 1.0, "max_repeats": 4, "repeat_span": 8, "repeat_ignores": [], "look_back": 0,
            "enough": 8,
        },
        "lm": LM,
        "style": "restore",
        "report": {"seed": 0},
    }  # fmt: skip
    (folder / CARD).write_text(json.dumps(card | changes))


def test_a_folder_of_version_1_is_read(model_of, tmp_path):
    _, model = model_of("whisper")
    write_version_1(tmp_path / "domain", model)
    assert not read_header(tmp_path / "domain" / INTERNAL_LM), "its internal LM has no header"
    found = load_domain(tmp_path / "domain")
    as_it_was = replace(TRANSFORMER, end_margin=float("inf"))
    assert found.options == as_it_was, "`enough` is now stop_after, and the audio's length always counted"
    internal = internal_lm(model, "zeroed")
    lm = load_lm(tmp_path / "domain" / LM, model)
    expected = Recogniser(model, lm=lm, subtracted=internal, weights=WEIGHTS, options=TRANSFORMER)
    audio = noise(0.9, 3)
    assert found.transcribe(audio) == expected.transcribe(audio)


def test_a_folder_from_before_styles_is_read(model_of, tmp_path):
    write_version_1(tmp_path / "domain", model_of("whisper")[1])
    card = json.loads((tmp_path / "domain" / CARD).read_text())
    del card["style"]
    (tmp_path / "domain" / CARD).write_text(json.dumps(card))
    assert Domain.read(tmp_path / "domain").style == "restore"
    assert load_domain(tmp_path / "domain").lm is not None


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_damaged_and_foreign_folders(tmp_path):
    with pytest.raises(CheckpointError, match="no domain folder"):
        load_domain(tmp_path)
    for text, message in [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (json.dumps({"format": "ilme-domain", "version": 99}), "version 99"),
        (json.dumps({"format": "other", "version": 2}), "format 'other'"),
        (json.dumps({"format": "ilme-domain", "version": 2, "model": "m"}), "has no 'search'"),
        (json.dumps({"format": "ilme-domain", "version": 1, "search": 5}), "is damaged"),
    ]:
        (tmp_path / CARD).write_text(text)
        with pytest.raises(CheckpointError, match=message):
            load_domain(tmp_path)
    (tmp_path / CARD).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_domain(tmp_path)


@pytest.mark.parametrize("change", [{"weights": {"lm": -1.0}}, {"weights": 3}, {"search": {"beam": 0}}, {"lm": None}])
def test_a_card_with_impossible_values_is_damaged(change, model_of, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of)
    card = tmp_path / "domain" / CARD
    card.write_text(json.dumps(json.loads(card.read_text()) | change))
    with pytest.raises(CheckpointError, match=r"domain\.json"):
        load_domain(tmp_path / "domain")


@pytest.mark.parametrize("name", [LM, INTERNAL_LM])
def test_a_file_that_was_changed_or_lost_is_named(name, model_of, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of)
    file = tmp_path / "domain" / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{name} is not the file that domain.json was written for"):
        load_domain(tmp_path / "domain")
    file.unlink()
    with pytest.raises(CheckpointError, match=f"lacks {name}; copy the whole folder"):
        load_domain(tmp_path / "domain")
    file.write_bytes(whole)
    load_domain(tmp_path / "domain")


def test_files_outside_the_folder_are_refused(model_of, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of)
    card = tmp_path / "domain" / CARD
    data = json.loads(card.read_text())
    shutil.copy(tmp_path / "domain" / LM, tmp_path / "other.safetensors")
    digest = data["files"][LM]
    for change in (
        {"lm": "../other.safetensors", "files": {}},
        {"files": {"../other.safetensors": digest}},
        {"files": {str(tmp_path / "other.safetensors"): digest}},
    ):
        card.write_text(json.dumps(data | change))
        with pytest.raises(CheckpointError, match="which is not inside the folder"):
            load_domain(tmp_path / "domain")
    (tmp_path / "other.safetensors").rename(tmp_path / "linked.safetensors")
    (tmp_path / "domain" / LM).unlink()
    (tmp_path / "domain" / LM).symlink_to(tmp_path / "linked.safetensors")
    card.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="which is not inside the folder"):
        load_domain(tmp_path / "domain")


def test_a_model_of_another_kind_is_refused(model_of, checkpoints, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of)
    with pytest.raises(CheckpointError, match="for a model of kind 'rnnt', and this is a 'aed'"):
        load_domain(tmp_path / "domain", model=str(checkpoints / "aed"))


def test_another_training_of_the_model_is_refused(model_of, tmp_path):
    """The internal LM knows whose it is."""
    write_domain(tmp_path / "domain", "rnnt", model_of)
    other = write_checkpoints(tmp_path, ["lm", "rnnt"]) / "rnnt"  # other draws of the same seed
    assert not np.allclose(
        *(m.output.weight.detach().numpy() for m in (load_model(other), model_of("rnnt")[1])), atol=1e-3
    )
    with pytest.raises(CheckpointError, match="another training"):
        load_domain(tmp_path / "domain", model=str(other))


def test_time_stamps_are_whispers(model_of, tmp_path):
    write_domain(tmp_path / "domain", "rnnt", model_of)
    with pytest.raises(BadInputError, match="takes no timestamps"):
        load_domain(tmp_path / "domain", timestamps=True)
