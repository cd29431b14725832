"""Batches in memory, text and audio on the device: complete, resumable, and as loud as asked."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ilme.data.features import Frontend
from ilme.data.tokenfile import TokenFile, write_tokens
from ilme.errors import BadInputError
from ilme.testing import numbered_tokens
from ilme.train.graphs import rung
from ilme.train.resident import ResidentAudio, ResidentNoise, ResidentSource
from ilme.train.sources import MemorySource, TextSource, plan_epoch


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    budget=st.integers(10, 120),
    most=st.integers(0, 7),
    epoch=st.integers(0, 3),
)
def test_an_epoch_holds_every_item_once_within_its_limits(
    lengths: list[int], budget: int, most: int, epoch: int
) -> None:
    array = np.array(lengths, dtype=np.float64)
    plan = plan_epoch(array, budget, most, seed=1, epoch=epoch)
    assert sorted(i for batch in plan for i in batch.tolist()) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or array[batch].max() * len(batch) <= budget
        assert not most or len(batch) <= most


def test_the_first_epoch_may_go_from_short_to_long() -> None:
    features = [torch.zeros(n, 4) for n in np.random.default_rng(3).integers(2, 40, 50)]
    source = MemorySource(features, [[2]] * 50, 60, short_first=True)
    longest = [[int(b.feature_lengths.max()) for b in source] for _ in range(3)]
    climbs = [all(b > 0.85 * a for a, b in itertools.pairwise(epoch)) for epoch in longest]  # lengths are jittered
    assert climbs == [True, False, False] and len(longest[0]) > 10 and longest[1] != longest[2]


def sentences(count: int = 23) -> list[list[int]]:
    r = np.random.default_rng(0)
    return [r.integers(2, 9, size=int(n)).tolist() for n in r.integers(1, 12, size=count)]


def test_text_comes_back_whole_from_lists_and_token_files(tmp_path: Path) -> None:
    text = sentences()
    write_tokens(tmp_path / "text.tok", text, numbered_tokens(9, "attention"))
    found = []
    for source in (
        TextSource(text, tokens=40, longest=100),
        TextSource(TokenFile(tmp_path / "text.tok"), tokens=40, longest=100),
    ):
        rows = [y[:n].tolist() for b in source for y, n in zip(b.labels, b.label_lengths.tolist(), strict=True)]
        assert sorted(rows) == sorted(text) and source.count == sum(len(s) + 1 for s in text)
        found.append(rows)
    assert found[0] == found[1]


def test_long_sentences_are_cut_not_dropped() -> None:
    source = TextSource([[2, 3, 4, 5, 6, 7, 8], [2]], tokens=100, longest=3)
    rows = sorted(y[:n].tolist() for b in source for y, n in zip(b.labels, b.label_lengths.tolist(), strict=True))
    assert rows == [[2], [2, 3, 4], [5, 6, 7], [8]]


def test_resumes_in_the_middle_of_an_epoch_and_deals_batches_to_ranks() -> None:
    text = sentences()
    whole = TextSource(text, tokens=30, seed=4)
    batches = [b.ids for b in whole]
    assert [b.ids for b in whole] != batches  # the next epoch has another order
    source = TextSource(text, tokens=30, seed=4)
    first = iter(source)
    head = [next(first).ids for _ in range(3)]
    again = TextSource(text, tokens=30, seed=4)
    again.load_state_dict(source.state_dict())
    assert head + [b.ids for b in again] == batches
    ranks = [[b.ids for b in TextSource(text, tokens=30, seed=4, rank=r, world_size=2)] for r in (0, 1)]
    dealt = [ids for pair in zip(*ranks, strict=True) for ids in pair]
    assert dealt[: len(batches)] == batches and len(dealt) - len(batches) in (0, 1)
    with pytest.raises(BadInputError, match="made with seed=4"):
        TextSource(text, tokens=30, seed=5).load_state_dict(source.state_dict())


def test_memory_source_needs_a_transcript_each() -> None:
    with pytest.raises(BadInputError, match="1 utterances came with 2 transcripts"):
        MemorySource([torch.zeros(4, 3)], [[1], [2]], 10)


class Letters:
    tokens = numbered_tokens(30, "transducer")

    def encode(self, text: str) -> list[int]:
        return [ord(c) - ord("a") + 2 for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i - 2 + ord("a")) for i in ids)


def corpus() -> tuple[list[np.ndarray], ResidentAudio]:
    r = np.random.default_rng(0)
    waves = [(3000 * r.standard_normal(int(n))).astype(np.int16) for n in (8000, 12000, 9000, 400, 16000)]
    texts = ["ab", "abc", "c", "d", "abcd"]
    return waves, ResidentAudio.from_arrays(waves, [f"u{i}" for i in range(5)], texts)


def test_resident_features_are_the_frontends_own() -> None:
    waves, audio = corpus()
    source = ResidentSource(audio, Letters(), seconds=2.0, shuffle=False)
    seen = {}
    for batch in source:
        for i, name in enumerate(batch.ids):
            seen[name] = (
                batch.features[i, : batch.feature_lengths[i]],
                batch.labels[i, : batch.label_lengths[i]],
                batch.texts[i],
            )
    assert sorted(seen) == ["u0", "u1", "u2", "u4"]  # u3 is too short for a feature vector
    frontend = Frontend()
    for name, (features, labels, text) in seen.items():
        wanted, sizes = frontend([waves[int(name[1])].astype(np.float32) / 32768])
        torch.testing.assert_close(features, wanted[0, : sizes[0]], rtol=1e-4, atol=1e-4)
        assert Letters().decode(labels.tolist()) == text


@pytest.mark.parametrize("kind", ["babble", "white"])
def test_noise_has_the_power_that_was_drawn_and_stays_inside(kind: str) -> None:
    _, audio = corpus()
    noise = ResidentNoise(babble=float(kind == "babble"), white=float(kind == "white"), snr=(6.0, 6.0))
    source = ResidentSource(audio, Letters(), noise=noise)
    lengths = torch.tensor([8000, 6000])
    clean = torch.randn(2, 9000) * (torch.arange(9000) < lengths[:, None])
    mixed = [source._mix(clean, lengths, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*mixed) and not (mixed[0] - clean)[0, 8000:].any()
    ratio = clean.square().sum(1) / (mixed[0] - clean).square().sum(1)
    torch.testing.assert_close(10 * ratio.log10(), torch.tensor([6.0, 6.0]), rtol=0, atol=0.01)


def test_noise_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(BadInputError, match="probabilities"):
        ResidentNoise(babble=0.7, white=0.5)


@pytest.mark.slow
def test_batches_of_few_shapes() -> None:
    """Of a rung of the ladder all batches but the last have as many rows, and padding is within what was asked for."""
    draw = np.random.default_rng(1)
    waves = [np.zeros(int(n), np.int16) for n in draw.uniform(16000, 5 * 16000, 400)]
    audio = ResidentAudio.from_arrays(waves, [str(i) for i in range(400)], ["a"] * 400)
    rows: dict[bool, dict[int, list[int]]] = {True: {}, False: {}}
    for few in rows:
        source = ResidentSource(audio, Letters(), seconds=60.0, few_shapes=few, seed=3)
        for _ in range(2):
            heard: list[str] = []
            for batch in source:
                heard += batch.ids
                if few:
                    assert batch.features.shape[1] == rung(int(batch.feature_lengths.max()))
                    assert batch.labels.shape[1] % 8 == 0
                rows[few].setdefault(rung(batch.features.shape[1]), []).append(len(batch))
            assert sorted(heard, key=int) == [str(i) for i in range(400)]
    seconds_per_vector = 0.03
    for frames, counts in rows[True].items():
        assert max(counts) == int(60.0 / (frames * seconds_per_vector))
    padded = {way: sum(f * max(n) * len(n) for f, n in shapes.items()) for way, shapes in rows.items()}
    assert padded[True] < 0.95 * padded[False]
