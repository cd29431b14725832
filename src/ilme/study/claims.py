"""What the paper claims, each held against the study's own numbers.

A claim about word errors is `yes` or `no` where the paired test over speakers says so (p < 0.05), else `within chance`:
the sign of a difference is no verdict. What is counted and not sampled, such as parameters, is `yes` or `no`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ilme.evaluation.metrics import Measurement
from ilme.evaluation.results import Results
from ilme.evaluation.significance import compare_gains

__all__ = ["Claim", "Verdict", "check_claims", "check_health"]

Verdict = Literal["yes", "no", "within chance"]
LEVEL = 0.05  # of p, below which a difference is more than chance

HEALTHY = 15.0  # per cent
RISE = 0.05  # of a perplexity, less is no rise


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        name: What is claimed.
        paper: The paper's own numbers.
        ours: This study's numbers.
        holds: Whether ours bear it out.
    """

    name: str
    paper: str
    ours: str
    holds: Verdict


def _verdict(difference: float, p: float) -> Verdict:
    """Of a difference that the claim says is positive."""
    if p >= LEVEL:
        return "within chance"
    return "yes" if difference > 0 else "no"


def _counted(holds: bool) -> Verdict:
    return "yes" if holds else "no"


def check_health(results: Mapping[str, Results]) -> list[Claim]:
    """Whether the baselines are good enough for a comparison: source-domain WER, and the AED's missing words.

    A rate whose 95 % interval holds the limit is within chance of it.
    """
    found: list[Claim] = []
    for setting, model in (("intra", "rnnt"), ("intra", "aed")):
        rate = _rate(results, setting, model, "BS")
        if rate is not None:
            name = f"{model}: test WER on the source domain, without any LM, below {HEALTHY:g} %"
            interval = results[setting].intervals[f"{model} BS"]
            near = interval.low <= HEALTHY <= interval.high
            found.append(Claim(name, "", f"{rate:.2f}", "within chance" if near else _counted(rate < HEALTHY)))
    across = results.get("cross")
    measured = across.measurements.get("aed BS") if across else None
    if measured is not None:
        total = measured.total
        others = total.insertions + total.substitutions
        name = "aed: no more deletions than insertions and substitutions, without any LM"
        found.append(Claim(name, "", f"{total.deletions} against {others}", _counted(total.deletions <= others)))
    return found


def check_claims(results: Mapping[str, Results], curves: Mapping[str, Any]) -> list[Claim]:
    """Every claim that these results can be held against."""
    claims: list[Claim] = []
    for setting in ("cross", "intra"):
        for model in ("rnnt", "aed"):
            claims += _order(results, setting, model)
    claims += [*_larger_across(results), *_larger_for_transducers(results), *_parameters(results), *_curves(curves)]
    return claims


# The paper's test WERs: LibriSpeech test-clean (its Table 1) and the in-house dictation set (its Table 3).
_PAPER = {
    ("cross", "rnnt"): {"BS": 8.97, "SF": 7.53, "DR": 6.74, "ILME": 6.36},
    ("cross", "aed"): {"BS": 8.61, "SF": 5.33, "DR": 5.09, "ILME": 4.87},
    ("intra", "rnnt"): {"BS": 16.16, "SF": 15.77, "DR": 15.64, "ILME": 14.70},
    ("intra", "aed"): {"BS": 14.08, "SF": 12.96, "DR": 12.89, "ILME": 12.36},
}


def _papers_gain(setting: str, model: str, against: str) -> float:
    """Relative reduction of test WER by ILME in the paper, in per cent."""
    rates = _PAPER[setting, model]
    return 100 * (rates[against] - rates["ILME"]) / rates[against]


def _rate(results: Mapping[str, Results], setting: str, model: str, method: str) -> float | None:
    found = results.get(setting)
    measured = found.measurements.get(f"{model} {method}") if found else None
    return measured.total.rate if measured else None


def _gain(results: Mapping[str, Results], setting: str, model: str, against: str) -> float | None:
    """By how many per cent ILME makes fewer errors, counted."""
    pair = _pair(results, setting, model, against)
    if pair is None or not pair[1].total.errors:
        return None
    return 100 * (pair[1].total.errors - pair[0].total.errors) / pair[1].total.errors


def _pair(
    results: Mapping[str, Results], setting: str, model: str, against: str
) -> tuple[Measurement, Measurement] | None:
    found = results[setting].measurements if setting in results else {}
    ilme, other = (found.get(f"{model} {m}") for m in ("ILME", against))
    return None if ilme is None or other is None else (ilme, other)


def _fewer(results: Mapping[str, Results], setting: str, model: str, method: str, against: str) -> Verdict:
    """Whether a method makes fewer errors than another, by the paired test."""
    found = results[setting].comparison(f"{model} {method}", f"{model} {against}")
    if found is not None:
        return _verdict(found.difference, found.p_bootstrap)
    turned = results[setting].comparison(f"{model} {against}", f"{model} {method}")
    return "within chance" if turned is None else _verdict(-turned.difference, turned.p_bootstrap)


