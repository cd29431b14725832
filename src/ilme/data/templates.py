"""Sentence templates of voice assistants, and sentences drawn from them.

A template is `(a|b)` one of several, `[a]` with or without, `(a;b)` in any order, `<rule>` another template, `{list}` a
value of a list: a word, or a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ilme.errors import BadInputError

__all__ = ["Grammar"]

# What a user fills in: rooms, devices, items. The grammar leaves these lists open.
_OPEN_LISTS: dict[str, tuple[str, ...]] = {
    "area": ("kitchen", "living room", "bedroom", "bathroom", "office", "garage", "hallway", "dining room", "attic"),
    "floor": ("ground floor", "first floor", "second floor", "upstairs", "downstairs", "top floor"),
    "name": (
        "ceiling lamp",
        "front door",
        "coffee machine",
        "heater",
        "left blind",
        "television",
        "robot vacuum",
        "oven",
    ),
    "message": ("dinner is ready", "we are leaving in five minutes", "the film starts now", "please come downstairs"),
    "search_query": ("some jazz", "the morning news", "songs for running", "a piano concerto", "quiet rain sounds"),
    "zone": ("home", "work", "school", "the gym", "the station"),
    "timer_name": ("pasta", "laundry", "tea", "homework", "pizza", "bread", "nap"),
    "timer_command": ("turn off the lights", "open the garage door", "close the blinds", "start the vacuum"),
    "shopping_list_item": ("milk", "brown bread", "two lemons", "olive oil", "coffee beans", "apples", "batteries"),
    "todo_list_item": ("call the dentist", "water the plants", "pay the rent", "fix the bicycle", "book a table"),
}
_TOKEN = re.compile(r"[()\[\]|;]|<[^>]*>|\{[^}]*\}|[^()\[\]|;<{]+")
_DEEPEST = 40


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Group:
    """Alternatives, each a sequence; `optional` adds the empty one, `shuffled` takes all in any order."""

    branches: tuple[tuple[Any, ...], ...]
    optional: bool = False
    shuffled: bool = False


@dataclass(frozen=True)
class Grammar:
    """Templates with the rules and lists they refer to.

    Attributes:
        templates: The sentences' templates.
        rules: Templates by name.
        lists: Values by name; each value is a template.
    """

    templates: tuple[str, ...]
    rules: dict[str, str]
    lists: dict[str, tuple[str, ...]]
    _parsed: dict[str, _Group] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_intents(cls, data: dict[str, Any]) -> Grammar:
        """From the JSON of Home Assistant's intents."""
        try:
            templates = [s for intent in data["intents"].values() for d in intent["data"] for s in d["sentences"]]
            lists = dict(_OPEN_LISTS)
            for name, entry in data["lists"].items():
                if "values" in entry:
                    lists[name] = tuple(str(v["in"] if isinstance(v, dict) else v) for v in entry["values"])
                elif "range" in entry:
                    low, high, step = (
                        int(entry["range"].get(k, d)) for k, d in (("from", 0), ("to", 100), ("step", 1))
                    )
                    lists[name] = tuple(str(i) for i in range(low, high + 1, step))
            return cls(tuple(dict.fromkeys(templates)), dict(data["expansion_rules"]), lists)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInputError(f"these are not intents as known here: {error!r}") from error

    def sample(self, template: str, seed: int) -> str:
        """One sentence, the same for the same seed; empty where the template allows it."""
        text = self._draw(self._parse(template), Random(seed), 0)
        return " ".join(text.split())

    def _parse(self, template: str) -> _Group:
        known = self._parsed.get(template)
        if known is None:
            tokens = _TOKEN.findall(template)
            known, rest = _parse_group(tokens, 0, "")
            if rest != len(tokens):
                raise BadInputError(f"the template {template!r} closes a bracket it never opened")
            self._parsed[template] = known
        return known

    def _draw(self, group: _Group, random: Random, depth: int) -> str:
        if depth > _DEEPEST:
            raise BadInputError("the rules of these templates refer to themselves without end")
        if group.optional and random.random() < 0.5:
            return ""
        if group.shuffled:
            order = random.sample(range(len(group.branches)), len(group.branches))
            return " ".join(self._sequence(group.branches[i], random, depth) for i in order)
        return self._sequence(group.branches[random.randrange(len(group.branches))], random, depth)

    def _sequence(self, parts: tuple[Any, ...], random: Random, depth: int) -> str:
        return "".join(self._part(part, random, depth + 1) for part in parts)

    def _part(self, part: _Text | _Group, random: Random, depth: int) -> str:
        if isinstance(part, _Group):
            return self._draw(part, random, depth)
        if part.text.startswith("<"):
            rule = part.text[1:-1]
            if rule not in self.rules:
                raise BadInputError(f"the templates use the rule <{rule}>, which they do not define")
            return self._draw(self._parse(self.rules[rule]), random, depth)
        if part.text.startswith("{"):
            name = part.text[1:-1].partition(":")[0]
            values = self.lists.get(name)
            if not values:
                raise BadInputError(f"the templates use the list {{{name}}}, which they do not define")
            return self._draw(self._parse(values[random.randrange(len(values))]), random, depth)
        return part.text


def _parse_group(tokens: list[str], at: int, closer: str) -> tuple[_Group, int]:
    """Parses up to the closing bracket; returns the group and where it stopped."""
    branches: list[list[Any]] = [[]]
    shuffled = False
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token in ("(", "["):
            group, at = _parse_group(tokens, at, ")" if token == "(" else "]")
            branches[-1].append(group)
        elif token in (")", "]"):
            if token != closer:
                return _Group(()), at - 1
            break
        elif token in ("|", ";"):
            shuffled |= token == ";"
            branches.append([])
        else:
            branches[-1].append(_Text(token))
    else:
        if closer:
            raise BadInputError(f"a template misses a closing {closer!r}")
    return _Group(tuple(tuple(b) for b in branches), closer == "]", shuffled), at
