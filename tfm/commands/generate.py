"""tfm generate: text → translations, line by line."""

import json as json_format
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import ExistingFile, Flag, Hidden, command
from tfm.config import InferenceConfig, SearchConfig, Table, settings_from
from tfm.disk.paths import (
    PARTIAL,
    RUNS_ROOT,
    STANDARD_STREAM,
    OutputPath,
    existing_file_or_stream,
    existing_folder,
    where_instead,
)
from tfm.errors import UsageError, tfm_command
from tfm.reporting import printable, say
from tfm.steps import ModelSteps, StepsConfig

if TYPE_CHECKING:
    from tfm.stages.generate import Generation
    from tfm.stages.partial_output import PartialOutput
    from tfm.translation.steps import Output


def existing_models(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the paths; raise UsageError unless they are folders, and not text to translate."""
    for path in paths:
        quoted = shlex.quote(str(path))
        # os.path, because methods of Path fail on long sentences.
        if " " in str(path) and not os.path.exists(path):  # noqa: PTH110
            raise UsageError(
                f"a model is a folder; to translate text, pipe it in: echo {quoted} | tfm generate"
            )
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
    input: Annotated[Path | None, existing_file_or_stream] = None,  # noqa: A002 - named as its flag
    output: Annotated[Path | None, _file_or_stdout, OutputPath(others=PARTIAL)] = None,
    split: Annotated[str | None, Flag("NAME")] = None,
    gpus: Annotated[str | None, Flag("[N|auto]")] = None,
    processes: Hidden[int | None] = None,
    prefix: Hidden[ExistingFile] = None,
    score_target: Hidden[ExistingFile] = None,
    per_token: Hidden[bool] = False,
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
        processes: Divide the work and the cores among N processes on the CPU.
        prefix: File with the beginning of each translation, a line each; it may end within a word.
        score_target: Score the translations in a file: print score, log probability, tokens and
            text.
        per_token: With --score-target: print a line per token: line number, log probability, piece.
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
    steps_config = settings_from(StepsConfig, settings["steps"])
    mistakes = {
        "--per-token has no effect without --score-target": per_token and score_target is None,
        "--json prints every token anyway: leave --per-token out": per_token and json,
        "--align adds a column for each target, --per-token lines: give one": (
            per_token and steps_config.align
        ),
    }
    for mistake, is_made in mistakes.items():
        if is_made:
            raise UsageError(mistake)
    inference, num_processes = where_to_compute(gpus, processes, settings["inference"])
    from tfm.stages import generate as stage

    plan = stage.plan_generation(
        models,
        input_path=input,
        split=split,
        runs_dir=RUNS_ROOT,
        prefixes=prefix,
        targets=score_target,
        document=steps_config.has_paragraphs,
        whole=steps_config.has_markup,
        output=output,
    )
    if isinstance(tag := settings["search"].get("tag"), str) and not steps_config.align:
        plan.models[0].vocabulary.require_tag(tag)
    merged = SearchConfig.for_model if score_target is None else SearchConfig.for_targets
    config = merged(plan.info.search, settings["search"])
    if steps_config.align and config.tag is not None:
        raise UsageError(
            "--align cannot go with --tag: write the tag at the beginning of each line instead"
        )
    if steps_config.has_paragraphs:
        stage.check_document(plan, config, steps_config, as_json=json)
    config = stage.checked_search(plan, config)
    form = "lines per token" if per_token else "json" if json else "text"
    model = ModelSteps(info=plan.info, folder=plan.models[0], device=inference.device)
    steps = model.around(config, steps_config, scores_given=score_target is not None)
    _say_plan(plan, is_default_text=split is None and plan.source.split is not None)
    work: dict[str, Any] = {"inference": inference, "num_processes": num_processes, "steps": steps}
    if output is None:
        return _lines(plan, config, form, work)
    full_form = f"numbered {form}" if config.num_outputs > 1 else form
    inputs = stage.hash_of_inputs(plan, config, inference, steps_config, form=full_form)
    with _continued(output, inputs) as partial:
        partial.stream.writelines(_lines(plan, config, form, work, partial))
    if score_target is None and plan.source.references and config.num_outputs == 1:
        say(f"next: {tfm_command('score', '--hypotheses', output)}")
    return iter(())


def where_to_compute(
    gpus: str | None, processes: int | None, settings: Table
) -> tuple[InferenceConfig, int | None]:
    """Return device and arithmetic, and the number of processes, None to choose it."""
    inference = settings_from(InferenceConfig, settings)
    if gpus is None and processes is None:
        return inference, None
    from tfm.machine.processes import Placement

    placement = Placement.from_flags(gpus=gpus, processes=processes, device=inference.device)
    inference = replace(inference, device=placement.device or inference.device)
    return inference, placement.num_local_processes()


def _say_plan(plan: "Generation", *, is_default_text: bool) -> None:
    """Print which models translate which text, or score which translations of it."""
    names, text = ", ".join(map(str, plan.models)), str(plan.source)
    ending = "s" if len(plan.models) == 1 else ""  # of the verb
    if is_default_text:
        names = f"no input was given (--input or a pipe), so {names}"
        text = f"the test set {text}"
    if plan.targets is not None:
        say(f"generate: {names} score{ending} {plan.targets} as translation of {text}")
    else:
        say(f"generate: {names} translate{ending} {text}")


@contextmanager
def _continued(path: Path, inputs: str) -> "Iterator[PartialOutput]":
    """Open an output file, after the lines that an interrupted call has written to it."""
    from tfm.stages.partial_output import PartialOutput

    with PartialOutput(path, inputs) as output:
        if num_before := output.num_lines:
            say(f"generate: continuing {output.path} at line {num_before + 1:,}")
        try:
            yield output
        except BaseException:
            if output.num_lines > num_before:
                say(f"generate: {output.path} is kept: the same command continues it")
            raise


def _lines(
    plan: "Generation",
    config: SearchConfig,
    form: str,
    work: Table,
    output: "PartialOutput | None" = None,
) -> Iterator[str]:
    """Yield the lines of the output in a form, each as soon as it is translated."""
    from tfm.stages import generate as stage

    first = 1 if output is None else output.num_lines + 1
    found = stage.generate(plan, config, output=output, **work)
    if plan.targets is not None:
        return _target_lines(found, form, first)
    if plan.is_document:
        return (best.text for _, [best, *_] in found)
    return _translation_lines(found, form, first, are_numbered=config.num_outputs > 1)


def _translation_lines(
    translations: "Iterable[tuple[str, list[Output]]]",
    form: str,
    first_line: int,
    *,
    are_numbered: bool,
) -> Iterator[str]:
    """Yield the translations of each line, best first.

    In text, line number and score are before each translation if they `are_numbered`, and a word
    alignment follows it, separated by tabs.
    """
    for index, (line, found) in enumerate(translations, start=first_line):
        if form == "json":
            # `proven`, `utility` and `alignment` are None unless they were requested.
            yield _json({"source": line, "translations": list(map(_record, found))})
            continue
        for each in found:
            text = f"{index}\t{each.score:.4f}\t{each.text}" if are_numbered else each.text
            yield f"{text}{_column(each.alignment)}\n"


def _record(output: "Output") -> dict[str, Any]:
    left_out = ("pieces", "kept", "parts")
    return {k: v for k, v in vars(output).items() if v is not None and k not in left_out}


def _target_lines(
    scored: "Iterable[tuple[str, list[Output]]]", form: str, first_line: int
) -> Iterator[str]:
    """Yield the probability of each line's target.

    In text, a line for each target has score, log probability, number of tokens and text. In the
    form "lines per token", a line for each token has line number, log probability and piece. Tabs
    separate them, and a word alignment from the text.
    """
    for index, (line, [target]) in enumerate(scored, start=first_line):
        tokens = list(zip(target.pieces, target.piece_log_probs or (), strict=True))
        if form == "json":
            record = {
                "source": line,
                "target": target.text,
                "score": target.score,
                "log_prob": target.log_prob,
                "tokens": [{"piece": piece, "log_prob": value} for piece, value in tokens],
            }
            if target.alignment is not None:
                record["alignment"] = target.alignment
            yield _json(record)
        elif form == "lines per token":
            for piece, value in tokens:
                yield f"{index}\t{value:.4f}\t{printable(piece)}\n"
        else:
            numbers = f"{target.score:.4f}\t{target.log_prob:.4f}\t{len(tokens)}"
            yield f"{numbers}\t{target.text}{_column(target.alignment)}\n"


def _json(record: Any) -> str:
    return json_format.dumps(record, ensure_ascii=False) + "\n"


def _column(alignment: tuple[tuple[int, int], ...] | None) -> str:
    """Return a last column with a word alignment in Pharaoh's format; nothing without one."""
    if alignment is None:
        return ""
    return "\t" + " ".join(f"{source}-{target}" for source, target in alignment)
