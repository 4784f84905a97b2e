"""The plan of an epoch in several windows: complete, shuffled, resumable, shared by a machine."""

import re
import threading
from itertools import chain, islice

import numpy as np
import pytest

from tfm.config import BatchingConfig
from tfm.dataset import plan
from tfm.dataset.batching import Batcher
from tfm.dataset.plan import Planner, Window, apportion
from tfm.dataset.shards import TrainingText
from tfm.errors import DataError
from tfm.machine.group import Group
from tfm.machine.world import World

NUM_PAIRS, WINDOW_PAIRS, RUN_PAIRS = 2_010, 500, 16
CONFIG = BatchingConfig(batch_tokens=400, bucket_tokens=100)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(plan, "WINDOW_PAIRS", WINDOW_PAIRS)
    monkeypatch.setattr(plan, "RUN_PAIRS", RUN_PAIRS)
    monkeypatch.setattr(plan, "_BLOCK_PAIRS", 100)


class Lengths:
    """Only the lengths of sentences."""

    def __init__(self, num_rows, seed):
        self._lengths = np.random.default_rng(seed).integers(0, 60, num_rows)
        self.needed = []

    def lengths(self, rows):
        return self._lengths[rows]

    def will_need(self, rows, sizes):
        runs = [range(row, row + size) for row, size in zip(rows, sizes, strict=True)]
        self.needed.append(list(chain(*runs)))


class Pairs:
    """A stand-in for `ParallelDataset`."""

    def __init__(self, *, num_pairs=NUM_PAIRS, texts=()):
        self.source, self.target = (Lengths(num_pairs, seed) for seed in (1, 2))
        self.texts, self._num_pairs = texts, num_pairs

    def __len__(self):
        return self._num_pairs


def planner(*, seed=1, group=None, **dataset):
    return Planner(Pairs(**dataset), CONFIG, seed=seed, group=group or Group())


def as_lists(windows):
    return [[pairs.tolist() for pairs in window] for window in windows]


def test_windows_have_each_pair_once_and_about_equally_many():
    windows = list(planner().epoch(1))
    assert len(windows) == 5
    sizes = [len(window.pairs) for window in windows]
    assert max(sizes) - min(sizes) <= 2 * RUN_PAIRS
    assert sorted(np.concatenate([window.pairs for window in windows])) == list(range(NUM_PAIRS))
    assert all(len(pairs) for window in windows for pairs in window)


def test_the_pairs_of_a_run_share_a_window_but_no_batch():
    window = next(planner().epoch(1))
    runs, sizes = np.unique(window.pairs // RUN_PAIRS, return_counts=True)
    assert set(sizes[runs < NUM_PAIRS // RUN_PAIRS]) == {RUN_PAIRS}
    together = max(np.unique(each // RUN_PAIRS, return_counts=True)[1].max() for each in window)
    assert together < RUN_PAIRS


def test_epochs_and_seeds_deal_runs_to_other_windows():
    def dealt(epoch, seed=1):
        return [frozenset(each.pairs // RUN_PAIRS) for each in planner(seed=seed).epoch(epoch)]

    assert dealt(2) == dealt(2)
    assert not set(dealt(1)) & set(dealt(2))
    assert not set(dealt(1)) & set(dealt(1, seed=2))


def test_a_batch_has_similar_lengths_of_several_buckets():
    batcher = Batcher(Pairs(), CONFIG, seed=1)
    tokens = [batcher.lengths(rows)[1].sum() for rows in batcher.epoch(1)]
    assert np.median(tokens) == pytest.approx(CONFIG.batch_tokens, rel=0.1)
    assert len(tokens) == pytest.approx(batcher.num_batches(), rel=0.05)
    assert batcher.num_tokens == pytest.approx(sum(tokens), rel=0.05)


@pytest.mark.parametrize("batches_done", [0, 1, 7, 40, 100])
def test_an_epoch_resumes_anywhere_and_plans_no_window_before(batches_done, monkeypatch):
    batcher = Batcher(Pairs(), CONFIG, seed=1)
    planned, plan_one = [], batcher._planner._plan

    def note(epoch, number, *rest):
        planned.append(number)
        return plan_one(epoch, number, *rest)

    expected = [(epoch, rows.tolist()) for epoch in (3, 4) for rows in batcher.epoch(epoch)]
    sizes = [len(rows) for _, rows in expected]
    monkeypatch.setattr(batcher._planner, "_plan", note)
    resumed = batcher.batches(3, sum(sizes[:batches_done]))
    window_ends = np.cumsum([len(runs.lengths) * RUN_PAIRS for runs in batcher._planner._deal(3)])
    found = [(epoch, rows.tolist()) for epoch, rows in islice(resumed, len(sizes) - batches_done)]
    assert found == expected[batches_done:]
    first = int(np.searchsorted(window_ends, sum(sizes[:batches_done]), side="right"))
    assert planned[:2] == [first, (first + 1) % 5]


def test_weights_hold_in_several_windows():
    sizes, weights = (1_200, 10, 800), (1, 0.5, 3)
    texts = tuple(
        TrainingText(name=str(size), kept=size, read=size, dropped={}, weight=weight)
        for size, weight in zip(sizes, weights, strict=True)
    )
    batcher = Batcher(Pairs(texts=texts), CONFIG, seed=1)
    for epoch in (1, 2, 3):
        batches = batcher.epoch(epoch)
        by_text = np.sum([batcher.num_pairs_by_text(rows) for rows in batches], axis=0)
        assert by_text.tolist() == apportion(NUM_PAIRS, weights)


def test_the_processes_of_a_machine_share_the_plan(tmp_path, monkeypatch):
    groups = [Group(World(rank=rank, size=2, local_rank=rank, local_size=2)) for rank in (0, 1)]
    for group in groups:
        group.folder = tmp_path
    first, other = (planner(group=group) for group in groups)
    monkeypatch.setattr(other, "_plan", None)  # it plans nothing
    found = []

    def wait():  # the other process may come first
        found.extend((epoch, as_lists([window])) for epoch, window in islice(windows, 3))

    windows = other.windows(1, 100)
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    expected = [(epoch, as_lists([window])) for epoch, window in islice(first.windows(1, 100), 3)]
    thread.join(30)
    assert found == expected
    # What a killed run leaves: at most the window that is planned ahead, until the other has it.
    assert {re.search(r"\d-\d", path.name)[0] for path in tmp_path.iterdir()} <= {"1-3"}


def test_a_plan_takes_four_bytes_a_pair_on_disk(tmp_path):
    window = next(planner().epoch(1))
    window.save(tmp_path)
    loaded = Window.load(tmp_path)
    assert as_lists([loaded]) == as_lists([window])
    assert isinstance(loaded.pairs, np.memmap)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size <= 4 * (len(window.pairs) + len(window.starts)) + 256


def test_more_pairs_than_a_plan_can_number_are_refused(monkeypatch):
    monkeypatch.setattr(plan, "_MAX_PAIRS", NUM_PAIRS - 1)
    with pytest.raises(DataError, match=r"has 2,010 training pairs, .* at most 2,009: train on"):
        planner()


def test_the_pages_of_each_window_are_read_ahead_in_the_order_of_the_files():
    dataset = Pairs()
    windows = Planner(dataset, CONFIG, seed=1, group=Group()).windows(2, 0)
    for number, (_, window) in enumerate(islice(windows, 3)):
        expected = np.sort(window.pairs).tolist()
        assert dataset.source.needed[number] == dataset.target.needed[number] == expected
