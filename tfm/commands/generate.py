"""tfm generate: text → translations, line by line."""

import inspect
import io
import json as json_format
import os
import shlex
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import ExistingFile, Flag, Hidden, command
from tfm.config import InferenceConfig, SearchConfig, Values, settings_from
from tfm.config.imported import imported
from tfm.config.schema import Rules
from tfm.disk.files import STDIN_FILE
from tfm.disk.paths import (
    PARTIAL,
    RUNS_ROOT,
    STANDARD_STREAM,
    OutputPath,
    check_outputs,
    existing_file_or_stream,
    existing_folder,
    where_instead,
)
from tfm.errors import DataError, UsageError, tfm_command
from tfm.folders.last_generation import LastGeneration
from tfm.reporting import printable, say
from tfm.steps import ModelSteps, StepsConfig
from tfm.text.formats import format_of
from tfm.text.languages import target_language

if TYPE_CHECKING:
    from tfm.translation.engines import EngineChoice
    from tfm.translation.generating import Generation
    from tfm.translation.partial_output import PartialOutput
    from tfm.translation.steps import Output, Step


def existing_models(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the paths; raise UsageError unless they are folders, and not text to translate."""
    text = " ".join(map(str, paths))
    # os.path, because methods of Path fail on long sentences.
    if " " in text and not any(map(os.path.exists, paths)):
        raise UsageError(
            "a model is a folder; to translate text, pipe it in: "
            f"echo {shlex.quote(text)} | tfm generate"
        )
    for path in paths:
        quoted = shlex.quote(str(path))
        if os.path.isfile(path):  # noqa: PTH113
            advice = (
                where_instead(path, "run", "model") or f"to translate it, give --input {quoted}"
            )
            raise UsageError(f"{path} is a file, not a model or run folder: {advice}")
    return existing_folder(paths)


def _file_or_stdout(path: Path | None) -> Path | None:
    """Return the path, but None if it is "-", standard output."""
    return None if path == STANDARD_STREAM else path


Models = Annotated[tuple[Path, ...], existing_models, Flag("MODEL")]


@command(StepsConfig, SearchConfig, InferenceConfig)
def generate(
    models: Models = (),
    *,
    input: Annotated[  # noqa: A002 - named as its flag
        Path | None, existing_file_or_stream, Rules(excludes=("split",))
    ] = None,
    output: Annotated[Path | None, _file_or_stdout, OutputPath(others=PARTIAL)] = None,
    split: Annotated[str | None, Flag("NAME")] = None,
    gpus: Annotated[str | None, Flag("[N|auto]")] = None,
    processes: Hidden[int | None] = None,
    prefix: Annotated[Hidden[ExistingFile], Rules(excludes=("score_target",))] = None,
    score_target: Hidden[ExistingFile] = None,
    per_token: Annotated[
        Hidden[bool], Rules(needs=("score_target",), excludes=("json", "align"))
    ] = False,
    step: Annotated[Hidden[tuple[str, ...]], Flag("MODULE:NAME")] = (),
    json: bool = False,
    **settings: Any,
) -> Iterator[str]:
    """Translate standard input, a file or a test set, line by line.

    The output has one line per input line, in the same order.

    Examples::

        tfm generate --beam 4 | tfm score
        echo "Two dogs play in the snow." | tfm generate runs/multi30k-en-de-tiny
        tfm generate --search sample --top-p 0.9 --n-best 5 --input in.en
        tfm generate --gpus 8 --input in.en --output out.de

    Args:
        models: Model or run folders (default: the newest run); several form an ensemble.
        input: File to translate; - is standard input.
        output: File to write when complete; repeat a stopped command to continue; - is stdout.
        split: Translate test, valid or a test set of the model's dataset.
        gpus: Divide the work among N GPUs of this machine; auto uses all GPUs.
        processes: Divide the work among N processes, which share the cores of a CPU, or the GPUs.
        prefix: File with the beginning of each translation, a line each; it may end within a word.
        score_target: Score the translations in a file: print score, log probability, tokens and
            text.
        per_token: With --score-target: print a line per token: line number, log probability, piece.
        step: Class of Python that is a step around all others; several may be given, the outermost
            first.
        json: Print one JSON object per line, with scores.
        **settings: Settings of [steps], [search] and [inference].

    Returns:
        The lines that the command prints, with their ends, as soon as they are ready. None if they
        go to `output`, which is complete when the function returns.

    Raises:
        UsageError: Arguments are wrong, contradict each other or have no effect, or the output
            would overwrite a file that is read, or that belongs to a dataset, model or run.
        CheckpointError: There is no such model, or it is damaged.
        DataError: A file does not exist, or differs from the text in its number of lines; or the
            dataset of the model now has other languages.
    """
    chosen = settings_from(StepsConfig, settings["steps"])
    inference, num_processes = where_to_compute(gpus, processes, settings["inference"])
    from tfm.search.constraints import ban_file
    from tfm.translation.engines import choose_engine
    from tfm.translation.generating import generate_lines, hash_of_inputs

    plan = plan_generation(
        models,
        input_path=input,
        split=split,
        prefixes=prefix,
        targets=score_target,
        output=output,
        is_document=chosen.has_paragraphs,
        is_whole=chosen.has_markup,
    )
    if isinstance(tag := settings["search"].get("tag"), str):
        plan.models[0].vocabulary.require_tag(tag)
    merged = SearchConfig.for_model if score_target is None else SearchConfig.for_targets
    config = merged(plan.info.search, settings["search"])
    _check_search(plan, config, chosen)
    if config.ban is not None:
        config = replace(config, ban=ban_file(config.ban))
    form = "text" if config.num_outputs == 1 else "numbered text"
    if chosen.has_paragraphs:
        form = "document"
    elif json:
        form = "json" if score_target is None else "target as json"
    elif score_target is not None:
        form = "tokens of target" if per_token else "target"
    model = ModelSteps(info=plan.info, folder=plan.models[0], device=inference.device)
    own = [_own_step(name) for name in step]
    steps = [*own, *model.around(config, chosen, scores_given=score_target is not None)]
    engine = choose_engine(plan.models, config, inference)
    _say_plan(plan, is_default_text=split is None and plan.split is not None)
    if engine.engine != "torch":
        say(f"generate: computes with {engine}")
    if score_target is None:
        _record(plan, target_language(plan.info.target, config.tag))
    work: dict[str, Any] = {"inference": inference, "num_processes": num_processes, "steps": steps}
    if output is None:
        return _lines(generate_lines(plan, config, **work), form, engine=engine)
    code = [Path(inspect.getfile(type(each))) for each in own]
    inputs = hash_of_inputs(plan, config, inference, chosen, form=form, texts=code)
    with _continued(output, inputs, engine=str(engine)) as partial:
        found = generate_lines(plan, config, output=partial, **work)
        partial.stream.writelines(_lines(found, form, partial.num_lines, engine=engine))
    if form == "text" and plan.references:
        say(f"next: {tfm_command('score', '--hypotheses', output)}")
    return iter(())


def _own_step(name: str) -> "Step":
    """Return a step of the user."""
    from tfm.translation.steps import Step

    kind = imported(name, "--step")
    if not inspect.isclass(kind) or not issubclass(kind, Step):
        raise UsageError(
            f"--step is {name}, but must be a class that extends {Step.__module__}.Step"
        )
    return kind()


def plan_generation(
    models: Sequence[Path],
    *,
    input_path: Path | None = None,
    split: str | None = None,
    prefixes: Path | None = None,
    targets: Path | None = None,
    output: Path | None = None,
    is_document: bool = False,
    is_whole: bool = False,
) -> "Generation":
    """Check models and text, with the newest run and standard input or test set as defaults."""
    if sys.stdin is None and split is None and input_path in (None, STANDARD_STREAM):
        raise UsageError(
            "standard input is closed: give text with --input FILE, or translate the test set "
            "with --split test"
        )
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.run_folder import newest_run
    from tfm.translation.generating import Generation
    from tfm.translation.reader import count_lines

    folders = [ModelFolder.open(path) for path in models or [newest_run(RUNS_ROOT)]]
    path = None if input_path == STANDARD_STREAM else input_path
    references: list[Path] = []
    if input_path is None and (split is not None or not _standard_input_has_text()):
        split = split or "test"
        path, *references = folders[0].split(split, advice="give text with --input or a pipe")
    plan = Generation(
        models=folders,
        source=path,
        split=split,
        references=references,
        prefixes=prefixes,
        targets=targets,
        is_document=is_document,
        is_whole=is_whole,
    )
    paired = prefixes or targets
    for given in (path, paired):
        if given is not None and not given.exists():
            raise DataError(f"{given} does not exist: check its name")
    if path is not None and paired is not None and path.is_file() and paired.is_file():
        num_lines, num_paired = map(count_lines, (path, paired), plan.parts)
        if num_lines != num_paired:
            raise DataError(
                f"{path} has {num_lines:,} lines, but {paired} has {num_paired:,}: line N of one "
                "must belong to line N of the other"
            )
    if output is not None:
        written = OutputPath(path=output, flag="--output", others=PARTIAL)
        check_outputs([written], read=[path or STDIN_FILE, *references])
    return plan


def _standard_input_has_text() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except io.UnsupportedOperation:  # in a notebook
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _check_search(plan: "Generation", config: SearchConfig, steps: StepsConfig) -> None:
    """Check what depends on the model, the text or files before anything is loaded."""
    if not steps.has_paragraphs:
        return
    flag = "--document" if steps.document else f"--format {steps.format}"
    if plan.split is not None:
        raise UsageError(
            f"{flag} needs a text: give one with --input FILE or a pipe; the splits of a dataset "
            "have one sentence per line"
        )
    if plan.info.task == "parsing":
        raise UsageError(f"{plan.models[0]} is a parser, which reads lines: leave out {flag}")
    if config.num_outputs > 1:
        raise UsageError(f"{flag} translates a text as a whole: leave out --n-best")
    kind = format_of(plan.source.name) if plan.source else None
    # Names of HTML and XML may say either: XHTML is both.
    if kind and kind.flag not in ("", steps.format) and "srt" in (kind.flag, steps.format):
        raise UsageError(f"{plan.text} is {kind.name}: give --format {kind.flag}, not {flag}")


def where_to_compute(
    gpus: str | None, processes: int | None, settings: Values
) -> tuple[InferenceConfig, int | None]:
    """Return device and arithmetic, and the number of processes, None to choose it."""
    inference = settings_from(InferenceConfig, settings)
    if gpus is None and processes is None:
        return inference, None
    from tfm.machine.processes import Placement

    placement = Placement.from_flags(
        gpus=gpus, processes=processes, device=inference.device, shares_gpus=True
    )
    inference = replace(inference, device=placement.device or inference.device)
    return inference, placement.num_local_processes()


def _say_plan(plan: "Generation", *, is_default_text: bool) -> None:
    """Print which models translate which text, or score which translations of it."""
    names, text = ", ".join(map(str, plan.models)), plan.text
    if len(plan.models) > 1:
        names = f"an ensemble, which averages the probabilities of {names},"
    if is_default_text:
        names = f"no input was given (--input or a pipe), so {names}"
        text = f"the test set {text}"
    if plan.targets is not None:
        say(f"generate: {names} scores {plan.targets} as translation of {text}")
    else:
        say(f"generate: {names} translates {text}")


def _record(plan: "Generation", language: str) -> None:
    """Record what is translated, for `tfm score` at the other end of a pipe."""
    if plan.references or RUNS_ROOT.is_dir():  # else there is no older record to replace
        LastGeneration(
            model=tuple(map(str, plan.models)),
            source=plan.text,
            references=tuple(map(str, plan.references)),
            source_language=plan.info.source,
            language=language,
        ).save()


@contextmanager
def _continued(path: Path, inputs: str, *, engine: str) -> "Iterator[PartialOutput]":
    """Open an output file, after the lines that an interrupted call has written to it."""
    from tfm.translation.partial_output import PartialOutput

    with PartialOutput(path, inputs, engine=engine) as output:
        if num_before := output.num_lines:
            say(f"generate: continuing {output.path} at line {num_before + 1:,}")
        try:
            yield output
        except BaseException:
            if output.num_lines > num_before:
                say(f"generate: {output.path} is kept: the same command continues it")
            raise


def _lines(
    results: "Iterator[tuple[str, list[Output]]]",
    form: str,
    num_before: int = 0,
    *,
    engine: "EngineChoice",
) -> Iterator[str]:
    """Yield the lines of the output in a form, each as soon as it is translated.

    Tabs separate columns: line number and score of numbered translations; score, log probability,
    number of tokens and text of a target; line number, log probability and piece of its tokens. A
    word alignment is in a last column.
    """
    for number, (line, found) in enumerate(results, start=num_before + 1):
        best = found[0]
        tokens = [*zip(best.pieces, best.piece_log_probs or (), strict=False)]
        match form:
            case "document":
                yield best.text
            case "text" | "numbered text":
                for each in found:
                    start = "" if form == "text" else f"{number}\t{each.score:.4f}\t"
                    yield f"{start}{each.text}{_alignment(each)}\n"
            case "json":
                translations = list(map(_given, found))
                yield _json(source=line, translations=translations, engine=engine.engine)
            case "target as json":
                pieces = [{"piece": piece, "log_prob": value} for piece, value in tokens]
                numbers = {"score": best.score, "log_prob": best.log_prob, "tokens": pieces}
                aligned = {} if best.alignment is None else {"alignment": best.alignment}
                numbers["engine"] = engine.engine
                yield _json(source=line, target=best.text, **numbers, **aligned)
            case "target":
                start = f"{best.score:.4f}\t{best.log_prob:.4f}\t{len(tokens)}\t"
                yield f"{start}{best.text}{_alignment(best)}\n"
            case "tokens of target":
                for piece, value in tokens:
                    yield f"{number}\t{value:.4f}\t{printable(piece)}\n"


def _given(output: "Output") -> dict[str, Any]:
    """Return what is known of an output: `proven` and the like only if they were requested."""
    left_out = ("pieces", "kept", "parts")
    return {k: v for k, v in vars(output).items() if v is not None and k not in left_out}


def _json(**record: Any) -> str:
    return json_format.dumps(record, ensure_ascii=False) + "\n"


def _alignment(output: "Output") -> str:
    """Return a last column with a word alignment in Pharaoh's format; nothing without one."""
    if output.alignment is None:
        return ""
    return "\t" + " ".join(f"{source}-{target}" for source, target in output.alignment)
