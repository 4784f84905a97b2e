"""tfm check: a model → how it behaves on changed text, and whether that is good enough."""

from typing import TYPE_CHECKING, Annotated, Any

from tfm.commands.declaration import ExistingFile, ExistingFolder, Flag, NewFile, command
from tfm.config import InferenceConfig, SearchConfig
from tfm.config.schema import Rules
from tfm.disk.paths import RUNS_ROOT
from tfm.errors import UsageError
from tfm.steps import StepsConfig

if TYPE_CHECKING:
    from tfm.applications.check.suite import CheckResult

_OF_TEXTS = ("format", "document", "align", "align_reverse", "n_best", "mbr")


@command(StepsConfig, SearchConfig, InferenceConfig, without=_OF_TEXTS)
def check(
    model: Annotated[ExistingFolder, Flag("MODEL")] = None,
    *,
    source: Annotated[ExistingFile, Rules(needs=("reference",))] = None,
    reference: Annotated[ExistingFile, Rules(needs=("source",))] = None,
    lines: Annotated[int, Flag("N"), Rules(limits=(1, None))] = 100,
    baseline: Annotated[ExistingFolder, Flag("MODEL")] = None,
    page: NewFile = None,
    junit: NewFile = None,
    **settings: Any,
) -> "CheckResult":
    """Check how a model translates capitals, typos, numbers, addresses, long lines and the like.

    Each row changes the lines of a test set in one way, and compares the translations with those of
    the unchanged lines. The exit code is 1 if a row exceeds a threshold. Placeholders, addresses
    and the like are copied, but not with --no-protect.

    Examples::

        tfm check runs/multi30k-en-de-tiny
        tfm check runs/new --baseline runs/old --json

    Args:
        model: Model or run folder (default: the newest run).
        source: Lines to change (default: of the model's test or validation set).
        reference: Their references.
        lines: Use the first N lines.
        baseline: Model that may not be significantly better in a row.
        page: Write a web page with the worst translations.
        junit: Write a JUnit file for build servers.
        **settings: Settings of [steps], [search] and [inference].

    Raises:
        UsageError: A setting is wrong, or a model is a parser.
        CheckpointError: There is no such model, or it is damaged.
        DataError: There is no test set, or the files differ in their numbers of lines.
    """
    from tfm.applications.check import suite
    from tfm.commands.translator import Translator
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.run_folder import newest_run

    folders = [
        ModelFolder.open(each) for each in (model or newest_run(RUNS_ROOT), baseline) if each
    ]
    for each in folders:
        if each.info.task == "parsing" or each.info.purpose != folders[0].info.purpose:
            raise UsageError(
                f"{each} is for {each.info.purpose}: give models that translate the same languages"
            )
    files = None if source is None or reference is None else (source, reference)
    tag, pairs = suite.read_test_set(folders[0], files, lines)
    search = {"tag": tag, **settings["search"], **settings["steps"], "align": True}

    def translate_with(folder: ModelFolder) -> suite.Translate:
        translator = Translator.load(folder.path, **settings["inference"])
        positions = getattr(folder.info.run.model, "learned_positions", None)
        limit = {"max_source_length": positions - 1} if positions else {}  # for joined lines
        chosen = {**limit, **search}
        return lambda sources: [best for best, *_ in translator.search(sources, **chosen)]

    rows = suite.check_rows(
        translate_with(folders[0]),
        pairs,
        folders[0].info.source,
        baseline=None if baseline is None else translate_with(folders[1]),
        training=suite.training_target(folders[0]),
    )
    result = suite.CheckResult(
        model=str(folders[0]),
        baseline=None if baseline is None else str(folders[1]),
        num_lines=len(pairs),
        protects=not settings["steps"].get("no_protect"),
        passed=not any(row.failures for row in rows),
        rows=rows,
    )
    if page is not None:
        result.write_page(page, folders[0].info.target)
    if junit is not None:
        result.write_junit(junit)
    return result
