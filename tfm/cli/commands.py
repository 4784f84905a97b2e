"""The commands of tfm: flags in, one stage each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional, cast

import typer

from tfm import __version__
from tfm.cli.options import Given, with_settings
from tfm.config import (
    PRESETS,
    AverageConfig,
    BatchingConfig,
    BinarizeConfig,
    CleaningConfig,
    OptimizerConfig,
    RunConfig,
    ScoreConfig,
    SearchConfig,
    SubwordConfig,
    TrainingConfig,
    TransformerConfig,
    read_toml,
    run_config,
    run_toml,
    settings_from,
)
from tfm.errors import UsageError

if TYPE_CHECKING:
    from tfm.data.corpus import Recipe
    from tfm.stages.score import MetricName

_DATA_ROOT = Path("data")
_RUNS_ROOT = Path("runs")

_PREPARING = "Text"
_TRAINING = "Models"
_TRANSLATING = "Translations"

app = typer.Typer(
    help='Train, run and score the Transformer of "Attention Is All You Need".\n\n'
    "prepare → learn-bpe → binarize → train → average → generate → score: each command finds what "
    "the one before it left. Start with: tfm quickstart",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataArgument = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the type
    typer.Argument(metavar="DATA", help="Dataset folder; the newest below data/ if not given."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it again, even if unchanged.")]


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"tfm {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


@app.command(rich_help_panel=_PREPARING)
@with_settings(CleaningConfig, SubwordConfig, BinarizeConfig)
def prepare(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Name of a built-in recipe, or a TOML file."),
    ] = None,
    train: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Your own training text: source and target file."),
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Your own validation text, likewise."),
    ] = None,
    test: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Your own test text, likewise."),
    ] = None,
    languages: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="SRC TGT",
            help="Languages of your own text, if the suffixes of its files do not say so.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Dataset folder; data/RECIPE if not given.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="Folder or URL that serves each archive by its name.")
    ] = None,
    downloads: Annotated[
        Path | None,
        typer.Option(help="Folder to keep archives in; OUT/downloads if not given."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check archives against their checksums.")
    ] = True,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Stop before learn-bpe and binarize.")
    ] = False,
    force: ForceOption = False,
    *,
    given: Given,
) -> None:
    """Make a dataset: download, clean, split, learn subwords, binarize.

    Examples:
      tfm prepare wmt14-en-de

      tfm prepare --train my.en my.de --valid dev.en dev.de --test test.en test.de --out data/mine
    """
    from tfm.stages.prepare import prepare as run_stage

    if recipe is None and (mirror is not None or downloads is not None or not verify):
        raise UsageError("--mirror, --downloads and --no-verify need a recipe that downloads")
    chosen = _recipe(recipe, train=train, valid=valid, test=test, languages=languages, out=out)
    run_stage(
        chosen,
        out or _DATA_ROOT / chosen.name,
        mirror=mirror,
        verify=verify,
        downloads_dir=downloads,
        overrides=given,
        text_only=text_only,
        force=force,
    )


@app.command(rich_help_panel=_PREPARING)
@with_settings(SubwordConfig)
def learn_bpe(data: DataArgument = None, force: ForceOption = False, *, given: Given) -> None:
    """Learn the subword vocabulary of a dataset.

    Example: tfm learn-bpe data/mine --vocab-size 8000
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.learn_bpe import learn_bpe as run_stage

    folder = _dataset(data)
    recipe = Manifest.load(folder).settings("subword")
    run_stage(
        folder, settings_from(SubwordConfig, {**recipe, **given.get("subword", {})}), force=force
    )


@app.command(rich_help_panel=_PREPARING)
@with_settings(BinarizeConfig)
def binarize(data: DataArgument = None, force: ForceOption = False, *, given: Given) -> None:
    """Turn the text of a dataset into token ids on disk.

    Example: tfm binarize data/mine --jobs 8
    """
    from tfm.data.manifest import Manifest
    from tfm.stages.binarize import binarize as run_stage

    folder = _dataset(data)
    table = {**Manifest.load(folder).settings("binarize"), **given.get("binarize", {})}
    run_stage(folder, settings_from(BinarizeConfig, table), force=force)


@app.command(rich_help_panel=_TRAINING)
@with_settings(TransformerConfig, OptimizerConfig, BatchingConfig, TrainingConfig)
def train(
    data: DataArgument = None,
    run: Annotated[
        Path | None, typer.Option(help="Run folder; runs/DATA-ARCH if not given.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help=f"Preset: {', '.join(PRESETS)} (default {RunConfig().arch})."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; flags win over it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run would cost, and stop.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as TOML, and stop.")
    ] = False,
    *,
    given: Given,
) -> None:
    """Train a model; go on where the run folder stands, if it does.

    Examples:
      tfm train --arch tiny

      tfm train data/wmt14-en-de --arch big --max-steps 50000
    """
    file_table = {} if config is None else read_toml(config)
    settings = run_config(arch, file_table, given)
    if print_config:
        typer.echo(run_toml(settings), nl=False)
        return
    folder = _dataset(data)
    if dry_run:
        from tfm.cli.output import print_forecast
        from tfm.stages.forecast import forecast

        print_forecast(forecast(folder, settings))
        return
    from tfm.stages.train import train as run_stage

    result = run_stage(folder, run or _RUNS_ROOT / f"{folder.name}-{settings.arch}", settings)
    _say(f"next: tfm average {result.run_dir}")


