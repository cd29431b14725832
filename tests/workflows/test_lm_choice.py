"""Which LM a domain gets: what is planned, what is kept of it, with which weights, and that a killed run goes on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ilme.errors import BadInputError, MissingExtraError
from ilme.lm.mixing import read_mixture, token_scores
from ilme.lm.mixture import MixtureScorer
from ilme.lm.ngram import NGramScorer
from ilme.recogniser.domain import load_domain
from ilme.recogniser.loading import load_model
from ilme.workflows import lm_choice, neural_lm
from ilme.workflows.adapt import AdaptOptions, adapt
from ilme.workflows.card import card_text
from ilme.workflows.domain_lm import DomainText, LMOptions
from ilme.workflows.lm_choice import KINDS, choose_lm, hold_out, plan, smallest_mixture, work_folder
from tests.checkpoints import write_checkpoints

OPTIONS = LMOptions(style="keep", order=2, prune=(0,))
LINES = ("the sea was calm", "the whale swam", "a calm sea", "the captain saw the whale", "we saw the sea")


@pytest.fixture(scope="module")
def rnnt(tmp_path_factory):
    return load_model(write_checkpoints(tmp_path_factory.mktemp("lm-choice"), ["rnnt"]) / "rnnt")


@pytest.fixture
def text(rnnt):
    lines = LINES * 12
    return DomainText(lines, [rnnt.tokenizer.encode(line) for line in lines], {"lines": 60})


class Host:
    """What `plan` looks at."""

    def __init__(self, device="cpu", size=50_000):
        self.device, self.tokens, self.kind = torch.device(device), range(size), "whisper"


def planned(lm="auto", tokens=10_000, minutes=10.0, style="restore", host=None):
    said = []
    shares = plan(lm, host or Host(), tokens, minutes, style, said.append)
    return {s.kind: s.minutes for s in shares}, " ".join(said)


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(lm_choice, "has_open_decoder", lambda host: True)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_without_minutes_auto_is_the_ngram(opened):
    assert planned(minutes=0) == ({"ngram": 0.0}, "")
    assert planned(minutes=0, tokens=10**9, host=Host("cuda"))[0] == {"ngram": 0.0}
    assert planned("ngram", minutes=60)[0] == {"ngram": 0.0}


def test_a_network_that_is_named_has_all_the_time_or_five_minutes(opened):
    assert planned("decoder", minutes=3)[0] == {"decoder": 3.0}
    assert planned("lstm", minutes=0, tokens=100)[0] == {"lstm": 5.0}


def test_little_text_gets_the_decoder_and_much_text_an_lstm_too(opened):
    assert planned(tokens=10_000, minutes=10)[0] == {"ngram": 0.0, "decoder": 10.0}
    assert planned(tokens=99_999, minutes=10**6)[0] == {"ngram": 0.0, "decoder": 10.0**6}
    assert planned(tokens=10**6, minutes=20, host=Host("cuda"))[0] == {"ngram": 0.0, "decoder": 10.0, "lstm": 10.0}
    assert planned(tokens=10**6, minutes=2)[0] == {"ngram": 0.0, "decoder": 2.0}, "a CPU reads too little in a minute"
    assert planned(tokens=10**6, minutes=200)[0] == {"ngram": 0.0, "decoder": 100.0, "lstm": 100.0}


def test_a_closed_decoder_or_folded_text_leaves_the_decoder_out(opened, monkeypatch):
    shares, said = planned(style="fold")
    assert shares == {"ngram": 0.0} and "fold" in said
    with pytest.raises(BadInputError, match="--lm decoder: a decoder cannot pass over case"):
        planned("decoder", style="fold")
    monkeypatch.setattr(lm_choice, "has_open_decoder", lambda host: False)
    shares, said = planned(tokens=10**6, minutes=200)
    assert shares == {"ngram": 0.0, "lstm": 200.0} and "not open, as in ONNX" in said
    with pytest.raises(BadInputError, match=r"not open, as in ONNX.*; take --lm ngram or --lm lstm"):
        planned("decoder")


def test_without_the_extra_auto_says_so_and_a_name_is_an_error(opened, monkeypatch):
    monkeypatch.setattr(lm_choice, "can_train", lambda: False)
    shares, said = planned()
    assert shares == {"ngram": 0.0} and "pip install 'ilme[train]'" in said
    for kind in ("lstm", "decoder"):
        with pytest.raises(MissingExtraError, match=r"ilme\[train\]"):
            planned(kind)


def test_mistakes_are_explained(opened):
    assert KINDS == ("auto", "ngram", "lstm", "decoder")
    with pytest.raises(BadInputError, match="lm is one of auto, ngram, lstm, decoder, not 'gpt'"):
        planned("gpt")
    with pytest.raises(BadInputError, match="held out, and the text has 1: name more text"):
        hold_out([[1, 2]], 100, 0)


# --- held-out lines and weights ---------------------------------------------------------------------------------------


def test_a_tenth_is_held_out_but_no_more_tokens_than_said():
    lines = [[i] * 4 for i in range(100)]
    train, held = hold_out(lines, 10**6, seed=0)
    assert len(held) == 10 and sorted(train + held) == lines
    assert hold_out(lines, 10**6, seed=0) == (train, held) != hold_out(lines, 10**6, seed=1)
    assert [len(hold_out(lines, tokens, 0)[1]) for tokens in (1, 5, 14, 15)] == [1, 1, 2, 3], "a line is 5 with its end"
    assert len(hold_out(lines[:2], 10**6, 0)[1]) == 1


def test_mixture_weights_are_those_of_exact_reasoning():
    """Two LMs, each sure of half of the tokens: w P + (1 − w) Q is largest at the share that each is right about."""
    p, q = math.log(0.8), math.log(0.2)
    a = torch.tensor([p] * 6 + [q] * 4, dtype=torch.float64)
    b = torch.tensor([q] * 6 + [p] * 4, dtype=torch.float64)
    weights, perplexity = smallest_mixture({"a": a, "b": b})
    # Σ: 6 log(0.2 + 0.6 w) + 4 log(0.8 − 0.6 w), whose derivative is 0 at 6 (0.8 − 0.6 w) = 4 (0.2 + 0.6 w)
    w = (6 * 0.8 - 4 * 0.2) / 6
    assert weights["a"] == pytest.approx(w, abs=1e-3) and weights["b"] == pytest.approx(1 - w, abs=1e-3)
    expected = math.exp(-(0.6 * math.log(0.2 + 0.6 * w) + 0.4 * math.log(0.8 - 0.6 * w)))
    assert perplexity == pytest.approx(expected, rel=1e-5)


def test_an_lm_that_adds_nothing_is_left_out():
    good = torch.full((50,), math.log(0.3), dtype=torch.float64)
    other = good - 0.001
    bad = good - 5
    assert smallest_mixture({"bad": bad, "good": good, "other": other})[0] == {"good": 1.0}
    assert smallest_mixture({"bad": bad})[0] == {"bad": 1.0}
    half = torch.cat([good[:25] + math.log(2), good[25:] - math.log(3)])  # 1/4 of it is worth 2 %
    kept, reached = smallest_mixture({"good": good, "half": half})
    assert kept["half"] == pytest.approx(0.25, abs=0.01) and reached == pytest.approx((1.25 * 5 / 6) ** -0.5 / 0.3)
    assert smallest_mixture({"good": good, "half": half}, worth=0.5)[0] == {"good": 1.0}


# --- training, and going on -------------------------------------------------------------------------------------------


def chosen(rnnt, text, folder, lm="auto", minutes=0.05, **options):
    said = []
    folder.mkdir(exist_ok=True)
    work = folder.parent / "work"
    return choose_lm(lm, rnnt, text, folder, work, minutes, replace(OPTIONS, **options), said.append), said


def test_auto_mixes_what_it_trained_and_says_how_well_each_predicts(rnnt, text, tmp_path):
    pytest.importorskip("lightning_fabric")
    found, said = chosen(rnnt, text, tmp_path / "domain")
    about = found.about
    assert set(about["perplexity"]) == {"ngram", "decoder", "chosen"}
    assert about["perplexity"]["chosen"] <= 1.01 * min(about["perplexity"].values())
    assert about["perplexity"]["decoder"] < about["perplexity of the decoder before"]
    assert about["training"]["decoder"]["steps"] > 0 and sum(about["weights"].values()) == pytest.approx(1, abs=1e-3)
    assert any("left" in line and line.startswith("decoder: step") for line in said), "progress with the time left"
    if found.name == "lm.json":
        assert isinstance(found.scorer, MixtureScorer)
        assert dict(zip(about["weights"], read_mixture(tmp_path / "domain" / "lm.json").weights, strict=True)) == {
            kind: pytest.approx(w, abs=1e-4) for kind, w in about["weights"].items()
        }


def test_without_minutes_the_ngram_of_all_lines_is_trained_and_nothing_held_out(rnnt, text, tmp_path):
    found, _ = chosen(rnnt, text, tmp_path / "domain", minutes=0.0)
    assert isinstance(found.scorer, NGramScorer) and found.name == "lm.safetensors"
    assert "perplexity" not in found.about and not (tmp_path / "work").exists()


@pytest.mark.parametrize("kind", ["lstm", "decoder"])
def test_a_network_alone_is_the_lm(rnnt, text, tmp_path, kind, monkeypatch):
    pytest.importorskip("lightning_fabric")
    monkeypatch.setitem(neural_lm.NEURAL, kind, replace(neural_lm.NEURAL[kind], epochs=3))
    found, _ = chosen(rnnt, text, tmp_path / "domain", lm=kind)
    assert found.name == "lm.safetensors" and found.about["weights"] == {kind: 1.0}
    assert found.scorer.kind == {"lstm": "lm", "decoder": "decoder"}[kind]
    _, held = hold_out(text.ids, 4000, 0)
    value = math.exp(-float(token_scores(found.scorer, held).mean()))
    assert found.about["perplexity"][kind] == pytest.approx(value, abs=1e-3)
    assert found.about["training"][kind]["perplexity"] == pytest.approx(value, rel=1e-3), "the best that was seen"


def test_a_run_that_was_killed_goes_on_and_ends_as_one_that_was_not(rnnt, text, tmp_path, monkeypatch):
    pytest.importorskip("lightning_fabric")
    monkeypatch.setitem(neural_lm.NEURAL, "decoder", replace(neural_lm.NEURAL["decoder"], epochs=3))
    (tmp_path / "whole").mkdir()
    whole, _ = chosen(rnnt, text, tmp_path / "whole" / "domain", lm="decoder", minutes=5)

    class Killed(BaseException):
        pass

    folder = tmp_path / "killed" / "domain"
    folder.mkdir(parents=True)
    work = folder.parent / "work"
    said: list[str] = []
    seen: list[str] = []

    def second(line: str) -> None:  # after the second evaluation there is a checkpoint of the first
        seen.append(line)
        if sum("held-out loss" in s for s in seen) == 2:
            raise Killed

    with pytest.raises(Killed):
        choose_lm("decoder", rnnt, text, folder, work, 5, OPTIONS, second)
    assert not list(folder.iterdir()) and list((work / "decoder" / "checkpoints").glob("step-*"))
    found = choose_lm("decoder", rnnt, text, folder, work, 5, OPTIONS, said.append)
    assert found.about["perplexity"] == whole.about["perplexity"]
    assert found.about["training"]["decoder"]["steps"] == whole.about["training"]["decoder"]["steps"]
    steps = [
        int(line.split("step ")[1].split("/")[0]) for line in said if line.startswith("decoder: step ") and "/" in line
    ]
    assert steps and min(steps) > 1, "the first steps are not made again"
    choose_lm("decoder", rnnt, text, folder, work, 5, OPTIONS, said.append)
    assert "trained before" in " ".join(said)
    other = DomainText(text.lines[:-1], text.ids[:-1], text.about)
    again: list[str] = []
    choose_lm("decoder", rnnt, other, folder, work, 5, OPTIONS, again.append)
    assert "trained before" not in " ".join(again), "another text is another run"


def test_adapt_writes_it_all_and_the_folder_is_whole(rnnt, tmp_path, monkeypatch):
    pytest.importorskip("lightning_fabric")
    monkeypatch.setitem(neural_lm.NEURAL, "decoder", replace(neural_lm.NEURAL["decoder"], epochs=2))
    (tmp_path / "text.txt").write_text("\n".join(LINES * 8))
    folder = write_checkpoints(tmp_path, ["rnnt"]) / "rnnt"
    options = AdaptOptions(order=2, prune=(0,), style="keep")
    out = tmp_path / "domain"
    adapted = adapt(folder, [str(tmp_path / "text.txt")], out, lm="decoder", minutes=1, options=options)
    card = json.loads((out / "domain.json").read_text())
    assert card["report"]["lm"]["perplexity"]["decoder"] > 1 and "lm.safetensors" in card["files"]
    assert f"| decoder | {card['report']['lm']['perplexity']['decoder']:.2f} | 1.0 |" in card_text(adapted, "domain")
    assert not work_folder(out).exists() and not list(tmp_path.glob(".domain*"))
    recogniser = load_domain(out)
    assert recogniser.lm.kind == "decoder"


def test_beside_a_gpu_the_ngrams_of_much_text_are_made_at_the_same_time(rnnt, text, monkeypatch):
    """What other processes make, and whatever fails there, comes out when it is asked for."""
    host, options = SimpleNamespace(tokens=rnnt.tokens, device=torch.device("cpu")), LMOptions(order=2, prune=(0,))
    alone = [scores_of(lm_choice._NGrams(host, (text.ids[:5], text.ids), options)[i][0], text) for i in (0, 1)]
    assert not torch.equal(*alone)
    host.device = SimpleNamespace(type="cuda")
    monkeypatch.setattr(lm_choice, "MUCH", 1)
    beside = lm_choice._NGrams(host, (text.ids[:5], text.ids), options)
    failing = lm_choice._NGrams(host, ([], []), options)
    lines = lm_choice._NGrams(host, ([], [[10**6]]), options)
    host.device = torch.device("cpu")
    assert beside._made is not None and failing._made is None
    assert all(torch.equal(scores_of(beside[i][0], text), alone[i]) for i in (0, 1))
    with pytest.raises(BadInputError):
        lines[1]


def scores_of(scorer, text):
    return token_scores(scorer, text.ids)
