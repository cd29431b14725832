"""Batches: each utterance once per epoch on every number of ranks, resumable, the same as the audio they come from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ilme.data.augment import AudioAugmentation, SpecAugment
from ilme.data.batches import Batch, BatchConfig, Batches, cut_text, cut_waveform
from ilme.data.features import Frontend, FrontendConfig
from ilme.data.importing import import_corpus
from ilme.data.manifests import open_cuts
from ilme.data.shards import write_shards
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError, IlmeError
from tests.data.speech_corpora import WORDS, utterances, write_nemo

COUNT = 47
CONFIG = BatchConfig(seconds=8.0, longest=5.0, buckets=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("batches")
    import_corpus(str(write_nemo(place / "corpus", utterances(COUNT, seconds=(0.4, 1.8)), "wav")), place / "out")
    return place / "out"


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train([" ".join(WORDS)] * 20, 40, role="transducer")


def same(a: Batch, b: Batch) -> bool:
    tensors = ("features", "feature_lengths", "labels", "label_lengths")
    return (a.ids, a.texts, a.seconds) == (b.ids, b.texts, b.seconds) and all(
        torch.equal(getattr(a, name), getattr(b, name)) for name in tensors
    )


def test_a_batch_holds_what_the_cuts_hold(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    cuts = {cut.id: cut for cut in open_cuts(folder)}
    frontend = Frontend()
    for batch in Batches(folder, tokenizer, config=CONFIG):
        assert batch.texts == [cut_text(cuts[name]) for name in batch.ids]
        assert batch.labels.shape == (len(batch), batch.label_lengths.max())
        assert batch.seconds == pytest.approx(sum(cuts[name].duration for name in batch.ids))
        for i, name in enumerate(batch.ids):
            labels = batch.labels[i, : batch.label_lengths[i]].tolist()
            assert tokenizer.decode(labels) == batch.texts[i]
            assert not batch.labels[i, batch.label_lengths[i] :].any()
            expected, length = frontend([cut_waveform(cuts[name], 16000)])
            assert batch.feature_lengths[i] == length[0]
            assert torch.allclose(batch.features[i, : length[0]], expected[0], atol=1e-4)


def test_features_of_a_cut_equal_those_of_its_file(folder: Path) -> None:
    frontend = Frontend(FrontendConfig(rate=8000, normalisation="none"))  # the files are at 16 kHz
    for cut in list(open_cuts(folder))[:5]:
        from_file, _ = frontend([cut.recording.sources[0].source])
        from_cut, _ = frontend([cut_waveform(cut, 8000)])
        assert torch.allclose(from_cut, from_file, atol=1e-3)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_utterance_comes_once_an_epoch(
    folder: Path, tokenizer: SentencePieceTokenizer, world_size: int, shuffle: bool
) -> None:
    ranks = [
        Batches(folder, tokenizer, config=replace(CONFIG, shuffle=shuffle), rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    expected = {cut.id for cut in open_cuts(folder)}
    for _ in range(2):
        epoch = [list(batches) for batches in ranks]
        assert len({len(batches) for batches in epoch}) == 1  # all ranks take equally many steps
        heard = Counter(name for batches in epoch for batch in batches for name in batch.ids)
        once = {name: count for name, count in heard.items() if "_dup" not in name}
        assert set(once) == expected
        assert set(once.values()) == {1}
        assert len(heard) - len(once) < world_size


def test_batches_are_within_their_limits_and_of_like_length(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    for batch in Batches(folder, tokenizer, config=replace(CONFIG, utterances=5)):
        assert len(batch) <= 5
        assert len(batch) * batch.feature_lengths.max() * 0.03 <= 8.0 + 0.1
    spread = [
        float(b.feature_lengths.min() / b.feature_lengths.max()) for b in Batches(folder, tokenizer, config=CONFIG)
    ]
    assert sum(spread) / len(spread) > 0.6


def test_epochs_differ_and_seeds_repeat(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    def order(seed: int) -> list[list[list[str]]]:
        batches = Batches(folder, tokenizer, config=replace(CONFIG, seed=seed))
        return [[batch.ids for batch in batches] for _ in range(2)]

    first = order(0)
    assert first[0] != first[1]
    assert order(0) == first
    assert order(1) != first


AUGMENTED = replace(
    CONFIG,
    audio=AudioAugmentation(speeds=(0.9, 1.0, 1.1), reverberation=0.3, noise=0.3, babble=0.3),
    masks=SpecAugment(),
)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("stop", [1, 3])
def test_resuming_continues_with_the_next_batch(
    folder: Path, tokenizer: SentencePieceTokenizer, world_size: int, stop: int
) -> None:
    def fresh() -> Batches:
        return Batches(folder, tokenizer, config=AUGMENTED, rank=world_size - 1, world_size=world_size)

    whole = fresh()
    for _ in whole:  # the first epoch
        pass
    second = list(whole)
    stopped = fresh()
    for _ in stopped:
        pass
    for done, _ in enumerate(stopped, start=1):
        if done == stop:
            break
    state = stopped.state_dict()
    resumed = fresh()
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert len(rest) == len(second) - stop
    assert all(same(a, b) for a, b in zip(rest, second[stop:], strict=True))
    assert resumed.epoch == 2


def test_resuming_under_other_conditions_is_refused(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    state = Batches(folder, tokenizer, config=CONFIG).state_dict()
    with pytest.raises(BadInputError, match="world_size=1"):
        Batches(folder, tokenizer, config=CONFIG, rank=0, world_size=2).load_state_dict(state)
    with pytest.raises(BadInputError, match="seed=0"):
        Batches(folder, tokenizer, config=replace(CONFIG, seed=1)).load_state_dict(state)


def test_workers_and_the_place_of_the_features_change_nothing(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    expected = list(Batches(folder, tokenizer, config=AUGMENTED))
    for options in ({"workers": 1}, {"features": "device"}, {"in_memory": True, "features": "workers"}):
        found = list(Batches(folder, tokenizer, config=replace(AUGMENTED, **options)))  # type: ignore[arg-type]
        assert len(found) == len(expected)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_shards_are_written_and_read_back(folder: Path, tokenizer: SentencePieceTokenizer, tmp_path: Path) -> None:
    assert write_shards(folder, tmp_path / "shar", size=10) == 5
    original = {cut.id: cut for cut in open_cuts(folder)}
    back = {cut.id: cut for cut in open_cuts(tmp_path / "shar")}
    assert back.keys() == original.keys()
    for name, cut in original.items():
        assert cut_text(back[name]) == cut_text(cut)
        assert torch.allclose(cut_waveform(back[name], 16000), cut_waveform(cut, 16000), atol=1e-4)
    for world_size in (1, 3):
        heard: Counter[str] = Counter()
        for rank in range(world_size):
            batches = Batches(tmp_path / "shar", tokenizer, config=CONFIG, rank=rank, world_size=world_size)
            heard.update(name for batch in batches for name in batch.ids)
        assert {n: c for n, c in heard.items() if "_dup" not in n} == dict.fromkeys(original, 1)
    with pytest.raises(BadInputError, match="already holds shards"):
        write_shards(folder, tmp_path / "shar")


def test_a_streamed_manifest_gives_every_utterance_too(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    batches = Batches(folder, tokenizer, config=replace(CONFIG, in_memory=False, buffer=20))
    assert sorted(name for batch in batches for name in batch.ids) == sorted(cut.id for cut in open_cuts(folder))


def test_what_is_left_out_is_counted(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    cuts = list(open_cuts(folder))
    silent = cuts[0].drop_supervisions()
    limits = replace(CONFIG, shortest=0.6, longest=1.5)
    short = sum(cut.duration < 0.6 for cut in cuts[1:])
    long = sum(cut.duration > 1.5 for cut in cuts[1:])
    batches = Batches(
        [silent.extend_by(duration=1.0, direction="right", preserve_id=True), *cuts[1:]], tokenizer, config=limits
    )
    kept = sum(len(batch) for batch in batches)
    assert kept == len(cuts) - sum(batches.left_out.values())
    assert batches.left_out["too short"] == short
    assert batches.left_out.get("too long", 0) + batches.left_out.get("without text", 0) == long + 1
    with pytest.raises(BadInputError, match="no utterance to train on"):
        Batches(folder, tokenizer, config=replace(CONFIG, shortest=100.0))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_tiny_corpora_work(folder: Path, tokenizer: SentencePieceTokenizer, count: int) -> None:
    cuts = list(open_cuts(folder))[:count]
    for world_size in (1, 2):
        heard = {
            name.partition("_dup")[0]
            for rank in range(world_size)
            for batch in Batches(cuts, tokenizer, config=CONFIG, rank=rank, world_size=world_size)
            for name in batch.ids
        }
        assert heard == {cut.id for cut in cuts}


def test_transcripts_can_be_normalised(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    batch = next(iter(Batches(folder, tokenizer, config=CONFIG, normalise=lambda text: text.replace("the ", "a "))))
    assert all("the " not in text for text in batch.texts)


def test_audio_that_vanished_is_named(folder: Path, tokenizer: SentencePieceTokenizer, tmp_path: Path) -> None:
    cut = next(iter(open_cuts(folder)))
    recording = replace(cut.recording, sources=[replace(cut.recording.sources[0], source=str(tmp_path / "gone.wav"))])
    gone: Any = replace(cut, recording=recording)
    for workers in (0, 1):
        with pytest.raises(IlmeError, match=gone.id):
            list(Batches([gone], tokenizer, config=replace(CONFIG, workers=workers)))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"seconds": 0}, "seconds=0"), ({"workers": -1}, "workers=-1"), ({"seconds": 10, "longest": 20}, "longest=20")],
)
def test_impossible_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        BatchConfig(**options)


def test_a_rank_must_exist(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    with pytest.raises(BadInputError, match="rank=3"):
        Batches(folder, tokenizer, config=CONFIG, rank=3, world_size=3)
