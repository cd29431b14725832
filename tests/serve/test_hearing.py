"""What is sent of a turn while it lasts: nothing that the next hearing takes back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ilme.serve.hearing import Agreement, Turn
from ilme.serve.tasks import NOTHING, About, Hear


def test_only_what_two_hearings_agree_on_is_sent() -> None:
    agreement = Agreement()
    heard = [
        "the",
        "the whale",
        "the whale swam",
        "the sail swam off",
        "the whale swam off to",
        "the whale swam off to",
    ]
    assert [agreement.add(text) for text in heard] == ["", "the", " whale", "", "", " swam off to"]


def test_letters_are_sent_as_they_come() -> None:
    agreement = Agreement(letters=True)
    heard = ["the wh", "the whale", "the whale s", "the sail swam", "the whale swam", "the whale swam"]
    assert [agreement.add(text) for text in heard] == ["", "the wh", "ale", "", "", " swam"]


@pytest.mark.parametrize("letters", [False, True])
def test_what_turned_out_otherwise_does_not_stop_the_words(letters: bool) -> None:
    agreement = Agreement(letters)
    heard = ["a sail", "a sail", "the whale swam", "the whale swam off", "the whale swam off"]
    assert [agreement.add(text) for text in heard] == ["", "a sail", "", " swam", " off"]
    assert agreement.rest("the whale swam off at last") == ""


def test_the_rest_is_what_was_not_sent() -> None:
    for letters, text, rest in (
        (False, "the whale swam", " swam"),
        (False, "the whales swam", ""),
        (True, "the whales swam", "s swam"),
        (True, "a whale", ""),
        (False, "the whale", ""),
    ):
        agreement = Agreement(letters)
        agreement.add("the whale")
        assert agreement.add("the whale") == "the whale"
        assert agreement.rest(text) == rest, text
    assert Agreement().rest("all of it") == "all of it"


def test_a_turn_that_begins_is_heard_in_two_parts_that_can_agree() -> None:
    tasks: list[Hear] = []

    async def hear(task: Hear) -> str:
        tasks.append(task)
        return ["the", "the whale", "the whale sw"][len(tasks) - 1]

    service: Any = SimpleNamespace(jobs={"sea": None}, run_stream=hear)
    about = About("rnnt", 16_000, 30.0, "en", 0.0, 0.0, 0.0, streams=True)
    turn = Turn(service, "sea", about, NOTHING, "item", 0, np.arange(6400, dtype=np.float32), spoken=True)

    async def heard() -> list[str]:
        first = await turn.partial()
        turn.add(np.arange(6400, 8000, dtype=np.float32))
        return [first, await turn.partial()]

    assert asyncio.run(heard()) == ["the", " whale"]
    assert [(task.start, len(task.samples), task.last) for task in tasks] == [
        (0, 5120, False),
        (5120, 1280, False),
        (6400, 1600, False),
    ]
    np.testing.assert_array_equal(np.concatenate([task.samples for task in tasks]), np.arange(8000))
