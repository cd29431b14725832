"""Adaptation end to end: tiny random models, with and without dev speech, and the folder that is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ilme import models
from ilme.data.features import FrontendConfig
from ilme.data.utterances import Utterance, read_utterances
from ilme.errors import BadInputError
from ilme.evaluation.tuning_result import TuningResult
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.lm.case_folding import FoldedInternal, FoldedScorer
from ilme.lm.mixing import Mixture, write_mixture
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.tdt import TDT_DURATIONS
from ilme.recogniser.confidence import WordConfidence
from ilme.recogniser.domain import CARD, INTERNAL_LM, LM, Domain, load_domain
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.search.consensus import choose
from ilme.search.ctc import CTCSearch
from ilme.search.tdt import TDTSearch
from ilme.workflows.adapt import AdaptOptions, _lasting, adapt, safe_choice, style_for
from ilme.workflows.card import card_text
from ilme.workflows.domain_lm import MIXTURE
from tests.checkpoints import TEXTS, write_checkpoints, write_set

OPTIONS = AdaptOptions(order=2, prune=(0,), beam=3, max_decodes=2, calibration=2, normaliser="none")
AS_IT_IS = replace(OPTIONS, style="restore")  # the words of the tiny Whisper are w0 … w39


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """A handful of utterances decides; when dev is believed is tested with what adaptation chooses."""
    monkeypatch.setattr("ilme.workflows.with_dev.EVIDENT", 1.0)


# --- Whisper ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    """Every name is the same tiny Whisper, whose tokenizer knows no capitals."""
    pytest.importorskip("transformers")
    from tests.adapters.tiny import tiny_whisper

    model = tiny_whisper()
    monkeypatch.setattr("ilme.recogniser.domain.load_model", lambda *a, **k: model)
    monkeypatch.setattr("ilme.workflows.adapt.load_model", lambda *a, **k: model)
    monkeypatch.setattr("ilme.data.written_style.needs_recasing", lambda lines: False)
    return model


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "domain.txt"
    path.write_text("w5 w6 w7 w8\nw5 w6 w9\nw7 w8 w5 w6\nw5 w6 w7\n" * 5)
    return [str(path)]


def waves(count):
    from tests.adapters.tiny import waves as noises

    return noises(count)


def speech(texts):
    return [
        Utterance(str(i), text, wave, speaker=str(i % 2), seconds=len(wave) / 16_000)
        for i, (text, wave) in enumerate(zip(texts, waves(len(texts)), strict=True))
    ]


def test_with_dev_the_folder_is_no_worse_than_no_fusion(tiny, text, tmp_path):
    plain = Recogniser(tiny, options=default_options(tiny, 3))
    heard = [plain.nbest([w])[0][0].text for w in waves(3)]
    dev = speech(["w5 w6 w7 " + heard[0], heard[1], "w5 w6"])
    adapted = adapt("tiny", text, tmp_path / "out", dev=dev, options=AS_IT_IS, host=tiny)
    assert adapted.after.total.errors <= adapted.before.total.errors
    assert set(adapted.ranking) == {"removed", "zeroed", "silence", "mean-encoder", "mean-context", "learned"}
    card = card_text(adapted, "out")
    assert "words in" in card and "style restore" in card and "ilme transcribe --domain out " in card
    assert "| before |" in card and (tmp_path / "out" / "card.md").read_text() == card
    again = load_domain(tmp_path / "out")
    assert again.weights == adapted.domain.weights
    texts = {u.id: again.transcribe(u.audio).text for u in dev}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}


def test_the_folder_keeps_what_is_taken_of_a_list_and_how_sure_a_word_is(tiny, text, tmp_path, monkeypatch):
    monkeypatch.setattr("ilme.tuning.confidence.FEWEST", 0)
    monkeypatch.setattr(
        "ilme.tuning.confidence.nce", lambda p, right: float(p.mean())
    )  # whatever the fit does, it is kept
    monkeypatch.setattr("ilme.tuning.confidence.fit", lambda known, right: WordConfidence(30.0, 0.0, 0.0))
    dev = speech(["w5 w6 w7", "w5 w6"])
    options = replace(AS_IT_IS, decoding="consensus")
    adapted = adapt("tiny", text, tmp_path / "out", dev=dev, options=options, host=tiny)
    again = load_domain(tmp_path / "out")
    assert again.options.consensus == adapted.domain.report["decoding"]["temperature"] > 0
    assert again.confidence == WordConfidence(30.0, 0.0, 0.0)
    texts = {u.id: again.transcribe(u.audio).text for u in dev}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}
    told = adapted.domain.report["confidence"]
    assert told["used"] == "fitted to dev" and told["after"]["NCE"] == 1.0
    card = (tmp_path / "out" / "card.md").read_text()
    assert "is taken the consensus at temperature" in card and "1.000 fitted." in card
    again.options = replace(again.options, consensus=0.0)
    nbest = again.nbest([dev[0].audio])[0]
    temperature = adapted.domain.search.consensus
    again.options = replace(again.options, consensus=temperature)
    assert again.nbest([dev[0].audio])[0] == choose(nbest, temperature, again.length_exponent)


def test_the_folder_hears_twice_where_both_lists_have_a_say(tiny, text, tmp_path):
    """Whatever dev says: what is measured on it is what the folder transcribes, with the scores of the fusion."""
    dev = speech(["w5 w6 w7", "w5 w6", "w7 w8 w5"])
    options = replace(AS_IT_IS, decoding="joined")
    adapted = adapt("tiny", text, tmp_path / "out", dev=dev, options=options, host=tiny)
    assert adapted.domain.weights.lm and adapted.domain.report["decoding"]["taken"] == "joined"
    assert set(adapted.domain.report["decoding"]["joined errors"]) == {"0.25", "0.5", "1", "2", "4", "8"}
    again = load_domain(tmp_path / "out")
    assert again.options.joined and again.options.consensus == adapted.domain.report["decoding"]["temperature"]
    texts = {u.id: again.transcribe(u.audio).text for u in dev}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}
    assert "Of each n-best list, and one that is searched without LMs, is taken the consensus" in card_text(
        adapted, "out"
    )


def test_no_gain_means_zero_weights_and_a_reason(tiny, text, tmp_path):
    plain = Recogniser(tiny, options=default_options(tiny, 3))
    recognised = [plain.nbest([w])[0][0].text for w in waves(2)]
    adapted = adapt("tiny", text, tmp_path / "out", dev=speech(recognised), options=AS_IT_IS, host=tiny)
    assert adapted.before.total.errors == 0, "the references are what the model says"
    assert adapted.domain.weights == FusionWeights() and adapted.domain.internal == ""
    assert adapted.internal is None and not (tmp_path / "out" / INTERNAL_LM).exists()
    assert "weights are zero" in adapted.domain.report["note"]
    assert "No weights made fewer errors" in card_text(adapted, "out")
    assert load_domain(tmp_path / "out").transcribe(waves(1)[0]).text == recognised[0]


def test_without_dev_safe_weights_are_used_and_said_so(tiny, text, tmp_path):
    said = []
    adapted = adapt("tiny", text, tmp_path / "out", options=AS_IT_IS, host=tiny, say=said.append)
    assert (adapted.domain.internal, adapted.domain.weights) == safe_choice(tiny)
    assert any("has not been measured" in line for line in said)
    assert any("weights learned on audiobooks, telephone calls and voice commands" in line for line in said)
    assert "weights learned on audiobooks" in card_text(adapted, "out").lower()
    assert any("the plain model has its say" in line for line in said)
    loaded = load_domain(tmp_path / "out")
    assert loaded.options == replace(default_options(tiny, 3), joined=True, consensus=0.5)
    best = adapt("tiny", text, tmp_path / "best", options=replace(AS_IT_IS, decoding="best"), host=tiny)
    assert best.domain.search == default_options(tiny, 3) and "its say" not in best.domain.report["note"]
    transcript = loaded.transcribe(waves(1)[0])
    assert transcript.segments[0].scores.lm != 0 and transcript.segments[0].scores.subtracted != 0
    with pytest.raises(BadInputError, match="needs speech"):
        options = replace(AS_IT_IS, internal="mean-context")
        adapt("tiny", text, tmp_path / "new", options=options, host=tiny)
    assert not (tmp_path / "new").exists()


def test_the_safe_weights_were_measured_and_made_no_domain_worse(tiny):
    """They are those of the results file, in which every domain has fewer errors with them than without any LM."""
    file = Path(__file__).parents[2] / "docs" / "results" / "data" / "safe-weights.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    name, weights = safe_choice(tiny)
    assert weights.length == 0
    measured = found["in the search"][f"{name}:{weights.lm}:{weights.subtracted}"]
    assert set(measured) == set(found["domains"]) and len(measured) >= 3
    for domain, row in measured.items():
        assert row["share"] < 1 and row["WER"] < found["domains"][domain]["WER without LM"]


def test_a_folded_domain_transcribes_as_it_was_measured(tiny, text, tmp_path):
    """The folder says fold, so that what is loaded scores as what was tuned did."""
    dev = speech(["w5 w6 w7", "w5 w6", "w7 w8 w5"])
    options = replace(OPTIONS, style="fold", internal="zeroed")
    adapted = adapt("tiny", text, tmp_path / "out", dev=dev, options=options, host=tiny)
    again = load_domain(tmp_path / "out")
    assert Domain.read(tmp_path / "out").style == "fold" and adapted.domain.report["text"]["style"] == "fold"
    assert {u.id: again.transcribe(u.audio).text for u in dev} == {u.id: u.hypothesis for u in adapted.after.utterances}
    safe = adapt("tiny", text, tmp_path / "safe", options=options, host=tiny)
    assert safe.domain.weights == safe_choice(tiny)[1]
    loaded = load_domain(tmp_path / "safe")
    assert isinstance(loaded.lm, FoldedScorer) and isinstance(loaded.subtracted, FoldedInternal)
    with pytest.raises(BadInputError, match="style is one of auto, restore, fold, keep"):
        AdaptOptions(style="lower")


# --- our own networks -------------------------------------------------------------------------------------------------

DOMAIN_TEXT = "The sea was calm.\nA whale swam!\nThe captain saw 2 whales.\n" * 10
KINDS = pytest.mark.parametrize("kind", ["rnnt", "aed"])


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Checkpoints rnnt and aed, text of a domain, and dev speech in which each hears what is said with fusion alone."""
    folder = write_checkpoints(tmp_path_factory.mktemp("networks"))
    (folder / "domain.txt").write_text(DOMAIN_TEXT)
    for kind in ("rnnt", "aed"):
        adapt(folder / kind, [str(folder / "domain.txt")], folder / "first", options=OPTIONS)
        recogniser = load_domain(folder / "first")
        recogniser.weights = FusionWeights(0.6, 0.3, 0.5) if kind == "rnnt" else FusionWeights(0.05, 0.02)
        dev = write_set(folder, f"dev-{kind}", TEXTS[:6])
        rows = [json.loads(line) for line in dev.read_text().splitlines()]
        for row in rows:
            row["text"] = recogniser.transcribe(folder / row["audio_filepath"]).text
        dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@KINDS
