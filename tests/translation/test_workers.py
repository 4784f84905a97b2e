"""Several worker processes give the output of one, in order, and leave no process behind."""

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import thread as futures_thread
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import wait_until

import tfm
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import CheckpointError, DataError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.translation.batches import SentenceBatch, SentenceEncoder
from tfm.translation.chain import Chain, run_batches
from tfm.translation.engine import Engine
from tfm.translation.steps import Segment
from tfm.translation.workers import LostProcessError, Workers, _Worker
from tfm.vocabulary.subword import Vocabulary

CPU = InferenceConfig(device="cpu", precision="fp32")

LINES = [
    "seven",
    "",
    "today is the third of May",
    "on Monday",
    "8",
    "I am buying 3 red cars for $5.",
    "seven",
]
CHUNKS = [
    [Segment(1, LINES[0], "Ich"), Segment(2, LINES[1], ""), Segment(3, LINES[2], "")],
    [Segment(4, "", ""), Segment(5, "", "")],
    [
        Segment(6, LINES[3], ""),
        Segment(7, LINES[4], "zwölf Katzen"),
        Segment(8, LINES[5], "x"),
        Segment(9, LINES[6], "sieben"),
    ],
]


@pytest.fixture(scope="module")
def one_process(trained_run, vocabulary):
    """An engine in this process, with as many threads as a worker has."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = ModelFolder(checkpoints(trained_run)[-1])
    yield Engine.start([folder], CPU, owns_process=False)
    torch.set_num_threads(num_threads)


def two_workers(folder, *, forked=False):
    models = Engine.start([ModelFolder(folder)], CPU) if forked else [ModelFolder(folder)]
    return Workers(models, inference=CPU, num_workers=2)


FORKS = sys.platform == "linux"
NEEDS_FORK = pytest.mark.skipif(not FORKS, reason="only Linux forks processes")


@pytest.fixture(scope="module", params=["spawned", pytest.param("forked", marks=NEEDS_FORK)])
def workers(request, trained_run):
    with two_workers(checkpoints(trained_run)[-1], forked=request.param == "forked") as started:
        yield started


@pytest.fixture(scope="module")
def vocabulary(trained_run):
    return Vocabulary.load(checkpoints(trained_run)[-1])


def chain_of(engine, vocabulary):
    return Chain(engine=engine, vocabulary=vocabulary)


def assert_same(found, expected):
    """Assert equality up to rounding, which depends on the batches."""
    for (chunk, translations), (other_chunk, others) in zip(found, expected, strict=True):
        assert chunk == other_chunk
        for each, other in zip(translations, others, strict=True):
            assert [one.text for one in each] == [one.text for one in other]
            assert [one.score for one in each] == pytest.approx([one.score for one in other])


@pytest.mark.parametrize(
    "settings",
    [
        {"n_best": 4},
        {"max_tokens": 1},
        {"num_groups": 2},
        {"search": "sample", "n_best": 2, "max_tokens": 20},
        {"search": "exact", "node_limit": 20, "max_tokens": 1},
    ],
    ids=str,
)
def test_workers_translate_as_one_process_does_in_order(one_process, workers, vocabulary, settings):
    config = SearchConfig(max_extra_length=3, **settings)
    expected = list(chain_of(one_process, vocabulary).run(CHUNKS, config))
    assert_same(chain_of(workers, vocabulary).run(CHUNKS, config), expected)
    assert [chunk for chunk, _ in expected] == CHUNKS


def test_workers_score_targets_as_one_process_does(one_process, workers, vocabulary):
    config = SearchConfig(max_tokens=20)
    expected = chain_of(one_process, vocabulary).run(CHUNKS, config, scores_given=True)
    found = chain_of(workers, vocabulary).run(CHUNKS, config, scores_given=True)
    for (chunk, targets), (other_chunk, others) in zip(found, expected, strict=True):
        assert chunk == other_chunk
        for [target], [other] in zip(targets, others, strict=True):
            assert (target.text, target.pieces) == (other.text, other.pieces)
            for name in ("score", "log_prob", "piece_log_probs"):
                assert getattr(target, name) == pytest.approx(getattr(other, name))


def batch_of(line, ids=(5, 6)):
    return SentenceBatch([line], sources=[list(ids)], targets=[[]], rows=[0])


def search_with(workers, lines, *, batches_of=lambda line: [batch_of(line)], **config):
    """Yield the number of each line, of one chunk, when its batches have been searched."""
    batched = ((line, batches_of(line)) for line in lines)
    for line, _ in run_batches(workers, batched, SearchConfig(**config)):
        yield line


def test_only_a_few_chunks_are_read_ahead(workers):
    read = []

    def endless():
        for line in itertools.count(1):
            read.append(line)
            yield line

    results = search_with(workers, endless(), max_extra_length=1)
    assert list(itertools.islice(results, 50)) == list(range(1, 51))
    assert len(read) <= 50 + 2 * 2 + 2


def test_the_interpreter_awaits_the_thread_that_encodes(workers, vocabulary, monkeypatch):
    threads, encode = [], SentenceEncoder.encode

    def record(self, segments):
        threads.append(threading.current_thread())
        return encode(self, segments)

    monkeypatch.setattr(SentenceEncoder, "encode", record)
    results = chain_of(workers, vocabulary).run(CHUNKS, SearchConfig(max_extra_length=1))
    next(results)
    results.close()
    assert threads
    assert all(thread in futures_thread._threads_queues for thread in threads)


def test_an_error_in_reading_is_raised_after_the_chunks_before_it(workers, vocabulary):
    def chunks():
        yield CHUNKS[0]
        raise DataError("line 4 is not UTF-8")

    results = chain_of(workers, vocabulary).run(chunks(), SearchConfig(max_extra_length=3))
    assert next(results)[0] == CHUNKS[0]
    with pytest.raises(DataError, match="line 4 is not UTF-8"):
        next(results)


def test_a_model_that_cannot_be_loaded_is_named_as_in_one_process(
    tmp_path, trained_run, shadowing_folder
):
    folder = shutil.copytree(checkpoints(trained_run)[-1], tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"damaged")
    workers = two_workers(folder)
    with pytest.raises(CheckpointError, match=r"damaged.*model\.safetensors"), workers:
        pytest.fail("the model was loaded")
    assert not any(worker.process.is_alive() for worker in workers._workers)


def test_a_process_that_dies_before_it_is_ready_is_named(trained_run, monkeypatch):
    workers, original = two_workers(checkpoints(trained_run)[-1]), _Worker.ask

    def killed(worker, work):
        os.kill(worker.process.pid, signal.SIGKILL)
        return original(worker, work)

    monkeypatch.setattr(_Worker, "ask", killed)
    message = r"process 1 of 2 .* was killed by SIGKILL .* while it loaded the model$"
    with pytest.raises(LostProcessError, match=message), workers:
        pytest.fail("the model was loaded")
    assert not any(worker.process.is_alive() for worker in workers._workers)


def test_a_process_that_dies_is_named_with_its_lines(trained_run):
    with two_workers(checkpoints(trained_run)[-1], forked=FORKS) as started:
        first, second = (worker.process for worker in started._workers)
        os.kill(first.pid, signal.SIGSTOP)  # it receives a batch, and never answers
        batch = SentenceBatch(line_numbers=[3, 9, 5], sources=[[5]] * 3, targets=[[]] * 3)
        threading.Timer(0.5, os.kill, (first.pid, signal.SIGKILL)).start()
        message = (
            rf"^process 1 of 2 \(pid {first.pid}\) was killed by SIGKILL "
            r"\(out of memory\?\) while it computed 3 of the lines 3 to 9$"
        )
        with pytest.raises(LostProcessError, match=message):
            list(search_with(started, [3], batches_of=lambda _: [batch]))
        assert second.is_alive()
    assert (first.exitcode, second.exitcode) == (-signal.SIGKILL, -signal.SIGKILL)


def test_an_idle_worker_translates_new_lines_while_another_is_busy(workers):
    arrived = threading.Event()
    list(search_with(workers, [1, 2]))  # both are loaded
    first = workers._workers[0].process.pid
    os.kill(first, signal.SIGSTOP)

    def chunks():
        yield from (1, 2)  # one of the two hangs
        arrived.set()

    results = search_with(workers, chunks(), max_extra_length=1)
    reading = threading.Thread(target=lambda: found.extend(results))
    found = []
    reading.start()
    try:
        assert arrived.wait(30)
    finally:
        os.kill(first, signal.SIGCONT)
    reading.join(30)
    assert found == [1, 2]


def test_a_message_of_several_processes_is_printed_once(workers, capsys):
    for answer in [(1, ["warning: one", "warning: two"]), (2, ["warning: one"]), (3, [])]:
        assert workers._ask(SimpleNamespace(ask=lambda _: answer), "") == answer[0]  # noqa: B023
    assert capsys.readouterr().err.splitlines() == ["warning: one", "warning: two"]


# --- the command, and signals


def command(*arguments):
    return [sys.executable, "-m", "tfm", "generate", "model", "--max-extra-length", "3", *arguments]


@pytest.fixture
def folder(trained_run, tmp_path):
    (tmp_path / "model").symlink_to(checkpoints(trained_run)[-1])
    return tmp_path


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(tfm.__file__).parent.parent))


def children(pid):
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [int(row[0]) for row in rows if row[1] == str(pid) and "spawn_main" in row[2]]


def is_alive(pid):
    state = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return state not in ("", "Z")


def assert_answers_arrive(process):
    """Check that each line is translated before the next arrives."""
    for text, sources in [
        ("seven\n", ["seven"]),
        ("\n", [""]),
        ("\non Monday\neig", ["", "on Monday"]),
        ("ht\n", ["eight"]),
    ]:
        process.stdin.write(text.encode())
        for source in sources:
            assert select.select([process.stdout], [], [], 60)[0], "no answer"
            assert json.loads(process.stdout.readline())["source"] == source


@pytest.fixture
def start(folder, environment):
    """Start tfm generate, and kill it when the test ends."""
    with ExitStack() as stack:

        def start_command(*flags):
            process = subprocess.Popen(
                command("--json", *flags), cwd=folder, start_new_session=True, bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start_command


def test_each_line_is_translated_before_the_next_arrives(start):
    process = start()
    assert_answers_arrive(process)
    process.stdin.close()
    assert (process.wait(30), process.stdout.read()) == (0, b"")


@pytest.mark.parametrize(
    ("number", "to_all", "code", "last_line"),
    [
        (signal.SIGINT, True, 130, "tfm: stopped"),
        (signal.SIGKILL, False, -signal.SIGKILL, "generate: model translates standard input"),
    ],
)
def test_processes_translate_each_line_at_once_and_a_signal_ends_all_quietly(
    start, number, to_all, code, last_line
):
    process = start("--processes", "2")
    if not to_all:
        assert_answers_arrive(process)
    wait_until(lambda: len(children(process.pid)) == 2)
    workers = children(process.pid)
    (os.killpg if to_all else os.kill)(process.pid, number)
    assert process.wait(30) == code
    wait_until(lambda: not any(map(is_alive, workers)))
    lines = process.stderr.read().decode().splitlines()
    assert lines[0] == "generate: model translates standard input"
    assert lines[-1] == last_line
    assert len(lines) <= 2
