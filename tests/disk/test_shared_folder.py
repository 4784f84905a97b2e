"""Two processes use one folder on a slow disk: each sees the other in the middle of its work."""

from itertools import islice

import pytest
from helpers import number_pairs, write_pairs

from tfm.dataset.parallel import ParallelDataset
from tfm.errors import DataError

# The real command; a file of a given name gets its name only when another file exists.
SLOW = """
import os, sys, time

name, go = sys.argv.pop(1), sys.argv.pop(1)

def wait(event, arguments):
    if event == "os.rename" and os.fspath(arguments[1]).endswith(name) and not os.path.exists(go):
        print("waiting", flush=True)
        while not os.path.exists(go):
            time.sleep(0.01)

sys.addaudithook(wait)
from tfm.cli.main import main
main()
"""
SECONDS = 60


@pytest.fixture
def start_slow(fork_python, tmp_path):
    """Start a command, and wait until it waits for the disk; return how to let it end, and its id.

    Which file it waits for is given by its name.
    """
    processes = []

    def start(name, *arguments):
        go = tmp_path / f"go-{len(processes)}"
        process = fork_python(SLOW, name, go, *arguments)
        processes.append(process)
        assert process.readline() == "waiting\n", process.errors

        def end():
            go.touch()
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors

        return end, process.pid

    yield start
    for process in processes:
        process.kill()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Arguments for 150 training pairs, and for 50 others."""
    folder = tmp_path_factory.mktemp("text")
    pairs = list(islice(number_pairs("train", num_pairs=200, seed=1), 200))
    parts = {"a": pairs[:150], "b": pairs[150:]}
    return [["--train", *write_pairs(folder, name, part)] for name, part in parts.items()]


SETTINGS = ["--vocab-size", "360", "--threads", "1"]


def open_train(folder):
    return ParallelDataset(folder / "bin", "train", vocab_sizes=(360, 360))


def rows(dataset):
    return list(dataset.source), list(dataset.target)


@pytest.fixture
def alone(text, run, tmp_path):
    """The rows of a dataset that one process has prepared."""
    assert run("prepare", *text[0], "--out", tmp_path / "alone", *SETTINGS)[0] == 0
    return rows(open_train(tmp_path / "alone"))


@pytest.mark.parametrize("name", ["train.en", "bpe.model", "dataset.json"])
def test_the_second_of_two_that_prepare_is_told_of_the_first(
    start_slow, run, text, alone, tmp_path, name
):
    command = ["prepare", *text[0], "--out", tmp_path / "data", *SETTINGS]
    end, process = start_slow(name, *command)
    others = [] if name == "train.en" else [["binarize", tmp_path / "data"]]
    for second in (command, *others):
        code, _, errors = run(*second)
        assert code == 1
        assert f"data is being written to by process {process} on" in errors
    end()
    assert rows(open_train(tmp_path / "data")) == alone


def test_two_prepare_shares_at_the_same_time(start_slow, run, text, alone, tmp_path):
    command = ["prepare", *text[0], "--out", tmp_path / "data", *SETTINGS, "--shard-pairs", "100"]
    end, process = start_slow("train.json", *command, "--share", "1/2")
    assert run(*command, "--share", "2/2")[0] == 0
    for second in ([*command, "--share", "1/2"], command):
        code, _, errors = run(*second)
        assert code == 1
        assert f"1-of-2 is being written to by process {process} on" in errors
    end()
    assert run(*command)[0] == 0
    assert rows(open_train(tmp_path / "data")) == alone


@pytest.mark.parametrize("name", ["train.en.tokens.npy", "train.de.offsets.npy", "dataset.json"])
def test_a_reader_has_the_older_dataset_or_the_new_one_but_no_mixture(
    start_slow, run, text, alone, tmp_path, name
):
    folder = tmp_path / "alone"
    before = open_train(folder)
    end, _ = start_slow(name, "binarize", folder, "--max-length", "20")
    assert rows(before) == alone
    with pytest.raises(DataError, match=r"alone/bin holds no binarized dataset: run tfm binarize"):
        open_train(folder)
    end()
    after = open_train(folder)
    after.verify()
    assert rows(before) == alone
    assert 0 < len(after) < len(before)
    assert all(max(map(len, pair)) <= 20 for pair in zip(*rows(after), strict=True))


def test_a_reader_keeps_its_dataset_while_text_is_appended(start_slow, run, text, alone, tmp_path):
    folder = tmp_path / "alone"
    before = open_train(folder)
    end, _ = start_slow("dataset.json", "prepare", "--append", *text[1], "--out", folder)
    before.verify()
    end()
    before.verify()
    assert rows(before) == alone
    after = rows(open_train(folder))
    assert len(after[0]) == 200
    assert [side[:150] for side in after] == [*alone]