@pytest.mark.slow
def test_our_networks_with_dev(kind, networks, tmp_path, monkeypatch):
    monkeypatch.setattr("ilme.workflows.with_dev.EXPECTED", 0.0)  # six utterances would hardly lead away from it
    out, dev = tmp_path / "out", networks / f"dev-{kind}.jsonl"
    model = networks / kind
    options = replace(OPTIONS, max_decodes=4)
    adapted = adapt(model, [str(networks / "domain.txt")], out, dev=dev, options=options)
    assert adapted.domain.kind == kind and Path(adapted.domain.model) == model.resolve()
    assert set(adapted.ranking) == set(internal_lm.available(load_model(model)))
    assert adapted.after.total.errors < adapted.before.total.errors and adapted.domain.weights.lm > 0
    assert TuningResult.load(out / "tuning.json").weights == adapted.tuning.weights
    again = load_domain(out)
    assert again.weights == adapted.domain.weights and again.options == default_options(load_model(model), 3)
    texts = {u.id: again.transcribe(u.samples(16_000)).text for u in read_utterances(dev)}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}
    internal = [INTERNAL_LM] if adapted.domain.weights.subtracted else []  # what is not subtracted is not kept
    assert sorted(p.name for p in out.iterdir()) == sorted([CARD, LM, *internal, "card.md", "tuning.json"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "changes"), [("rnnt", {"durations": TDT_DURATIONS}), ("aed", {"ctc": True})])
