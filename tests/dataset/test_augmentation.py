"""Training pairs that are changed anew in each epoch, by a process beside the run."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from helpers import binarize, contents, learn_bpe, number_pairs, opened, wait_until, write_pairs

from tfm.commands.train import train_model
from tfm.config import BatchingConfig, BinarizeConfig, SubwordConfig
from tfm.dataset import plan
from tfm.dataset.augmentation import NUMBERS, AugmentedPairs, Augmenter
from tfm.dataset.augmenting_process import AugmentingProcess
from tfm.dataset.batching import Batcher
from tfm.dataset.manifest import Manifest
from tfm.dataset.shards import Shard, TrainingText
from tfm.errors import DataError, TrainingError, UsageError
from tfm.machine.group import Group
from tfm.machine.world import World
from tfm.training.data import open_data
from tfm.vocabulary.subword import UNK, Vocabulary

NUM_PAIRS = 300
PAIRS = number_pairs("train", num_pairs=NUM_PAIRS)
ALL = np.arange(NUM_PAIRS, dtype=np.uint32)
BATCHING = BatchingConfig(batch_tokens=300, bucket_tokens=100)
DROPOUT = {"bpe_dropout": 0.2}
EVERYTHING = {"bpe_dropout": 0.1, "typo_share": 0.3, "upper_share": 0.2, "unpunctuated_share": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    """A dataset that tests must leave as it is."""
    splits = {"train": PAIRS, "valid": PAIRS[:9]}
    return make_dataset(tmp_path_factory.mktemp("data") / "x", splits, vocab_size=400)


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(plan, "AUGMENTED_PAIRS", 100)
    monkeypatch.setattr(plan, "RUN_PAIRS", 16)


@pytest.fixture
def augmentation(folder, tiny_run):
    """Returns how a run augments a dataset."""

    def of(data_dir=folder, seed=1, **shares):
        return open_data(
            data_dir, tiny_run(augmentation=shares, training={"seed": seed})
        ).augmentation

    return of


def written(path, augmentation, numbers=ALL, epoch=1, window=0):
    """Write the pairs of a window; return its folder."""
    path.mkdir()
    np.save(path / NUMBERS, numbers)
    Augmenter(augmentation).write(path, epoch=epoch, window=window)
    return path


def pairs_of(path, augmentation, num_pairs=NUM_PAIRS):
    """Write pairs of a dataset, augmented; return their texts."""
    pairs, _ = AugmentedPairs.open(written(path, augmentation, ALL[:num_pairs]), augmentation)
    vocabulary = Vocabulary.load(Path(augmentation.data_dir))
    sides = vocabulary.source.decode(pairs.source), vocabulary.target.decode(pairs.target)
    return [*zip(*sides, strict=True)]


def test_a_share_of_the_pairs_changes_in_place(augmentation, folder, tmp_path):
    pairs = pairs_of(tmp_path / "w", augmentation(upper_share=0.4, typo_share=0.2))
    assert len(pairs) == NUM_PAIRS
    is_upper = [source.isupper() for source, _ in pairs]
    assert sum(is_upper) == pytest.approx(0.4 * NUM_PAIRS, abs=40)
    assert is_upper == [target.isupper() for _, target in pairs]
    has_typo = []
    for pair, upper, before in zip(pairs, is_upper, PAIRS, strict=True):
        source, target = map(str.upper, before) if upper else before
        assert pair[1] == target
        has_typo.append(pair[0] != source)
    assert sum(has_typo) == pytest.approx(0.2 * NUM_PAIRS, abs=40)


def test_bpe_dropout_gives_the_same_text_in_more_pieces(augmentation, folder, tmp_path):
    assert pairs_of(tmp_path / "w", augmentation(**DROPOUT)) == PAIRS
    stored = opened(folder)
    drawn, _ = AugmentedPairs.open(tmp_path / "w", augmentation(**DROPOUT))
    lengths, before = (each.target.lengths(ALL.astype(int)) for each in (drawn, stored))
    assert lengths.sum() > 1.05 * before.sum()
    batcher = Batcher(stored, BATCHING, seed=1, augmentation=augmentation(**DROPOUT))
    num_tokens = (lengths + 1).sum()
    assert batcher.num_tokens == pytest.approx(num_tokens, rel=0.05)
    num_batches = sum(epoch == 1 for epoch, _ in islice(batcher.batches(), 100))
    assert batcher.num_batches() == pytest.approx(num_batches, rel=0.1)
    assert batcher.num_batches() > Batcher(stored, BATCHING, seed=1).num_batches()


def test_the_files_of_a_window_depend_on_seed_epoch_and_window_alone(augmentation, tmp_path):
    seen = []
    for options in ({}, {"epoch": 2}, {"window": 1}):
        seen += [
            contents(written(tmp_path / str(len(seen)), augmentation(**EVERYTHING), **options))
        ]
    seen += [contents(written(tmp_path / "seed", augmentation(seed=2, **EVERYTHING)))]
    assert all(seen.count(each) == 1 for each in seen)
    process = AugmentingProcess(augmentation(**EVERYTHING), tmp_path)
    process.request(1, 0, ALL)
    process.request(1, 1, ALL)
    assert contents(process.wait(1, 0)) == seen[0]
    assert contents(process.wait(1, 1)) == seen[2]
    process.close()
    assert not [*tmp_path.glob("tfm-*")]


def test_the_process_imports_no_files_of_the_working_directory(
    augmentation, tmp_path, shadowing_folder
):
    process = AugmentingProcess(augmentation(**DROPOUT), tmp_path)
    process.request(1, 0, ALL[:9])
    assert process.wait(1, 0).is_dir()
    process.close()


def test_texts_have_their_own_shares(make_dataset, augmentation, tiny_run, tmp_path):
    folder = make_dataset(tmp_path / "x", {"train": PAIRS[:90]}, vocab_size=330)
    manifest = Manifest.load(folder)
    own = [{}, {"upper_share": 1.0}, {}]
    options = {"kept": 30, "read": 30, "dropped": {}}
    texts = [TrainingText(name=f"{i}", augmentation=own[i], **options) for i in range(3)]
    manifest.record_shards({"train": [Shard(name="train", texts=texts)]}, append=False)
    manifest.save()
    before = open_data(folder, tiny_run()).checksum
    binarize(folder, BinarizeConfig(threads=1))
    assert open_data(folder, tiny_run()).checksum != before  # a run does not resume on it
    upper = [(s.upper(), t.upper()) for s, t in PAIRS[:90]]
    found = pairs_of(tmp_path / "w", augmentation(folder), 90)
    assert found == PAIRS[:30] + upper[30:60] + PAIRS[60:90]
    found = pairs_of(tmp_path / "v", augmentation(folder, unpunctuated_share=1.0), 90)
    assert found[30:60] != upper[30:60] == [(s.upper(), t.upper()) for s, t in PAIRS[30:60]]


def test_pairs_with_unknown_tokens_or_of_too_many_tokens_stay(make_dataset, augmentation, tmp_path):
    options = {"vocab_size": 100, "byte_fallback": False}
    folder = make_dataset(tmp_path / "x", {"train": PAIRS[:50]}, **options)
    write_pairs(folder, "train", [*PAIRS[:50], ("one 猫 two", "eins zwei"), ("seven", "sieben")])
    binarize(folder, BinarizeConfig(threads=1))
    stored, changes = opened(folder), augmentation(folder, upper_share=1.0, bpe_dropout=0.9)
    drawn, _ = AugmentedPairs.open(written(tmp_path / "w", changes, ALL[:52]), changes)
    sources = [*zip(stored.source, drawn.source, strict=True)]
    assert UNK in sources[50][0]
    assert sources[50][0] == sources[50][1]
    assert sources[51][0] != sources[51][1]
    limit = stored.source.longest
    binarize(folder, BinarizeConfig(max_length=limit))
    changes = augmentation(folder, upper_share=1.0, bpe_dropout=0.9)
    drawn, _ = AugmentedPairs.open(written(tmp_path / "v", changes, ALL[:51]), changes)
    assert max(map(len, drawn.source)) <= limit
    stayed = [
        before == after for before, after in zip(opened(folder).source, drawn.source, strict=True)
    ]
    assert any(stayed)
    assert not all(stayed)


def batches_of(batcher, epoch, examples, number):
    """The content of batches: epoch, pairs and token ids."""
    found = []
    for each, indices in islice(batcher.batches(epoch, examples), number):
        batch = batcher.batch(indices)
        ids = batch.source.tolist(), batch.target_output.tolist()
        found.append((each, batcher.pairs(indices).tolist(), *ids))
    return found


def test_batches_are_equal_wherever_they_begin_and_in_any_process(
    small_windows, folder, augmentation, tmp_path
):
    changes, dataset = augmentation(**EVERYTHING), opened(folder)

    def batcher(group=None):
        return Batcher(dataset, BATCHING, seed=1, group=group, augmentation=changes)

    whole = batches_of(batcher(), 1, 0, 60)
    in_first = [pairs for epoch, pairs, *_ in whole if epoch == 1]
    assert sorted(chain(*in_first)) == [*range(NUM_PAIRS)]
    done = 0
    for number, pairs in enumerate(in_first):
        if number in (0, 3, 11, len(in_first) - 1):
            assert batches_of(batcher(), 1, done, 60 - number)[:20] == whole[number:][:20]
        done += len(pairs)
    later = batches_of(batcher(), 2, 0, 5)
    assert later == whole[len(in_first) :][:5]
    assert later[0][2:] != whole[0][2:]
    groups = [Group(World(rank=rank, size=2, local_rank=rank, local_size=2)) for rank in (0, 1)]
    for group in groups:
        group.folder = tmp_path
    found = []
    other = threading.Thread(
        target=lambda: found.extend(batches_of(batcher(groups[1]), 1, 0, 60)), daemon=True
    )
    other.start()
    assert batches_of(batcher(groups[0]), 1, 0, 60) == whole
    other.join(30)
    assert found == whole


def test_a_run_that_is_stopped_within_a_window_and_resumed_has_equal_losses(
    small_windows, data_dir, tiny_run, tmp_path
):
    def losses(path, *steps):
        for max_steps in steps:
            training = {"max_steps": max_steps, "log_steps": 1}
            train_model(data_dir, path, tiny_run(augmentation=EVERYTHING, training=training))
        lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
        return [(line["kind"], line["step"], line["loss"]) for line in lines if "loss" in line]

    whole = losses(tmp_path / "whole", 24)
    assert {line[:3] for line in losses(tmp_path / "stopped", 3, 10, 24)} >= {*whole}
    with pytest.raises(UsageError, match=r"other settings(.*\n)+.*bpe_dropout was 0\.1, not 0"):
        train_model(data_dir, tmp_path / "whole", tiny_run(training={"max_steps": 30}))


RUN = """
import sys, time
from pathlib import Path
import numpy as np
from tfm.config.values import from_table
from tfm.dataset.augmentation import Augmentation
from tfm.dataset.augmenting_process import AugmentingProcess
import json
process = AugmentingProcess(from_table(Augmentation, json.loads(sys.argv[1])), Path(sys.argv[2]))
process.request(1, 0, np.repeat(np.arange(300, dtype=np.uint32), 10_000))  # takes minutes
print(process._process.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_its_run_even_if_that_is_killed(augmentation, tmp_path):
    table = json.dumps(asdict(augmentation(**DROPOUT)))
    command = [sys.executable, "-c", RUN, table, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        pid = int(run.stdout.readline())
        [windows] = tmp_path.iterdir()
        wait_until(lambda: [*windows.glob("1-0/*.partial")] or [*windows.glob("1-0/.*")])
        os.kill(pid, signal.SIGINT)  # Ctrl-C is for the run
        run.kill()
    wait_until(lambda: not windows.exists())


def test_failures_of_the_process_are_errors_of_the_run(augmentation, make_dataset, tmp_path):
    folder = make_dataset(tmp_path / "x", {"train": PAIRS[:60]}, vocab_size=330)
    before = augmentation(folder, **DROPOUT)
    process = AugmentingProcess(before, tmp_path)
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    process.request(1, 0, ALL[:60])
    with pytest.raises(TrainingError, match=r"^the process .* was killed by signal 9: if memory"):
        process.wait(1, 0)
    process.close()
    binarize(folder, BinarizeConfig(max_length=20))
    process = AugmentingProcess(before, tmp_path)
    process.request(1, 0, ALL[:50])
    with pytest.raises(DataError, match=r"/x has changed since the run was started: start it"):
        process.wait(1, 0)
    process.close()


def test_what_does_not_fit_a_dataset_is_refused(make_dataset, augmentation, tmp_path):
    folder = make_dataset(tmp_path / "x", {"train": PAIRS[:60]}, vocab_size=330)
    path = folder / "manifest.json"
    content = path.read_text()
    assert '"task": "translation"' in content
    path.write_text(content.replace('"task": "translation"', '"task": "parsing"'))
    with pytest.raises(UsageError, match="title_share has no effect on task parsing, only on"):
        augmentation(folder, title_share=0.1)
    path.write_text(content)
    assert augmentation(folder, bpe_dropout=0.0) is None
    learn_bpe(folder, SubwordConfig(vocab_size=330, model_type="unigram"))
    binarize(folder, BinarizeConfig())
    with pytest.raises(UsageError, match="bpe_dropout needs subword models that merge pieces"):
        augmentation(folder, **DROPOUT)
