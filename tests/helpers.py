"""What many tests do with files: write text, take snapshots, read metrics, edit descriptions."""

import contextlib
import io
import itertools
import json
import lzma
import resource
import signal
import subprocess
import sys
import tarfile
import time
from functools import cache
from importlib import resources

import pytest
import typer
from html_pages import read_page, text_of

from tfm.cli.main import app
from tfm.dataset import subword_models, token_ids
from tfm.dataset.draft import lock_dataset
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import ParallelDataset
from tfm.dataset.shards import Shard, TrainingText, shard_name
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.text.corpus.recipe import Recipe
from tfm.vocabulary.subword import Vocabulary


def write_lines(path, lines):
    """Write lines of text; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@cache
def _numbers(split):
    path = resources.files("tfm") / "recipes" / f"numbers-en-de.{split}.tsv.xz"
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return [tuple(line.split("\t")) for line in lines]


def number_pairs(split, *, num_pairs, seed=1):
    """Return different English-German pairs of the corpus of quickstart for each seed."""
    pairs = _numbers(split)
    start = (seed - 1) * 200 % len(pairs)
    assert num_pairs <= len(pairs)
    return (pairs[start:] + pairs[:start])[:num_pairs]


def write_pairs(folder, name, pairs, languages=("en", "de")):
    """Write both sides of sentence pairs, such as train.en and train.de; return their paths."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    paths = [folder / f"{name}.{language}" for language in languages]
    return tuple(map(write_lines, paths, sides))


def write_dataset(folder, splits):
    """Write the text of a dataset, as tfm prepare does; return the folder."""
    Manifest.draft(folder, Recipe(name="x", source="en", target="de")).save()
    for split, pairs in splits.items():
        write_pairs(folder, split, pairs)
    return folder


def write_shards(folder, pairs, sizes):
    """Write training text in shards of some numbers of pairs, as tfm prepare does."""
    assert len(pairs) == sum(sizes)
    records = []
    for number, size in enumerate(sizes, 1):
        text = TrainingText(name="1 x.en", kept=size, read=size, dropped={})
        name = shard_name("train", number)
        records.append(Shard(name=name, texts=(text,)))
        write_pairs(folder, name, pairs[:size])
        pairs = pairs[size:]
    manifest = Manifest.load(folder)
    manifest.record_shards({"train": records}, append=False)
    manifest.save()


def learn_bpe(folder, config, **options):
    """Learn the subword models of a dataset with all settings, not over those that it keeps."""
    with lock_dataset(folder):
        return subword_models.update(Manifest.load(folder), config, **options)


def binarize(folder, config, **options):
    """Encode the text of a dataset with all settings, not over those that it keeps."""
    with lock_dataset(folder):
        return token_ids.update(Manifest.load(folder), config, **options)


def write_tar(path, members):
    """Write an archive of {name: content}, compressed by gzip; return its path."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def contents(folder):
    """Return the bytes of all files below a folder, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def python(*arguments, **options):
    """Run Python in a new process, as a shell does; return how it ended."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "check": False, **options}
    return subprocess.run([sys.executable, *map(str, arguments)], text=True, **options)


def wait_until(happened, process=None, seconds=60):
    """Wait until a condition holds, while a process runs; return its value."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert process is None or process.poll() is None, process.errors
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def opened(folder, split="train"):
    """Open a split of a binarized dataset."""
    vocabulary = Vocabulary.load(folder)
    sizes = (len(vocabulary.source), len(vocabulary.target))
    return ParallelDataset(folder / "bin", split, vocab_sizes=sizes)


def decoded(folder, split="train"):
    """Return the sentence pairs of a split from their token ids."""
    vocabulary, dataset = Vocabulary.load(folder), opened(folder, split)
    source = vocabulary.source.decode(dataset.source)
    target = vocabulary.target.decode(dataset.target)
    return list(zip(source, target, strict=True))


@contextlib.contextmanager
def limited_files(num_bytes):
    """Limit the size of all files, including pytest's output, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def data_of(page):
    """Return what the script of a page with attention reads."""
    return json.loads(text_of(read_page(page).find(".//script[@id='data']")))


def edit_json(path, **changes):
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_model(folder, **changes):
    """Change settings in a model's config.json, and drop its checksum as a user would."""
    record = json.loads((folder / "config.json").read_text())
    record.pop("checksum", None)
    (folder / "config.json").write_text(json.dumps(record | changes))


def metrics_of(run_dir, kind=None):
    """Return the lines of metrics.jsonl, or those of a kind."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if kind in (None, line["kind"])]


def steps_of(run_dir):
    """Return the steps of the checkpoints of a run."""
    return [ModelFolder(path).info.step for path in checkpoints(run_dir)]


def same_weights(one, other):
    """Whether two model folders, or the newest checkpoints of two runs, have equal weights."""
    import torch

    folders = [(checkpoints(each) or [each])[-1] for each in (one, other)]
    first, second = (ModelFolder(folder).weights() for folder in folders)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def take(trainer, num_steps):
    """Return the reports of the next steps of a trainer."""
    batches = itertools.islice(trainer.batches(), num_steps)
    return [trainer.step(batch)[0].report() for batch in batches]


def weights_of(trainer):
    """Return copies of the weights that a trainer trains."""
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def parsed_command(arguments):
    """Parse a command without running it or looking for its files; return its parameters."""
    group = typer.main.get_command(app)
    with (
        pytest.MonkeyPatch.context() as patch,
        group.make_context("tfm", list(arguments)) as context,
    ):
        for check in ("_each", "_check_takes_files"):
            patch.setattr(f"tfm.disk.paths.{check}", lambda *paths: [])
        name, command, rest = group.resolve_command(context, list(arguments))
        with command.make_context(name, rest, parent=context) as parsed:
            return parsed.params
