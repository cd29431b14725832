"""Sentence templates: every draw is one the template allows."""

from __future__ import annotations

import pytest

from ilme.data.templates import Grammar
from ilme.errors import BadInputError

GRAMMAR = Grammar(
    ("x",),
    {"the": "(the|my)", "loop": "a <loop>", "turn": "(turn|switch) [all]"},
    {"room": ("hall", "guest (room|bath)"), "n": ("1", "2")},
)


def draws(template, grammar=GRAMMAR):
    return {grammar.sample(template, seed) for seed in range(300)}


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("on", {"on"}),
        ("(on|off)", {"on", "off"}),
        ("lamp[s] (on|off)", {"lamp on", "lamps on", "lamp off", "lamps off"}),
        ("[<the>] lamp", {"lamp", "the lamp", "my lamp"}),
        ("in {room:area}", {"in hall", "in guest room", "in guest bath"}),
        ("set (a;b)", {"set a b", "set b a"}),
        ("[a[b]|c]", {"", "a", "ab", "c"}),
        (
            "<turn> {n}( |-)minute",
            {f"{t}{a} {n}{s}minute" for t in ("turn", "switch") for a in ("", " all") for n in "12" for s in " -"},
        ),
    ],
)
def test_draws(template, want):
    assert draws(template) == want


def test_the_same_seed_draws_the_same():
    assert GRAMMAR.sample("(a|b|c|d) {room}", 5) == GRAMMAR.sample("(a|b|c|d) {room}", 5)


@pytest.mark.parametrize("template", ["(a", "[a", "a)", "(a]", "<none>", "{none}", "<loop>"])
def test_broken_templates_are_errors(template):
    with pytest.raises(BadInputError):
        GRAMMAR.sample(template, 0)


def test_from_intents():
    data = {
        "intents": {"On": {"data": [{"sentences": ["turn on {area}", "turn on {area}", "dim to {level}"]}]}},
        "lists": {"level": {"range": {"from": 0, "to": 20, "step": 10}}, "area": {"values": [{"in": "hall"}, "attic"]}},
        "expansion_rules": {},
    }
    grammar = Grammar.from_intents(data)
    assert grammar.templates == ("turn on {area}", "dim to {level}")
    assert draws("turn on {area}", grammar) == {"turn on hall", "turn on attic"}
    assert draws("dim to {level}", grammar) == {"dim to 0", "dim to 10", "dim to 20"}
    with pytest.raises(BadInputError, match="not intents"):
        Grammar.from_intents({"intents": []})
