"""Stages: run once, passed over when done, run again when what they depend on has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ilme.errors import BadInputError
from ilme.study.runner import MARK, Stage, Study, UnfinishedError


def make_stages(log: list[str], size: int = 1, colour: str = "red") -> list[Stage]:
    """first → second → third; `size` is an input of the first, `colour` of the third."""

    def work(name: str, text: str) -> Any:
        def run(study: Study) -> dict[str, Any]:
            log.append(name)
            (study.folder(name) / "out.txt").write_text(text)
            return {"length": len(text)}

        return run

    return [
        Stage("first", work("first", "x" * size), inputs={"size": size}),
        Stage("second", work("second", "y"), ("first",), resumes=True),
        Stage("third", work("third", colour), ("first",), {"colour": colour}),
    ]


def test_a_done_stage_is_passed_over(tmp_path: Path) -> None:
    log: list[str] = []
    assert Study(make_stages(log), tmp_path).run() == ["first", "second", "third"]
    assert Study(make_stages(log), tmp_path).run() == []
    assert log == ["first", "second", "third"]
    assert Study(make_stages(log), tmp_path).facts("first") == {"length": 1}


def test_a_change_runs_what_depends_on_it_and_nothing_else(tmp_path: Path) -> None:
    Study(make_stages([]), tmp_path).run()
    assert Study(make_stages([], colour="blue"), tmp_path).run() == ["third"]
    assert Study(make_stages([], size=2, colour="blue"), tmp_path).run() == ["first", "second", "third"]


def test_only_brings_what_it_needs_and_until_stops(tmp_path: Path) -> None:
    study = Study(make_stages([]), tmp_path)
    assert study.run(only=["third"]) == ["first", "third"]
    assert study.run(until="second") == ["second"]
    with pytest.raises(BadInputError, match=r"no stage 'fourth'.*first, second, third"):
        study.run(only=["fourth"])


def test_a_done_stage_does_not_call_for_what_it_needed(tmp_path: Path) -> None:
    """As after unpacking elsewhere: large outputs of early stages are missing, and nothing that is left needs them."""
    study = Study(make_stages([]), tmp_path)
    assert study.select() == ["first", "second", "third"] and study.select(["second"]) == ["first", "second"]
    study.run()
    shutil.rmtree(tmp_path / "first")
    assert study.select() == ["second", "third"] and study.run() == []
    shutil.rmtree(tmp_path / "third")
    assert study.run() == ["first", "third"]


def test_what_a_killed_stage_left_is_kept_only_where_it_can_go_on(tmp_path: Path) -> None:
    study = Study(make_stages([]), tmp_path)
    study.run()
    for name in ("second", "third"):
        (tmp_path / name / MARK).unlink()  # killed before its end
        (tmp_path / name / "half").write_text("done")
    Study(make_stages([]), tmp_path).run()
    assert (tmp_path / "second" / "half").exists()  # resumes, with the same key
    assert not (tmp_path / "third" / "half").exists()
    (tmp_path / "second" / MARK).unlink()
    Study(make_stages([], size=3), tmp_path).run()
    assert not (tmp_path / "second" / "half").exists()  # what it left was made from other inputs


def test_of_a_linked_stage_that_is_out_of_date_only_the_link_goes(tmp_path: Path) -> None:
    Study(make_stages([]), tmp_path / "here").run()
    (tmp_path / "there").mkdir()
    for name in ("first", "second", "third"):
        (tmp_path / "there" / name).symlink_to(tmp_path / "here" / name)
    assert Study(make_stages([], colour="blue"), tmp_path / "there").run() == ["third"]
    assert (tmp_path / "here" / "third" / "out.txt").read_text() == "red"
    assert (tmp_path / "there" / "third" / "out.txt").read_text() == "blue"


def test_time_that_is_up_ends_the_run_in_good_order(tmp_path: Path) -> None:
    def slow(study: Study) -> None:
        raise UnfinishedError("slow stopped at step 3 of 9: start again to go on")

    study = Study([Stage("slow", slow), Stage("after", lambda s: None, ("slow",))], tmp_path)
    assert study.run(minutes=1) == []
    assert not study.done("slow") and not study.done("after")
    assert study.minutes_left() > 0


def test_a_damaged_mark_is_named(tmp_path: Path) -> None:
    study = Study(make_stages([]), tmp_path)
    study.run(until="first")
    (tmp_path / "first" / MARK).write_text("{")
    with pytest.raises(BadInputError, match=r"done\.json is damaged"):
        study.done("first")


def test_stages_must_follow_what_they_need() -> None:
    with pytest.raises(BadInputError, match="stage b needs a"):
        Study([Stage("b", lambda s: None, ("a",)), Stage("a", lambda s: None)], Path("nowhere"))


def test_marks_hold_key_and_facts(tmp_path: Path) -> None:
    study = Study(make_stages([]), tmp_path)
    study.run(until="first")
    mark = json.loads((tmp_path / "first" / MARK).read_text())
    assert mark["key"] == study.keys["first"] and mark["facts"] == {"length": 1} and mark["seconds"] >= 0


def test_two_runs_in_one_folder_take_different_stages_and_never_the_same(tmp_path: Path) -> None:
    log: list[str] = []

    def meanwhile(name: str) -> Any:
        """Another run of the same study comes while the stage is made."""

        def run(study: Study) -> None:
            with pytest.raises(BadInputError, match=f"another run is writing .*{name}; wait"):
                Study(make_stages(log), tmp_path).run(only=[name])
            Study(make_stages(log), tmp_path).run(only=["third"])

        return run

    stages = [make_stages([])[0], Stage("second", meanwhile("second"), ("first",), resumes=True), make_stages(log)[2]]
    assert Study(stages, tmp_path).run() == ["first", "second"]
    assert log == ["third"]


def test_the_lock_of_a_run_that_was_killed_when_its_stage_was_done_goes(tmp_path: Path) -> None:
    Study(make_stages([]), tmp_path).run()
    (tmp_path / ".third.stage.lock").touch()
    assert Study(make_stages([]), tmp_path).run() == [] and not list(tmp_path.glob(".*.lock"))
