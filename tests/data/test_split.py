"""Splits: whole groups, nothing lost, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilme.data.importing import import_corpus
from ilme.data.manifests import cuts_path, open_cuts
from ilme.data.split import assign_groups, shared_speakers, split_cuts
from ilme.errors import BadInputError
from tests.data.speech_corpora import utterances, write_nemo

SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    write_nemo(folder / "corpus", utterances(40, speakers=10, seconds=(1.0, 1.4)), extension="wav")
    import_corpus(str(folder / "corpus"), folder / "out")
    return folder / "out"


@pytest.mark.parametrize("by", ["speaker", "call"])
def test_no_group_is_in_two_parts_and_nothing_is_lost(corpus: Path, tmp_path: Path, by: str) -> None:
    parts = split_cuts(corpus, tmp_path, SHARES, by)
    groups: dict[str, set[str]] = {}
    ids: list[str] = []
    for part in parts:
        for cut in open_cuts(part.file):
            ids.append(cut.id)
            supervision = cut.supervisions[0]
            value = supervision.speaker if by == "speaker" else supervision.custom["call"]
            groups.setdefault(value, set()).add(part.name)
    assert sorted(ids) == sorted(cut.id for cut in open_cuts(corpus))
    assert all(len(names) == 1 for names in groups.values())
    assert sum(part.groups for part in parts) == len(groups)
    total = sum(part.seconds for part in parts)
    for part in parts:
        assert part.seconds / total == pytest.approx(SHARES[part.name], abs=0.08)
    if by == "speaker":
        assert shared_speakers([Path(part.file) for part in parts]) == []


def test_a_split_repeats_with_its_seed(corpus: Path, tmp_path: Path) -> None:
    def files(name: str, seed: int) -> list[bytes]:
        parts = split_cuts(corpus, tmp_path / name, SHARES, seed=seed)
        return [Path(part.file).read_bytes() for part in parts]

    assert files("a", 0) == files("b", 0)
    assert files("a", 0) != files("c", 1)


@given(
    seconds=st.lists(st.floats(0.1, 1e5), min_size=3, max_size=40),
    shares=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=3),
    seed=st.integers(0, 99),
)
def test_every_group_has_a_part_and_every_part_a_group(seconds: list[float], shares: list[float], seed: int) -> None:
    groups = {f"g{i}": s for i, s in enumerate(seconds)}
    parts = {f"p{i}": s for i, s in enumerate(shares)}
    part_of = assign_groups(groups, parts, seed)
    assert part_of.keys() == groups.keys()
    assert set(part_of.values()) == parts.keys()


def test_bad_splits_are_named(corpus: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"by": "id"}, "by utterance"),
        ({"by": "chapter"}, "no chapter; its fields are call, split"),
        ({"shares": {"train": 1.0}}, "at least two parts"),
        ({"shares": {"train": 1.0, "dev": -0.1}}, "share above 0"),
        ({"shares": {f"p{i}": 1.0 for i in range(11)}}, "10 groups cannot fill 11 parts"),
    ):
        with pytest.raises(BadInputError, match=message):
            split_cuts(corpus, tmp_path, **{"shares": SHARES, **options})  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="no cuts"):
        cuts_path(tmp_path / "absent")
