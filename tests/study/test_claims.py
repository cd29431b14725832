"""The paper's claims, held against made-up results whose truth is known."""

from __future__ import annotations

from typing import Any

from ilme.data.utterances import Reference
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from ilme.study.claims import check_claims, check_health

WORDS = list("abcdefghijklmnopqrst")


def system(model: str, method: str, wrong: int, parameters: int) -> System:
    text = " ".join(["x"] * wrong + WORDS[wrong:])
    return System(model, method, FusionWeights(), {"u": text}, parameters=parameters)


def results(errors: dict[str, dict[str, int]]) -> Results:
    sizes = {"BS": 10, "SF": 20, "DR": 30, "ILME": 20}
    systems = [system(model, m, n, sizes[m]) for model, own in errors.items() for m, n in own.items()]
    return Results("made up", "none", {"u": Reference(" ".join(WORDS))}, tuple(systems))


def verdicts(found: list[Any]) -> dict[str, str]:
    return {claim.name: claim.holds for claim in found}


def test_results_like_the_papers_bear_it_out() -> None:
    across = results(
        {"rnnt": {"BS": 16, "SF": 14, "DR": 12, "ILME": 8}, "aed": {"BS": 16, "SF": 10, "DR": 9, "ILME": 8}}
    )
    within = results({"rnnt": {"BS": 10, "SF": 9, "DR": 8, "ILME": 7}, "aed": {"BS": 10, "SF": 9, "DR": 8, "ILME": 7}})
    curve = {"hours": [1, 2, 3, 4], "steps": [1, 2, 3, 4], "target": [9, 9, 9, 9]}
    curves = {
        "models": {"rnnt": {**curve, "source": [90, 60, 50, 55]}, "aed": {**curve, "source": [300, 200, 250, 400]}}
    }
    found = verdicts(check_claims({"cross": across, "intra": within}, curves))
    assert len(found) == 24 and set(found.values()) == {"yes"}


def test_results_that_differ_say_so() -> None:
    across = results({"rnnt": {"BS": 16, "SF": 8, "DR": 12, "ILME": 9}})
    curves = {"models": {"rnnt": {"hours": [1, 2, 3], "steps": [1, 2, 3], "source": [9, 8, 7], "target": [9, 9, 9]}}}
    found = check_claims({"cross": across}, curves)
    told = verdicts(found)
    assert told["rnnt, cross-domain: BS > SF > DR > ILME in WER"] == "no"
    assert told["rnnt, cross-domain: ILME makes fewer errors than SF"] == "no"
    assert told["rnnt, cross-domain: ILME makes fewer errors than BS"] == "yes"
    assert told["rnnt: the internal LM's perplexity on source text falls, then rises"] == "no"
    gain = next(c for c in found if c.name.endswith("fewer errors than BS"))
    assert gain.ours == "43.8 % fewer" and gain.paper == "29.1 % fewer"


def test_a_sign_that_chance_explains_is_no_verdict() -> None:
    """ILME is better for two speakers and worse for two: fewer errors in all, and the paired test is not convinced."""
    errors = {"BS": (9, 9, 9, 9), "SF": (6, 6, 6, 6), "DR": (6, 6, 6, 6), "ILME": (2, 8, 4, 8)}
    references = {f"u{k}": Reference(" ".join(WORDS), speaker=f"s{k}") for k in range(4)}
    systems = tuple(
        System("rnnt", m, FusionWeights(), {f"u{k}": " ".join(["x"] * n + WORDS[n:]) for k, n in enumerate(wrong)})
        for m, wrong in errors.items()
    )
    across = Results("made up", "none", references, systems)
    told = verdicts(check_claims({"cross": across}, {}))
    assert told["rnnt, cross-domain: ILME makes fewer errors than SF"] == "within chance"
    assert told["rnnt, cross-domain: ILME makes fewer errors than BS"] == "yes"
    assert told["rnnt, cross-domain: BS > SF > DR > ILME in WER"] == "within chance"


def test_health_looks_at_the_baselines() -> None:
    within = results({"rnnt": {"BS": 2}, "aed": {"BS": 4}})
    across = results({"aed": {"BS": 4}})
    told = verdicts(check_health({"intra": within, "cross": across}))
    assert list(told.values()) == ["yes", "no", "yes"]  # 10 %, 20 %, 0 deletions against 4
    assert check_health({}) == []