def test_a_tdt_and_a_ctc_layer(kind, changes, networks, tmp_path):
    """With dev speech, loaded again, and with what searches them."""
    tokenizer = load_checkpoint(networks / kind).tokenizer
    torch.manual_seed(1)
    model = models.build(kind, replace(models.preset(kind, "tiny"), **changes), tokenizer.tokens)
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    save_model(tmp_path / "model", model, tokenizer, FrontendConfig())
    head = {"head": "ctc"} if kind == "aed" else {}
    dev, text = networks / f"dev-{kind}.jsonl", [str(networks / "domain.txt")]
    adapted = adapt(tmp_path / "model", text, tmp_path / "out", dev=dev, options=OPTIONS, model_options=head)
    host = load_model(tmp_path / "model", **head)
    assert set(adapted.ranking) == set(internal_lm.available(host))
    again = load_domain(tmp_path / "out")
    search = again._frame_search(again.fusion(again.weights), again.options)
    assert type(search) is (CTCSearch if head else TDTSearch)
    texts = {u.id: again.transcribe(u.samples(16_000)).text for u in read_utterances(dev)}
    assert texts == {u.id: u.hypothesis for u in adapted.after.utterances}


@KINDS
def test_our_networks_without_dev(kind, networks, tmp_path):
    out = tmp_path / "out"
    adapted = adapt(networks / kind, [str(networks / "domain.txt")], out, options=OPTIONS)
    model = load_model(networks / kind)
    assert (adapted.domain.internal, adapted.domain.weights) == safe_choice(model)
    assert adapted.domain.weights.lm > 0 and adapted.domain.weights.subtracted > 0
    assert "has not been measured" in (out / "card.md").read_text()
    assert sorted(p.name for p in out.iterdir()) == sorted([CARD, LM, INTERNAL_LM, "card.md"])
    segment = load_domain(out).transcribe(networks / f"dev-{kind}0.wav").segments[0]
    assert segment.scores.lm != 0 and segment.scores.subtracted != 0
    averaged = replace(OPTIONS, internal="mean-encoder" if kind == "rnnt" else "mean-context")
    with pytest.raises(BadInputError, match=f"'{averaged.internal}' needs speech: give --dev, or choose removed"):
        adapt(networks / kind, [str(networks / "domain.txt")], tmp_path / "new", options=averaged)
    with pytest.raises(BadInputError, match="internal is auto or one of removed"):
        options = replace(OPTIONS, internal="imagined")
        adapt(networks / kind, [str(networks / "domain.txt")], tmp_path / "new", options=options)
    assert not (tmp_path / "new").exists()


