"""Settings, text and timing of all runners, with Python's standard library only.

A runner translates a text with one library, in the environment of that library, and writes one JSON
object. Its input is written by `compare.py`.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # tfm's ids

# The number of sentences that are translated to warm up.
_NUM_UNTIMED = 100


class Sentence(NamedTuple):
    """A sentence to translate, as text, subword pieces and token ids, both without EOS."""

    text: str
    pieces: list[str]
    ids: list[int]


# Returns the token ids of the translations, in the order of the sentences, without EOS.
Translate = Callable[[Sequence[Sentence]], list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a runner, each a flag of its command line."""

    setup: Path  # folder with the files of `compare.py`
    out: Path  # JSON to write
    model: Path  # tfm's model folder
    device: str  # "cpu" or "cuda"
    precision: str
    beam_size: int
    length_penalty: float  # α of the library's own formula; 0 means the same to all
    max_length: int  # maximum number of tokens of a translation
    processes: int  # batches that are translated in parallel
    threads: int  # per process
    batch_size: int  # 0 is the library's default
    batch_type: str  # unit of batch_size: "examples" or "tokens"
    num_sentences: int  # from the beginning of the text
    copies: int  # times that the text is translated
    one_at_a_time: bool  # translate and time single sentences


def read_settings(description: str | None) -> Settings:
    """Parse the command line of a runner."""
    parser = argparse.ArgumentParser(description=description)
    for name, kind in Settings.__annotations__.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=json.loads if kind is bool else kind, required=True)
    return Settings(**vars(parser.parse_args()))


def measure(settings: Settings, translate: Translate, *, version: str) -> None:
    """Translate the text, measure the time and write the result.

    Args:
        settings: What to translate.
        translate: Translates sentences with a loaded model.
        version: The library and its version.
    """
    stored = json.loads((settings.setup / "text.json").read_text())
    sentences = [Sentence(*each) for each in stored][: settings.num_sentences]
    calls = [sentences * settings.copies]
    if settings.one_at_a_time:
        calls = [[sentence] for sentence in sentences]
        for call in calls[: _NUM_UNTIMED // 5]:
            translate(call)
    else:
        translate(sentences[:_NUM_UNTIMED])
    translations, seconds = [], []
    for call in calls:
        started = time.perf_counter()
        translations += translate(call)
        seconds.append(time.perf_counter() - started)
    num_tokens = [len(ids) + 1 for ids in translations]  # with EOS
    results = {
        "version": version,
        "settings": {name: str(value) for name, value in asdict(settings).items()},
        "seconds": seconds,
        "num_tokens": num_tokens,
        "tokens_per_second": sum(num_tokens) / sum(seconds),
        "peak_memory_mb": _peak_memory_mb(Path("/proc/self")),
        "translations": translations[: len(sentences)],
    }
    settings.out.write_text(json.dumps(results) + "\n")


def in_batches(
    sentences: Sequence[Sentence],
    batch_size: int,
    translate: Callable[[list[list[int]]], list[list[int]]],
) -> list[list[int]]:
    """Translate in batches of sentences of similar length, the longest first.

    Args:
        sentences: The sentences.
        batch_size: The number of sentences in a batch.
        translate: Translates a batch of token ids without EOS.
    """
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index].ids))
    translations: list[list[int]] = [[]] * len(sentences)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        outputs = translate([sentences[index].ids for index in indices])
        for index, output in zip(indices, outputs, strict=True):
            translations[index] = output
    return translations


def until_end(ids: Sequence[int]) -> list[int]:
    """Return the token ids before the first EOS."""
    return list(ids[: ids.index(EOS)] if EOS in ids else ids)


def _peak_memory_mb(process: Path) -> float:
    """Return the peak memory of a process and its children, from Linux's /proc."""
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    children: list[str] = []
    for listing in process.glob("task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            children += listing.read_text().split()
    return peak + sum(_peak_memory_mb(Path("/proc") / child) for child in children)