def _order(results: Mapping[str, Results], setting: str, model: str) -> list[Claim]:
    rates = {m: _rate(results, setting, model, m) for m in ("BS", "SF", "DR", "ILME")}
    known = {m: r for m, r in rates.items() if r is not None}
    if len(known) < 4:
        return []
    steps = [_fewer(results, setting, model, b, a) for a, b in (("BS", "SF"), ("SF", "DR"), ("DR", "ILME"))]
    ordered: Verdict = "no" if "no" in steps else "within chance" if "within chance" in steps else "yes"
    claims = [
        Claim(
            f"{model}, {setting}-domain: BS > SF > DR > ILME in WER",
            ", ".join(f"{m} {r:.2f}" for m, r in _PAPER[setting, model].items()),
            ", ".join(f"{m} {r:.2f}" for m, r in known.items()),
            ordered,
        )
    ]
    for against in ("BS", "SF", "DR"):
        gain = _gain(results, setting, model, against)
        if gain is not None:
            claims.append(
                Claim(
                    f"{model}, {setting}-domain: ILME makes fewer errors than {against}",
                    f"{_papers_gain(setting, model, against):.1f} % fewer",
                    f"{gain:.1f} % fewer" if gain >= 0 else f"{-gain:.1f} % more",
                    _fewer(results, setting, model, "ILME", against),
                )
            )
    return claims


def _larger_across(results: Mapping[str, Results]) -> list[Claim]:
    claims = []
    for model in ("rnnt", "aed"):
        across, within = (_gain(results, setting, model, "BS") for setting in ("cross", "intra"))
        pairs = [_pair(results, setting, model, "BS") for setting in ("cross", "intra")]
        if across is None or within is None or pairs[0] is None or pairs[1] is None:
            continue
        paper = (_papers_gain(setting, model, "BS") for setting in ("cross", "intra"))
        claims.append(
            Claim(
                f"{model}: ILME gains more across domains than within one",
                "{:.1f} % against {:.1f} %".format(*paper),
                f"{across:.1f} % against {within:.1f} %",
                _verdict(*compare_gains(pairs[0], pairs[1])),
            )
        )
    return claims


def _larger_for_transducers(results: Mapping[str, Results]) -> list[Claim]:
    rnnt, aed = (_gain(results, "cross", model, "SF") for model in ("rnnt", "aed"))
    pairs = [_pair(results, "cross", model, "SF") for model in ("rnnt", "aed")]
    if rnnt is None or aed is None or pairs[0] is None or pairs[1] is None:
        return []
    return [
        Claim(
            "cross-domain: ILME gains more over SF for the RNN-T than for the AED",
            f"{_papers_gain('cross', 'rnnt', 'SF'):.1f} % against {_papers_gain('cross', 'aed', 'SF'):.1f} %",
            f"{rnnt:.1f} % against {aed:.1f} %",
            _verdict(*compare_gains(pairs[0], pairs[1])),
        )
    ]


def _parameters(results: Mapping[str, Results]) -> list[Claim]:
    found = results.get("cross")
    sizes = {s.name: s.parameters for s in found.systems} if found else {}
    claims = []
    for model, paper in (("rnnt", "134 M against 191 M"), ("aed", "155 M against 212 M")):
        ilme, ratio = sizes.get(f"{model} ILME"), sizes.get(f"{model} DR")
        if ilme and ratio:
            claims.append(
                Claim(
                    f"{model}: ILME runs with fewer parameters than DR",
                    paper,
                    f"{ilme / 1e6:.2f} M against {ratio / 1e6:.2f} M",
                    _counted(ilme < ratio),
                )
            )
    return claims


def _curves(curves: Mapping[str, Any]) -> list[Claim]:
    models = curves.get("models", {})
    claims = []
    for model, curve in models.items():
        points = curve["source"]
        if len(points) >= 3:
            lowest = min(range(len(points)), key=lambda i: points[i])
            claims.append(
                Claim(
                    f"{model}: the internal LM's perplexity on source text falls, then rises",
                    "falls, then rises",
                    f"{points[0]:.1f} at first, {points[lowest]:.1f} at {curve['hours'][lowest]:.0f} h, "
                    f"{points[-1]:.1f} at the end ({curve['hours'][-1]:.0f} h)",
                    _counted(lowest > 0 and points[-1] > (1 + RISE) * points[lowest]),
                )
            )
    if all(models.get(m, {}).get("source") for m in ("rnnt", "aed")):
        rnnt, aed = (models[m]["source"][-1] for m in ("rnnt", "aed"))
        claims.append(
            Claim(
                "the AED's internal LM is far weaker than the RNN-T's",
                "796.7 against 99.4",
                f"{aed:.1f} against {rnnt:.1f}",
                _counted(aed > 2 * rnnt),
            )
        )
    return claims
