"""What the runners share: settings, text, and the clock. Needs Python's own library alone.

A runner translates a text with one library and leaves one JSON object. It runs in that library's
own environment, on what `compare.py` wrote.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # as tfm numbers them

# Sentences that are translated before the clock runs.
_UNTIMED = 100


class Sentence(NamedTuple):
    """A sentence to translate, in every form that a library may want.

    Attributes:
        text: Plain text.
        pieces: Its subword pieces, without EOS.
        ids: Their token ids, without EOS.
    """

    text: str
    pieces: list[str]
    ids: list[int]


# Sentences to the token ids of their translations, in the same order, without EOS.
Translate = Callable[[Sequence[Sentence]], list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to translate, and how.

    Attributes:
        setup: Folder of what `compare.py` wrote.
        out: The JSON to write.
        model: Folder of tfm's model.
        device: "cpu" or "cuda".
        precision: Arithmetic.
        beam_size: Hypotheses that are kept.
        length_penalty: α of the library's own length penalty; 0 is the same for all.
        max_length: Most tokens of a translation.
        processes: Batches that are translated at once.
        threads: Threads for each of them.
        batch_size: Size of a batch; 0 is the library's default.
        batch_type: Whether that is in "examples" or in "tokens".
        num_sentences: How many of the text to translate.
        copies: How many times over.
        one_at_a_time: Whether each sentence is by itself, and timed so.
    """

    setup: Path
    out: Path
    model: Path
    device: str
    precision: str
    beam_size: int
    length_penalty: float
    max_length: int
    processes: int
    threads: int
    batch_size: int
    batch_type: str
    num_sentences: int
    copies: int
    one_at_a_time: bool


def read_settings(description: str | None) -> Settings:
    """The command line of a runner: a flag for each setting."""
    parser = argparse.ArgumentParser(description=description)
    for name, kind in Settings.__annotations__.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=json.loads if kind is bool else kind, required=True)
    return Settings(**vars(parser.parse_args()))


def measure(settings: Settings, translate: Translate, *, version: str) -> None:
    """Translate, time and write what came out.

    Args:
        settings: What to translate.
        translate: Does it, with a model that is loaded.
        version: The library and its version.
    """
    stored = json.loads((settings.setup / "text.json").read_text())
    sentences = [Sentence(*each) for each in stored][: settings.num_sentences]
    parts = [sentences * settings.copies]
    if settings.one_at_a_time:
        parts = [[each] for each in sentences]
        for part in parts[: _UNTIMED // 5]:
            translate(part)
    else:
        translate(sentences[:_UNTIMED])
    translations, seconds = [], []
    for part in parts:
        started = time.perf_counter()
        translations += translate(part)
        seconds.append(time.perf_counter() - started)
    num_tokens = [len(ids) + 1 for ids in translations]  # ends counted
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
    """Translate batches of sentences that are alike in length, the longest first.

    Args:
        sentences: What to translate.
        batch_size: Sentences of a batch.
        translate: Translates a batch: token ids to token ids, both without EOS.
    """
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index].ids))
    found: list[list[int]] = [[]] * len(sentences)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        outputs = translate([sentences[index].ids for index in indices])
        for index, output in zip(indices, outputs, strict=True):
            found[index] = output
    return found


def until_end(ids: Sequence[int]) -> list[int]:
    """The token ids before the first EOS."""
    return list(ids[: ids.index(EOS)] if EOS in ids else ids)


def _peak_memory_mb(process: Path) -> float:
    """The most memory that a process had, and those it started have had, as Linux knows it."""
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    children = [
        child
        for listing in process.glob("task/*/children")
        for child in listing.read_text().split()
    ]
    return peak + sum(_peak_memory_mb(Path("/proc") / child) for child in children)
