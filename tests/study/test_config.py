"""Study plans: the files of the repository, single changes, faults by name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ilme import models
from ilme.errors import BadInputError
from ilme.models.checkpoint import save_model
from ilme.search.attention import AttentionOptions
from ilme.study.config import read_config
from ilme.study.decoding import decoding_stages, search_options
from ilme.study.networks import network_stages
from ilme.study.stages import build_study
from ilme.study.training import fresh_network, network_config, options_of, plan_inputs
from ilme.testing import numbered_tokens
from ilme.train.options import LoopOptions, OptimiserOptions

PLANS = Path(__file__).parents[2] / "configs" / "study"


@pytest.mark.parametrize("name", ["tiny", "small", "paper"])
def test_the_repositorys_plans_are_whole(name: str) -> None:
    config = read_config(PLANS / f"{name}.yaml")
    assert config.name == name
    for plan in (config.rnnt, config.aed, config.lm, config.source_lm):
        assert options_of(OptimiserOptions, plan.optimiser, "optimiser").rate > 0
        options_of(LoopOptions, plan.loop, "loop")
        assert "steps" in plan.loop or plan.loop["minutes"] > 0
    assert config.speech.train_snr == (0.0, 15.0) and config.speech.test_snr == (2.0, 8.0)


def test_the_papers_plan_has_the_papers_sizes() -> None:
    import torch

    config = read_config(PLANS / "paper.yaml")
    sizes = {}
    for kind in ("rnnt", "aed", "lm"):
        tokens = numbered_tokens(config.vocabulary, "transducer" if kind == "rnnt" else "attention")
        with torch.device("meta"):
            network = models.build(kind, network_config(kind, getattr(config, kind)), tokens)
        parts = [p for name, p in network.named_parameters() if not name.startswith("ctc.")]
        sizes[kind] = round(sum(p.numel() for p in parts) / 1e6)
    assert sizes == {"rnnt": 76, "aed": 97, "lm": 58}


def test_the_longer_plan_differs_in_the_aeds_training_alone() -> None:
    first, longer = (read_config(PLANS / f"{name}.yaml") for name in ("paper", "paper-longer"))
    assert replace(longer, name=first.name, aed=first.aed) == first
    assert longer.aed.starts_from == "out/study/paper-second/aed/model.safetensors"
    assert longer.aed.network == first.aed.network and longer.aed.preset == first.aed.preset


@pytest.mark.parametrize("name", ["spoken", "read-aloud"])
def test_plans_of_speech_alone_speak_naturally(name: str) -> None:
    config = read_config(PLANS / f"{name}.yaml")
    assert config.name == name and config.speech.natural == 1.0
    assert config.text.source.also == (("dictionary",) if name == "read-aloud" else ())


@pytest.mark.parametrize("name", ["real-base", "real-scratch"])
def test_plans_on_recordings_share_their_texts(name: str) -> None:
    first, other = read_config(PLANS / "real.yaml"), read_config(PLANS / f"{name}.yaml")
    assert replace(other.recordings, whisper="", synthetic="") == replace(first.recordings, whisper="", synthetic="")
    assert (other.text, other.lm, other.source_lm) == (first.text, first.lm, first.source_lm)
    assert options_of(OptimiserOptions, other.rnnt.optimiser, "optimiser").thaw == (250 if name == "real-base" else 0)


def test_the_plan_with_a_dictionary_trains_the_same_networks_on_more_words() -> None:
    first, words = (read_config(PLANS / f"{name}.yaml") for name in ("real-base", "real-words"))
    assert words.recordings == replace(first.recordings, synthetic="read-aloud")
    assert (words.rnnt.network, words.aed.network) == (first.rnnt.network, first.aed.network)
    assert (words.text, words.source_lm, words.decoding) == (first.text, first.source_lm, first.decoding)


def test_the_papers_sizes_with_more_speech_are_the_same_networks_on_the_same_sets() -> None:
    first, more = (read_config(PLANS / f"{name}.yaml") for name in ("paper", "paper-more"))
    rnnt, aed = (network_config(kind, getattr(first, kind)) for kind in ("rnnt", "aed"))
    assert network_config("rnnt", more.rnnt) == replace(rnnt, dropout=0.2)
    halved = replace(aed.encoder, time_reduction=2, reduce_by="mean", dropout=0.2)  # no parameter more
    assert network_config("aed", more.aed) == replace(aed, encoder=halved, pace=4, dropout=0.2)
    assert more.text == replace(first.text, train_longest=50) and more.speech == replace(first.speech, hours=160)
    assert (more.lm, more.source_lm, more.vocabulary) == (first.lm, first.source_lm, first.vocabulary)
    assert more.decoding == replace(first.decoding, aed_look_back=16)


def test_a_plan_has_what_differs_from_the_one_it_extends(tmp_path: Path) -> None:
    (tmp_path / "second.yaml").write_text(
        "extends: tiny.yaml\nspeech: {hours: 0.1}\nrnnt: {loop: {steps: 7, ilm_every: null}}\n"
        "decoding: {methods: [BS]}\n"
    )
    (tmp_path / "tiny.yaml").write_text((PLANS / "tiny.yaml").read_text())
    first, second = read_config(tmp_path / "tiny.yaml"), read_config(tmp_path / "second.yaml")
    assert second.speech == replace(first.speech, hours=0.1) and second.decoding.methods == ("BS",)
    assert second.rnnt.loop == {k: v for k, v in first.rnnt.loop.items() if k != "ilm_every"} | {"steps": 7}
    assert second.aed == first.aed
    for name, text, message in (
        ("third", "extends: nowhere.yaml", r"no study .*nowhere.yaml, which .*third.yaml extends"),
        ("round", "extends: about.yaml", "leads back"),
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / "about.yaml").write_text("extends: round.yaml")
        with pytest.raises(BadInputError, match=message):
            read_config(tmp_path / f"{name}.yaml")


def test_single_fields_can_be_changed() -> None:
    config = read_config(PLANS / "tiny.yaml", {"speech.hours": 2, "rnnt.network.dropout": 0.3})
    assert config.speech.hours == 2 and config.rnnt.network["dropout"] == 0.3
    assert config.rnnt.network["encoder"]["projection"] == 48


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no field 'speeed'"):
        read_config(PLANS / "tiny.yaml", {"speeed": 1})
    with pytest.raises(BadInputError, match=r"decoding\.methods has 'XX'"):
        read_config(PLANS / "tiny.yaml", {"decoding.methods": ["BS", "XX"]})
    with pytest.raises(BadInputError, match="needs BS"):
        read_config(PLANS / "tiny.yaml", {"decoding.methods": ["SF"]})
    with pytest.raises(BadInputError, match="there is no study"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(BadInputError, match="is not a study"):
        read_config(tmp_path / "list.yaml")
    with pytest.raises(BadInputError, match=r"loop\.step is no option"):
        options_of(LoopOptions, {"step": 1}, "loop")


def test_a_network_comes_after_the_one_whose_encoder_it_takes() -> None:
    names = [s.name for s in network_stages(read_config(PLANS / "tiny.yaml"))]
    assert names == ["aed", "rnnt"]
    apart = network_stages(read_config(PLANS / "tiny.yaml", {"rnnt.encoder_from": ""}))
    assert [s.name for s in apart] == ["rnnt", "aed"] and not any({"rnnt", "aed"} & set(s.needs) for s in apart)
    for change in ({"rnnt.encoder_from": "rnnt"}, {"aed.encoder_from": "rnnt"}):
        with pytest.raises(BadInputError, match="the other"):
            network_stages(read_config(PLANS / "tiny.yaml", change))


def test_a_network_can_start_from_a_model_of_an_earlier_run(tmp_path: Path) -> None:
    config = read_config(PLANS / "tiny.yaml")
    tokens = numbered_tokens(40, "transducer")
    earlier = fresh_network("rnnt", config.rnnt, tokens, seed=7)
    save_model(tmp_path / "a.safetensors", earlier)
    plan = replace(config.rnnt, starts_from=str(tmp_path / "a.safetensors"))
    started = fresh_network("rnnt", plan, tokens, seed=1).state_dict()
    fresh = fresh_network("rnnt", config.rnnt, tokens, seed=1).state_dict()
    for name in earlier.state_dict():
        taken = fresh if name.startswith("ctc.") else earlier.state_dict()
        assert torch.equal(started[name], taken[name]), name
    attention = fresh_network(
        "aed", replace(config.aed, starts_from=plan.starts_from), numbered_tokens(40, "attention"), seed=1
    ).state_dict()
    for name, value in attention.items():
        if name.startswith("encoder."):
            assert torch.equal(value, earlier.state_dict()[name]), name
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    moved = replace(plan, starts_from=str(tmp_path / "b.safetensors"))
    assert plan_inputs(moved) == plan_inputs(plan) != plan_inputs(config.rnnt)
    assert "starts_from" not in plan_inputs(config.rnnt)
    with pytest.raises(BadInputError, match="not there"):
        plan_inputs(replace(plan, starts_from="nowhere.safetensors"))


def test_a_network_does_not_start_from_what_its_own_training_would_remove(tmp_path: Path) -> None:
    model = tmp_path / "one" / "rnnt" / "model.safetensors"
    model.parent.mkdir(parents=True)
    config = read_config(PLANS / "tiny.yaml")
    save_model(model, fresh_network("rnnt", config.rnnt, numbered_tokens(40, "transducer"), seed=7))
    going_on = replace(config, rnnt=replace(config.rnnt, starts_from=str(model)))
    with pytest.raises(BadInputError, match="give another --out"):
        build_study(going_on, tmp_path / "one")
    assert model.is_file()
    build_study(going_on, tmp_path / "two")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "rnnt").symlink_to(model.parent)  # of a linked stage the link alone would go
    build_study(going_on, tmp_path / "two")


def test_guards_of_the_aeds_search_are_part_of_a_key_only_where_they_are_used() -> None:
    plain = read_config(PLANS / "tiny.yaml")
    guarded = read_config(PLANS / "tiny.yaml", {"decoding.aed_look_back": 16, "decoding.aed_enough": 50})
    keys = [{stage.name: stage.inputs["plan"] for stage in decoding_stages(config)} for config in (plain, guarded)]
    assert not any("look_back" in name or "enough" in name for plan in keys[0].values() for name in plan)
    assert all(plan["aed_look_back"] == 16 and plan["aed_enough"] == 50 for plan in keys[1].values())
    attention = search_options(guarded.decoding, "aed")
    assert isinstance(attention, AttentionOptions)
    assert (attention.look_back, attention.stop_after) == (16, attention.nbest)