def test_a_domain_folder_is_replaced_as_a_whole(networks, tmp_path):
    out, text = tmp_path / "out", [str(networks / "domain.txt")]
    adapt(networks / "rnnt", text, out, options=OPTIONS)
    (out / "tuning.json").write_text("left by an earlier run")
    before = (out / LM).read_bytes()
    again = adapt(networks / "rnnt", text, out, options=replace(OPTIONS, order=3))
    assert not (out / "tuning.json").exists() and (out / LM).read_bytes() != before
    assert Domain.read(out) == again.domain
    assert [p.name for p in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_what_fails_leaves_the_folder_as_it_was(networks, tmp_path, monkeypatch):
    out, text = tmp_path / "out", [str(networks / "domain.txt")]
    adapt(networks / "rnnt", text, out, options=OPTIONS)
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("ilme.workflows.adapt.save_internal_lm", fail)
    with pytest.raises(OSError, match="no space"):
        adapt(networks / "rnnt", text, out, options=replace(OPTIONS, order=3))
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_other_files_is_not_replaced(networks, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInputError, match=r"holds thesis\.tex, which no domain folder has"):
        adapt(networks / "rnnt", [str(networks / "domain.txt")], tmp_path, options=OPTIONS)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(BadInputError, match="is a file; name a folder"):
        adapt(networks / "rnnt", [str(networks / "domain.txt")], tmp_path / "thesis.tex", options=OPTIONS)


def test_an_lm_can_be_given_in_place_of_text(networks, tmp_path):
    adapted = adapt(networks / "rnnt", [], tmp_path / "out", lm=str(networks / "lm"), options=OPTIONS)
    assert adapted.domain.lm == LM and set(adapted.domain.files) == {LM, INTERNAL_LM}
    assert (tmp_path / "out" / LM).read_bytes() == (networks / "lm" / "model.safetensors").read_bytes()
    assert load_domain(tmp_path / "out").lm is not None
    write_mixture(tmp_path / "mix.json", Mixture((networks / "lm", tmp_path / "out" / LM), (0.5, 0.5)))
    mixed = adapt(networks / "rnnt", [], tmp_path / "mixed", lm=str(tmp_path / "mix.json"), options=OPTIONS)
    assert mixed.domain.lm == MIXTURE and load_domain(tmp_path / "mixed").lm is not None
    trained = adapt(networks / "rnnt", [str(networks / "domain.txt")], tmp_path / "trained", options=OPTIONS)
    elsewhere = tmp_path / "elsewhere.safetensors"
    (tmp_path / "trained" / trained.domain.lm).rename(elsewhere)
    file = adapt(networks / "rnnt", [], tmp_path / "file", lm=str(elsewhere), options=OPTIONS)
    elsewhere.unlink()
    assert set(file.domain.files) == {LM, INTERNAL_LM} and load_domain(tmp_path / "file").lm is not None
    for options, told in (
        ({"lm": str(networks / "lm"), "minutes": 3.0}, "minutes are for an LM that is trained"),
        ({"minutes": -1.0}, "minutes must be a number of at least 0, got -1"),
        ({"minutes": float("inf")}, "minutes must be a number of at least 0, got inf"),
    ):
        with pytest.raises(BadInputError, match=told):
            adapt(networks / "rnnt", ["text.txt"], tmp_path / "none", **options)
    with pytest.raises(BadInputError, match="needs text of the domain, or an LM"):
        adapt(networks / "rnnt", [], tmp_path / "none")


def test_text_is_written_as_the_model_writes(networks, tmp_path):
    """Words as they are said: small letters for one tokenizer, capitals for another, no marks and no digits."""
    write_checkpoints(tmp_path, ["rnnt"], [t.upper() for t in TEXTS])
    loud, quiet = load_model(tmp_path / "rnnt"), load_model(networks / "rnnt")
    assert style_for(loud, "auto") == style_for(quiet, "auto") == "spoken"
    said = {}
    for name, model in (("loud", loud), ("quiet", quiet)):
        seen = []
        encode = model.tokenizer.encode
        model.tokenizer.encode = lambda line, encode=encode, seen=seen: (seen.append(line), encode(line))[1]
        options = replace(OPTIONS, overlap=0)
        adapted = adapt(name, [str(networks / "domain.txt")], tmp_path / name, options=options, host=model)
        assert adapted.domain.style == "spoken"
        said[name] = " ".join(seen)
    assert said["loud"].isupper() and said["loud"].lower() == said["quiet"]
    assert {"CALM", "TWO"} <= set(said["loud"].split()) and not set(said["loud"]) & set(".!2")


def test_dev_is_kept_out_of_the_text_and_can_be_limited(networks, tmp_path):
    spoken = "one two three four five six seven eight nine"
    (tmp_path / "text.txt").write_text(f"{spoken}\nthe sea was calm\n" * 5)
    dev = [replace(u, text=spoken) for u in read_utterances(networks / "dev-rnnt.jsonl")]
    options = replace(OPTIONS, internal="removed", max_decodes=1)
    adapted = adapt(
        networks / "rnnt", [str(tmp_path / "text.txt")], tmp_path / "out", dev=dev, limit=2, options=options
    )
    assert adapted.domain.report["text"]["left out for overlap with dev"] == 5
    assert adapted.domain.report["dev utterances"] == 2


def test_texts_of_a_test_set_are_kept_out_too(networks, tmp_path):
    spoken = "one two three four five six seven eight nine"
    (tmp_path / "text.txt").write_text(f"{spoken}\nthe sea was calm\n" * 9)
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": spoken}) + "\n")
    options = replace(OPTIONS, exclude=(str(tmp_path / "test.jsonl"),))
    adapted = adapt(networks / "rnnt", [str(tmp_path / "text.txt")], tmp_path / "out", options=options)
    assert adapted.domain.report["text"]["left out for overlap with dev"] == 9
    (tmp_path / "broken.jsonl").write_text("{\n" + json.dumps({"text": spoken}))
    with pytest.raises(BadInputError, match=r"options.exclude: .*broken.jsonl, line 1: not JSON"):
        adapt(
            networks / "rnnt",
            [str(tmp_path / "text.txt")],
            tmp_path / "out",
            options=replace(OPTIONS, exclude=(str(tmp_path / "broken.jsonl"),)),
        )


def test_the_card_names_a_model_as_it_was_given(tmp_path, monkeypatch):
    """In full, but not where a link points to: the tokenizer of a .pt stands beside the link."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1f2e").write_text("weights")
    (tmp_path / "tiny.en.pt").symlink_to(tmp_path / "blobs" / "1f2e")
    monkeypatch.chdir(tmp_path)
    assert _lasting("tiny.en.pt") == _lasting(tmp_path / "tiny.en.pt") == str(tmp_path / "tiny.en.pt")
    assert _lasting("openai/whisper-tiny.en") == "openai/whisper-tiny.en"
