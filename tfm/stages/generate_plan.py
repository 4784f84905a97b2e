"""The plan of tfm generate: input, models and output, checked before it starts."""

import io
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from tfm import __version__
from tfm.backends.selection import chosen_arithmetic
from tfm.config import InferenceConfig, SearchConfig, settings_to
from tfm.data.shortlist import FILE as SHORTLIST
from tfm.errors import DataError, UsageError
from tfm.folders.model_folder import ModelFolder, ensemble_info, fingerprints
from tfm.folders.model_info import ModelInfo
from tfm.folders.run_folder import newest_run
from tfm.inference.reader import count_lines
from tfm.inference.steps import Step
from tfm.search.constraints import read_phrases
from tfm.stages.partial_output import PartialOutput
from tfm.steps import StepsConfig
from tfm.storage.files import STDIN_FILE, is_same_file, sha256_of
from tfm.storage.paths import existing_file, new_file

STANDARD_INPUT = Path("-")
_DIGITS = 16  # of a checksum that is shown

HeldOutSplit = Literal["test", "valid"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text to translate."""

    path: Path | None  # None for standard input
    split: HeldOutSplit | None = None  # of the model's dataset; None for other text
    reference: Path | None = None  # None if unknown

    def __str__(self) -> str:
        return "standard input" if self.path is None else str(self.path)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Checked models and text."""

    models: Sequence[ModelFolder]
    source: Source
    prefixes: Path | None  # file with the beginning of each translation
    targets: Path | None  # file with the translations to score
    is_document: bool = False  # whether lines are paragraphs of several sentences

    @property
    def info(self) -> ModelInfo:
        """The description of the models."""
        return ensemble_info(self.models)


def plan_generation(
    models: Sequence[Path],
    *,
    input_path: Path | None,
    split: HeldOutSplit | None,
    runs_dir: Path,
    prefixes: Path | None = None,
    targets: Path | None = None,
    document: bool = False,
    output: Path | None = None,
) -> Generation:
    """Check models and text, with the newest run and standard input or test set as defaults.

    Takes the arguments and raises the errors of the command; `targets` has translations to score,
    and `runs_dir` is the folder of all runs.
    """
    if input_path is not None and split is not None:
        raise UsageError("--input and --split exclude each other: give one")
    if prefixes is not None and targets is not None:
        raise UsageError("--prefix has no effect on --score-target: leave one out")
    if sys.stdin is None and split is None and input_path in (None, STANDARD_INPUT):
        raise UsageError(
            "standard input is closed: give text with --input FILE, or translate the test set "
            "with --split test"
        )
    folders = [ModelFolder.open(path) for path in models or [newest_run(runs_dir)]]
    if input_path is not None:
        source = Source(path=None if input_path == STANDARD_INPUT else input_path)
    elif split is None and _standard_input_has_text():
        source = Source(path=None)
    else:
        split = split or "test"
        path, reference = folders[0].split(split, advice="give text with --input or a pipe")
        source = Source(path=path, split=split, reference=reference)
    paired = prefixes or targets
    for given in (source.path, paired):
        if given is not None and not given.exists():
            raise DataError(f"{given} does not exist: check its name")
    if paired is not None:
        _check_alignment(source, paired)
    plan = Generation(
        models=folders,
        source=source,
        prefixes=prefixes,
        targets=targets,
        is_document=document,
    )
    if output is not None:
        _check_output(plan, output)
    return plan


def check_search(plan: Generation, config: SearchConfig) -> None:
    """Check settings that depend on the model or on files before anything is loaded.

    Raises:
        UsageError: The file of banned text does not exist, or the model is a parser, which has
            neither constraints nor minimum Bayes risk decoding.
        DataError: The file of banned text is not usable.
    """
    if plan.info.task == "parsing" and (config.is_constrained):
        raise UsageError(
            f"{plan.models[0]} is a parser, whose trees have the words of their sentences: leave "
            "ban and no_repeat_ngram out"
        )
    if plan.info.task == "parsing" and config.mbr is not None:
        raise UsageError(f"mbr compares texts, but {plan.models[0]} writes trees: leave it out")
    if config.ban is not None:
        read_phrases(existing_file(Path(config.ban)))


def check_document(
    plan: Generation, config: SearchConfig, steps: StepsConfig, *, as_json: bool
) -> None:
    """Raise UsageError unless a plan is one to translate a document."""
    if plan.source.split is not None:
        raise UsageError(
            "--document needs a text: give one with --input FILE or a pipe; the splits of a "
            "dataset have one sentence per line"
        )
    if plan.info.task == "parsing":
        raise UsageError(f"{plan.models[0]} is a parser, which reads lines: leave out --document")
    flags = {
        "--prefix": plan.prefixes,
        "--score-target": plan.targets,
        "--align": steps.align,
        "--n-best": config.num_outputs > 1,
        "--json": as_json,
    }
    if unsuitable := [flag for flag, value in flags.items() if value]:
        raise UsageError(
            f"--document translates a text as a whole, but {unsuitable[0]} is about single lines: "
            "give one"
        )


def output_settings(
    plan: Generation,
    config: SearchConfig,
    inference: InferenceConfig,
    steps: Sequence[Step],
    *,
    form: str,
) -> dict[str, Any]:
    """Return what decides the output besides the text, so that only the same output is continued.

    These are the contents of files, the arithmetic that this machine chooses, and the settings of
    steps. `form` is the form of the output lines. Settings that only divide the work are left out.

    Raises:
        UsageError: This machine does not support the settings.
    """
    given = {"ban": config.ban and Path(config.ban)}
    given["shortlist"] = plan.models[0].path / SHORTLIST if config.shortlist else None
    search = {name: value for name, value in settings_to(config).items() if name != "max_tokens"}
    return {
        "version": __version__,
        "models": fingerprints(plan.models),
        "aligners": "",
        "form": form,
        "prefixes": plan.prefixes is not None,
        "targets": plan.targets is not None,
        **search,
        **{n: sha256_of(path)[:_DIGITS] for n, path in given.items() if path and path.is_file()},
        **chosen_arithmetic(inference),
    } | dict(chain(*(step.settings.items() for step in steps)))


def _standard_input_has_text() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except io.UnsupportedOperation:  # that of a notebook
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _check_output(plan: Generation, output: Path) -> None:
    """Raise UsageError if the output is a file that is read, or must not be replaced."""
    source = plan.source
    partial = PartialOutput(output, {}).path
    for path in (source.path or STDIN_FILE, source.reference, plan.prefixes, plan.targets):
        if path is not None and (is_same_file(output, path) or is_same_file(partial, path)):
            raise UsageError(
                f"{output} would be both read and overwritten: choose another name with --output"
            )
    new_file(output, flag="--output")


def _check_alignment(source: Source, paired_path: Path) -> None:
    """Raise DataError if two regular files differ in their numbers of lines."""
    if source.path is not None and source.path.is_file() and paired_path.is_file():
        num_lines, num_paired = count_lines(source.path), count_lines(paired_path)
        if num_lines != num_paired:
            raise DataError(
                f"{source} has {num_lines:,} lines, but {paired_path} has {num_paired:,}: "
                "line N of one must belong to line N of the other"
            )