@app.command(rich_help_panel=_TRAINING)
@with_settings(AverageConfig)
def average(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run folder; the newest below runs/ if not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Model folder; RUN/averaged if not given.")
    ] = None,
    *,
    given: Given,
) -> None:
    """Average the last checkpoints of a run, as the paper does.

    Example: tfm average runs/wmt14-en-de-base --last 5
    """
    from tfm.runtime.checkpoint import newest_run
    from tfm.stages.average import average as run_stage

    settings = settings_from(AverageConfig, given.get("average", {}))
    result = run_stage(run or newest_run(_RUNS_ROOT), settings, out_dir=out)
    steps = ", ".join(f"{step:,}" for step in result.steps)
    _say(f"average: {result.model_dir} is the mean of steps {steps}")


@app.command(rich_help_panel=_TRANSLATING)
@with_settings(SearchConfig)
def generate(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model or run folders; several make an ensemble; the newest run if none.",
        ),
    ] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="File to translate, a sentence a line.")
    ] = None,
    split: Annotated[
        Literal["test", "valid"] | None,
        typer.Option(help="Translate this split of the model's dataset."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")
    ] = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"], typer.Option(help="Arithmetic of matrix products.")
    ] = "auto",
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line, with scores.")
    ] = False,
    *,
    given: Given,
) -> None:
    """Translate a pipe, a file or a test set: a line out for each line in, in order.

    Examples:
      tfm generate --beam 4 | tfm score

      echo "Two dogs play in the snow." | tfm generate runs/multi30k-en-de-tiny
    """
    from tfm.cli.output import print_translations
    from tfm.stages.generate import generate as run_stage
    from tfm.stages.generate import plan_generation

    settings = settings_from(SearchConfig, given.get("search", {}))
    plan = plan_generation(models or [], input_path=input_, split=split, runs_dir=_RUNS_ROOT)
    _say(f"generate: {', '.join(map(str, plan.models))} translates {plan.source}")
    translations = run_stage(
        plan, settings, device=device, precision=precision, runs_dir=_RUNS_ROOT
    )
    print_translations(translations, as_json=json, number=settings.n_best > 1)


@app.command(rich_help_panel=_TRANSLATING)
@with_settings(ScoreConfig)
def score(
    hypotheses: Annotated[
        Path | None, typer.Option(help="Translations; standard input if not given.")
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(help="Reference; may be repeated; that of the last generate if not given."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[bleu|chrf|ter|exact]",
            help="What to compute; may be repeated (default bleu and chrf).",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Other translations of the same text, to test the difference."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    given: Given,
) -> None:
    """Score translations with sacreBLEU, each score with its signature.

    Examples:
      tfm generate --beam 4 | tfm score

      tfm score --hypotheses out.de --reference test.de --metric bleu --metric ter
    """
    from tfm.cli.output import print_scores
    from tfm.stages.score import DEFAULT_METRICS
    from tfm.stages.score import score as run_stage

    settings = given.get("score", {})
    if baseline is None and any(name.startswith("bootstrap") for name in settings):
        raise UsageError("the paired bootstrap needs a --baseline to compare with")
    result = run_stage(
        hypotheses,
        reference or [],
        metrics=cast("list[MetricName]", metric) if metric else DEFAULT_METRICS,
        config=settings_from(ScoreConfig, settings),
        baseline=baseline,
        runs_dir=_RUNS_ROOT,
    )
    print_scores(result, as_json=json)


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder to work in.")] = Path("quickstart"),
) -> None:
    """See all seven stages at work in minutes: no network, no GPU.

    Example: tfm quickstart
    """
    from tfm.stages.quickstart import quickstart as run_stage

    run_stage(out)


def _recipe(
    name: str | None,
    *,
    train: tuple[Path, Path] | None,
    valid: tuple[Path, Path] | None,
    test: tuple[Path, Path] | None,
    languages: tuple[str, str] | None,
    out: Path | None,
) -> "Recipe":
    from tfm.data.corpus import builtin_recipes, load_recipe, recipe_from_files

    if name is not None:
        if train or valid or test or languages:
            raise UsageError("a recipe names its own text: leave out --train, --valid and --test")
        return load_recipe(name)
    if train is None:
        raise UsageError(
            f"name a recipe ({', '.join(builtin_recipes())}, or a TOML file), or give your own "
            "text with --train SRC TGT"
        )
    if out is None:
        raise UsageError("say where your dataset goes, such as --out data/mine")
    source, target = languages or (None, None)
    return recipe_from_files(
        name=out.name,
        train=[train],
        valid=[valid] if valid else [],
        test=[test] if test else [],
        source=source,
        target=target,
    )


def _dataset(given: Path | None) -> Path:
    if given is not None:
        return given
    from tfm.data.manifest import newest_dataset

    folder = newest_dataset(_DATA_ROOT)
    _say(f"dataset: {folder}")
    return folder


def _say(message: str) -> None:
    typer.echo(message, err=True)
