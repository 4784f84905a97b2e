"""Shared fixtures: tiny datasets, runs and models, the command line, processes, a web server."""

import functools
import importlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import typer
from helpers import binarize, learn_bpe, number_pairs, write_dataset

from tfm.cli import main as cli
from tfm.config import BinarizeConfig, RunConfig, SubwordConfig, run_config
from tfm.machine.cpu import Cpu, this_cpu
from tfm.vocabulary.subword import BOS, PAD, UNK, Vocabulary

# Reproducible sums in every process, for any number of threads and alignment of memory.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
# Tests run in parallel: more threads than cores would slow all of them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The setting of the command line, for forked processes in which torch is already loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# A suite in the background of a shell would start with Ctrl-C ignored, as would its processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine, any example may take long. Examples write over the files of earlier ones.
for profile, num_examples in {"nightly": 100, "quick": 25}.items():
    hypothesis.settings.register_profile(
        profile,
        max_examples=num_examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    )
hypothesis.settings.load_profile("quick")  # --hypothesis-profile selects another

TINY: dict[str, dict[str, Any]] = {
    "model": {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 16,
        "d_ff": 32,
        "num_heads": 2,
    },
    "optimizer": {"warmup_steps": 40},
    "batching": {"batch_tokens": 600, "bucket_tokens": 100, "max_tokens": 400},
    "training": {
        "average": False,
        "max_steps": 12,
        "checkpoint_steps": 4,
        "log_steps": 3,
        "keep_last": 20,
        "best_metric": "loss",
        "validation_beam": 0,
        "device": "cpu",
        "precision": "fp32",
    },
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need bf16 units on other CPUs."""
    if item.get_closest_marker("needs_bf16") and not this_cpu().has_bf16:
        pytest.skip("this CPU has no bf16 units")


@pytest.fixture(autouse=True, scope="session")
def only_training() -> Iterator[None]:
    """Leave out what takes longer than the small trainings of tests.

    These are reports, measurements of speed, waiting for the disk, and building the parser again
    for each command line.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
        if "torch" in sys.modules:  # tests that need neither start without it
            patch.setattr("tfm.training.report.write_report", lambda _: None)
            patch.setattr("tfm.machine.compute._MEASURING_SECONDS", 1e-3)
            patch.setattr("tfm.training.forecast._PROBE_SECONDS", 0.0)
            patch.setattr("tfm.training.loop.measure_fp32_flops", lambda _: 1e11)
        yield


@pytest.fixture
def this_cpu_has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that the CPU has certain instruction sets."""

    def have(*flags: str) -> None:
        cpu = Cpu(model="a CPU", flags=frozenset(flags))
        for module in ("machine.compute", "backends.selection", "backends.products_cpu"):
            monkeypatch.setattr(f"tfm.{module}.this_cpu", lambda: cpu)

    return have


@pytest.fixture
def handles_sighup() -> Iterator[None]:
    """Let SIGHUP be handled as in a terminal, also under nohup, which makes programs ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def shadowing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with files named as modules, which `tfm` does not search for modules."""
    folder = tmp_path / "shadowing"
    folder.mkdir()
    for name in ("pickle", "queue"):
        (folder / f"{name}.py").write_text("raise ImportError('of the working directory')")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path)])
    return folder


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Path]:
    """Make a binarized dataset of sentence pairs in a folder."""

    def make(folder: Path, splits: dict[str, list[tuple[str, str]]], **subword: Any) -> Path:
        write_dataset(folder, splits)
        learn_bpe(folder, SubwordConfig(**subword))
        binarize(folder, BinarizeConfig(threads=1))
        return folder

    return make


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory, make_dataset: Callable[..., Path]) -> Path:
    """Return a dataset of a few hundred generated pairs; tests must not change it."""
    sizes = {"train": 200, "valid": 12, "test": 12}
    splits = {
        split: list(number_pairs(split, num_pairs=size, seed=1)) for split, size in sizes.items()
    }
    return make_dataset(tmp_path_factory.mktemp("data") / "tiny", splits, vocab_size=400)


@pytest.fixture(scope="session")
def tiny_run() -> Callable[..., RunConfig]:
    """Return settings of a run that takes a second, with some changed."""

    def make(**changes: dict[str, Any]) -> RunConfig:
        return run_config("base", TINY, changes)

    return make


@pytest.fixture(scope="session")
def trained_run(
    data_dir: Path, tiny_run: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a run with checkpoints at steps 4, 8 and 12; tests must not change it."""
    from tfm.commands.train import train_model

    run_dir = tmp_path_factory.mktemp("runs") / "tiny"
    train_model(data_dir, run_dir, tiny_run(training={"average_last": 2}))
    return run_dir


@pytest.fixture(scope="session")
def trained_norms(
    data_dir: Path, tiny_run: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return partly trained runs, by the position of layer normalization."""
    from tfm.commands.train import train_model

    runs_dir = tmp_path_factory.mktemp("runs")
    shape = {"d_model": 32, "d_ff": 64, "dropout": 0.0, "embedding_dropout": 0.0}
    runs = {
        norm: tiny_run(
            model={"norm": norm, **shape},
            optimizer={"learning_rate": 5e-3},
            batching={"max_tokens": 1000},
            training={"max_steps": 60, "checkpoint_steps": 60},
        )
        for norm in ("post", "pre")
    }
    return {norm: train_model(data_dir, runs_dir / norm, run).run_dir for norm, run in runs.items()}


@pytest.fixture
def new_trainer(data_dir: Path, tiny_run: Callable[..., RunConfig]) -> Callable[..., Any]:
    """Make a trainer of a tiny run on the CPU, with some settings changed."""
    import torch

    from tfm.dataset.parallel import ParallelDataset
    from tfm.machine.compute import choose_compute
    from tfm.model.cost import model_cost
    from tfm.model.transformer import Transformer
    from tfm.training.trainer import Trainer

    real_data = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(400, 400))

    def make(dataset: ParallelDataset = real_data, **changes: Any) -> Trainer:
        run = tiny_run(**changes)
        torch.manual_seed(run.training.seed)
        model = Transformer(run.model, (400, 400))
        compute = choose_compute("cpu", run.training.precision)
        cost = model_cost(run.model, (400, 400))
        return Trainer(model, dataset, run, compute, cost=cost)

    return make


@pytest.fixture(scope="session")
def separate_data_dir(
    make_dataset: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a dataset with separate vocabularies of different sizes."""
    pairs = [(f"{i} cars", f"{i} Autos und {i % 7} Räder zu Ä Ö Ü") for i in range(60)]
    folder = tmp_path_factory.mktemp("data") / "separate"
    splits = {"train": pairs, "valid": pairs[:3], "test": pairs[:3]}
    return make_dataset(folder, splits, separate=True, vocab_size=290)


def _randomize(model: Any) -> None:
    """Give biases and norms random values, and special tokens low probabilities."""
    from torch import nn

    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    norms = [module for module in model.decoder.modules() if isinstance(module, nn.LayerNorm)]
    last = model.decoder_norm if isinstance(model.decoder_norm, nn.LayerNorm) else norms[-1]
    model.output_weight[[PAD, BOS, UNK]] -= 20 * last.bias / last.bias.square().sum()


@pytest.fixture
def make_model(
    data_dir: Path, separate_data_dir: Path, tiny_run: Callable[..., RunConfig], tmp_path: Path
) -> Callable[..., Path]:
    """Write a model with random weights, and with vocabularies that match its embeddings."""
    import torch

    from tfm.folders.model_info import ModelInfo
    from tfm.folders.saving import save_checkpoint
    from tfm.model.build import new_model

    def make(
        *, seed: int = 0, task: str = "translation", joint: bool = False, **shape: Any
    ) -> Path:
        path = tmp_path / "model"
        joint = joint or shape.get("tied_embeddings", "three-way") == "three-way"
        dataset = data_dir if joint else separate_data_dir
        vocabulary = Vocabulary.load(dataset)
        run = tiny_run(model={"num_encoder_layers": 2, "num_decoder_layers": 2, **shape})
        sizes = (len(vocabulary.source), len(vocabulary.target))
        torch.manual_seed(seed)
        model = new_model(run.model, sizes)
        with torch.no_grad():
            _randomize(model)
        info = ModelInfo(
            run=run,
            source="en",
            target="de",
            vocab_sizes=sizes,
            fingerprint=vocabulary.fingerprint,
            data_dir=str(dataset),
            step=1,
            task=task,
        )
        weights = dict(model.named_parameters())
        save_checkpoint(path, info, weights, subword_files=vocabulary.files())
        return path

    return make


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The script that the test module names as EXAMPLE; train.py if that is a folder."""
    import torch

    name, _, script = request.module.EXAMPLE.partition("/")
    folder = Path(__file__).parents[1] / "examples" / name
    num_threads = torch.get_num_threads()
    sys.path.insert(0, str(folder))
    yield importlib.import_module(script or "train")
    sys.path.remove(str(folder))
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)
    torch.set_num_threads(num_threads)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary folder, and set a wide terminal for help texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


class CommandLine:
    """Runs the command line in this process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *command: Any
    ) -> None:
        self._monkeypatch, self._capfd, self._command = monkeypatch, capfd, command

    def __call__(self, *arguments: Any) -> tuple[Any, str, str]:
        """Return the exit code of a command, its stdout and its stderr."""
        words = map(str, (*self._command, *arguments))
        self._monkeypatch.setattr(sys, "argv", ["tfm", *words])
        self._monkeypatch.setattr(os, "_exit", sys.exit)  # os._exit would end pytest
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *self._capfd.readouterr()

    def ok(self, *arguments: Any) -> tuple[str, str]:
        """Return stdout and stderr of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return out, err

    def fails(self, code: int, pattern: str, *arguments: Any) -> None:
        """Run a command that ends with a code, nothing on stdout and one line on stderr."""
        found, out, err = self(*arguments)
        assert (found, out) == (code, ""), err
        assert re.fullmatch(f"tfm: {pattern}\n", err), err

    def within(self, *command: Any) -> "CommandLine":
        """Return what runs a command with more arguments."""
        return CommandLine(self._monkeypatch, self._capfd, *self._command, *command)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return what runs the command line in this process."""
    return CommandLine(monkeypatch, capfd)


_FORKED = """
import os, sys
for number, path in ((1, stdout), (2, stderr)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
os.environ.update(environment)
if stdin:
    sys.stdin = open(stdin)
sys.argv = ["-c", *arguments]
from tfm.machine import compute
from tfm.training import forecast
from tfm.training import loop
from tfm.training import report
# As `only_training`.
compute._MEASURING_SECONDS, loop.measure_fp32_flops = 1e-3, lambda _: 1e11
forecast._PROBE_SECONDS = 0.0
os.fsync = report.write_report = lambda _: None
exec(source, {"__name__": "__main__"})
"""


class ForkedPython:
    """`python -c` in a process with torch and tfm loaded; has the methods of `subprocess.Popen`."""

    def __init__(
        self,
        folder: Path,
        source: str,
        arguments: list[str],
        environment: dict[str, str],
        stdin: Path | None,
    ) -> None:
        folder.mkdir()
        self._files = folder / "stdout", folder / "stderr"
        for path in self._files:
            path.touch()
        facts = {
            "stdout": str(self._files[0]),
            "stderr": str(self._files[1]),
            "environment": environment,
            "arguments": arguments,
            "source": source,
            "stdin": stdin and str(stdin),
        }
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            [
                "tfm.cli.main",
                "tfm.training.run",
                "tfm.training.averaging",
                "tfm.translation.generating",
                "tfm.training.report",
                "torch._dynamo",
                "torch.distributed.fsdp",
                "typer.rich_utils",
            ]
        )
        self._process = context.Process(target=exec, args=(_FORKED, facts), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._lines_read = 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "the process has not ended in time"
        return self._files[0].read_text(encoding="utf-8"), self.errors

    @property
    def errors(self) -> str:
        """Its standard error until now."""
        return self._files[1].read_text(encoding="utf-8")

    def readline(self) -> str:
        """Wait for the next line of its output; return an empty text if it has ended before."""
        while True:
            has_ended = self.poll() is not None
            lines = self._files[0].read_text(encoding="utf-8").splitlines(keepends=True)
            if len(lines) > self._lines_read and lines[self._lines_read].endswith("\n"):
                self._lines_read += 1
                return lines[self._lines_read - 1]
            if has_ended:
                return ""
            time.sleep(0.01)


@pytest.fixture(scope="session")
def fork_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ForkedPython]:
    """Start Python code in a new process forked from one that has already loaded torch."""
    root = tmp_path_factory.mktemp("forked")
    numbers = iter(range(1_000_000))

    def fork(
        source: str, *arguments: Any, stdin: Path | None = None, **environment: str
    ) -> ForkedPython:
        folder = root / str(next(numbers))
        return ForkedPython(folder, source, [*map(str, arguments)], environment, stdin)

    return fork


@pytest.fixture
def serve() -> Iterator[Callable[[type[BaseHTTPRequestHandler]], str]]:
    """Start a web server with a handler, until the test ends; return its address."""
    with ExitStack() as stack:

        def start(handler: type[BaseHTTPRequestHandler]) -> str:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start
