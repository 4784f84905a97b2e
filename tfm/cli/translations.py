"""Commands that use a model: generate, score, attend, and quickstart, which shows all."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import typer

from tfm.cli.app import JSON, RUNS_ROOT, TRANSLATIONS_PANEL, app, say
from tfm.cli.options import Overrides, with_settings
from tfm.config import InferenceConfig, ScoreConfig, SearchConfig, settings_from
from tfm.distributed.layout import Layout
from tfm.errors import UsageError

if TYPE_CHECKING:
    from tfm.metrics.metric import MetricName

# The settings of a search that matter where nothing is searched for.
_FORCED_DECODING = ("length_penalty", "max_source_length", "max_tokens")
_TESTED: tuple["MetricName", ...] = ("bleu", "paper-bleu", "chrf", "ter")
# The metrics that a flag of `tfm score` is about: for others, it would have no effect.
_METRICS_ABOUT: dict[str, tuple["MetricName", ...]] = {
    "language": ("paper-bleu",),
    "lowercase": ("bleu", "paper-bleu", "chrf", "exact"),
    "tokenize": ("bleu",),
    "normalize_punctuation": ("paper-bleu",),
    "split_compounds": ("paper-bleu",),
    "chrf_word_order": ("chrf",),
    "bootstrap_samples": _TESTED,
    "bootstrap_seed": _TESTED,
}


@app.command(rich_help_panel=TRANSLATIONS_PANEL)
@with_settings(SearchConfig, InferenceConfig)
def generate(
    models: list[Path] | None = typer.Argument(
        None,
        metavar="MODEL",
        help="Model or run folders; several make an ensemble; the newest run if none.",
    ),
    input_: Path | None = typer.Option(
        None, "--input", help="File to translate, a sentence a line; - is what you type or pipe."
    ),
    split: Literal["test", "valid"] | None = typer.Option(
        None, help="Translate this split of the model's dataset."
    ),
    gpus: str | None = typer.Option(
        None,
        metavar="[N|auto]",
        help="Share the work among N GPUs of this machine; auto uses all GPUs.",
    ),
    processes: int | None = typer.Option(
        None, help="Share the work, and the cores, among N processes on the CPU."
    ),
    prefix: Path | None = typer.Option(
        None,
        help="File: what the translation of each line must start with; empty lines are free.",
    ),
    score_target: Path | None = typer.Option(
        None,
        help="File: a translation of each line. Print score, log probability (nats, end included), "
        "number of tokens and text of each, instead of searching for any.",
    ),
    per_token: bool = typer.Option(
        False,
        "--per-token",
        help="With --score-target: a line for each token, with the number of its line and its log "
        "probability.",
    ),
    json: bool = typer.Option(False, "--json", help="Print a JSON object a line, with scores."),
    *,
    overrides: Overrides,
) -> None:
    """Translate a pipe, a file or a test set: a line out for each line in, in order.

    Examples:
      tfm generate --beam 4 | tfm score

      echo "Two dogs play in the snow." | tfm generate runs/multi30k-en-de-tiny

      tfm generate --search sample --top-p 0.9 --n-best 5 --input in.en

      tfm generate --input in.en --score-target out.de

      tfm generate --gpus 8 < in.en > out.de
    """
    from tfm.cli.output import print_scored_targets, print_translations
    from tfm.distributed.launch import num_local_processes
    from tfm.stages.generate import generate as run_stage
    from tfm.stages.generate import plan_generation, score_targets

    settings = overrides.get("search", {})
    _check_forced(settings, is_forced=score_target is not None, per_token=per_token, json=json)
    inference = settings_from(InferenceConfig, overrides.get("inference", {}))
    layout = Layout.from_flags(gpus=gpus, processes=processes, device=inference.device)
    inference = replace(inference, device=layout.device or inference.device)
    num_processes = num_local_processes(layout)
    plan = plan_generation(
        models or [],
        input_path=input_,
        split=split,
        runs_dir=RUNS_ROOT,
        prefixes=prefix,
        targets=score_target,
    )
    config = SearchConfig.for_model(plan.search, settings)
    names = ", ".join(map(str, plan.models))
    if score_target is not None:
        say(f"generate: {names} scores {score_target} as translation of {plan.source}")
        scored = score_targets(plan, config, inference=inference, num_processes=num_processes)
        print_scored_targets(scored, as_json=json, per_token=per_token)
        return
    say(f"generate: {names} translates {plan.source}")
    translations = run_stage(
        plan, config, inference=inference, runs_dir=RUNS_ROOT, num_processes=num_processes
    )
    print_translations(translations, as_json=json, number=config.n_best > 1)


def _check_forced(
    settings: Mapping[str, object], *, is_forced: bool, per_token: bool, json: bool
) -> None:
    """Refuse what has no effect on forced decoding, or on anything else."""
    idle = [name for name in settings if name not in _FORCED_DECODING]
    if is_forced and idle:
        raise UsageError(
            f"without effect on --score-target: {', '.join(idle)}; it takes "
            f"{', '.join(_FORCED_DECODING)}"
        )
    if per_token and not is_forced:
        raise UsageError("--per-token needs the translations of a --score-target")
    if per_token and json:
        raise UsageError("--json has every token anyway: leave --per-token out")


@app.command(rich_help_panel=TRANSLATIONS_PANEL)
@with_settings(ScoreConfig)
def score(
    hypotheses: Path | None = typer.Option(None, help="Translations; standard input if not given."),
    reference: list[Path] | None = typer.Option(
        None, help="Reference; may be repeated; that of the last generate if not given."
    ),
    metric: list[str] | None = typer.Option(
        None,
        metavar="[bleu|paper-bleu|chrf|ter|exact|bracket-f1]",
        help="What to compute; may be repeated (default bleu and chrf; bracket-f1 for trees).",
    ),
    paper: bool = typer.Option(
        False,
        "--paper",
        help="Compute paper-bleu, BLEU as the paper did, beside sacreBLEU's, and say why they "
        "differ.",
    ),
    language: str | None = typer.Option(
        None,
        metavar="CODE",
        help="Target language, for --paper; the suffix of the reference if not given.",
    ),
    baseline: Path | None = typer.Option(
        None, help="Other translations of the same text, to test the difference."
    ),
    json: bool = JSON,
    *,
    overrides: Overrides,
) -> None:
    """Score translations, each score with a signature of all that decides it.

    Examples:
      tfm generate --beam 4 | tfm score --paper

      tfm score --hypotheses out.de --reference test.de --metric bleu --metric ter
    """
    from tfm.cli.output import print_scores
    from tfm.stages.score import DEFAULT_METRICS
    from tfm.stages.score import score as run_stage

    settings = overrides.get("score", {})
    if baseline is None and any(name.startswith("bootstrap") for name in settings):
        raise UsageError("the paired bootstrap needs a --baseline to compare with")
    chosen = cast("list[MetricName]", metric) if metric else list(DEFAULT_METRICS)
    if paper:
        chosen = ["bleu", "paper-bleu", *chosen]
    named = [*settings, *(["language"] if language else [])]
    for name in named:
        about = _METRICS_ABOUT[name]
        if not set(about) & set(chosen):
            raise UsageError(
                f"--{name.replace('_', '-')} is about {', '.join(about)}: add --metric {about[0]}"
            )
    result = run_stage(
        hypotheses,
        reference or [],
        metrics=chosen if metric or paper or named else None,
        config=settings_from(ScoreConfig, settings),
        baseline=baseline,
        language=language,
        runs_dir=RUNS_ROOT,
    )
    print_scores(result, as_json=json)


@app.command(rich_help_panel=TRANSLATIONS_PANEL)
def attend(
    model: str | None = typer.Argument(
        None,
        metavar="MODEL",
        help="Model or run folder; the newest run if only a sentence is given.",
    ),
    sentence: str | None = typer.Argument(
        None, metavar="SENTENCE", help="Source sentence, in quotes."
    ),
    target: str | None = typer.Option(
        None, help="Target sentence; the model's own translation if not given."
    ),
    out: list[Path] | None = typer.Option(
        None,
        metavar="FILE",
        help="A page (.html) or a figure (.png, .svg); may be repeated (default attention.html).",
    ),
    kind: Literal["encoder", "decoder", "cross"] = typer.Option(
        "cross", help="Attention to show; a page has all, and starts with it."
    ),
    layer: int | None = typer.Option(None, help="Show this layer only, counted from 1."),
    head: int | None = typer.Option(None, help="Show this head only, counted from 1."),
    beam: int | None = typer.Option(
        None, help=f"Beam of the translation (default {SearchConfig().beam_size})."
    ),
    device: Literal["auto", "cpu", "cuda"] = typer.Option("auto", help="Where to compute."),
) -> None:
    """Draw what a model attends to, in each layer and head, as it translates a sentence.

    Examples:
      tfm attend "Two dogs play in the snow."

      tfm attend runs/wmt14-en-de-base "The law." --target "Das Gesetz." --layer 5 --out law.svg
    """
    from tfm.stages.attend import attend as run_stage
    from tfm.storage.checkpoint.run_folder import newest_run

    if sentence is None:
        model, sentence = None, model
    if sentence is None or os.path.isdir(sentence):  # noqa: PTH112 - Path fails on long ones
        raise UsageError('attend needs a sentence, in quotes: "Two dogs play in the snow."')
    if beam is not None and target is not None:
        raise UsageError("--beam would have no effect on a given --target: leave one out")
    result = run_stage(
        newest_run(RUNS_ROOT) if model is None else Path(model),
        sentence,
        target=target,
        out=out or [],
        kind=kind,
        layer=layer,
        head=head,
        search=settings_from(SearchConfig, {} if beam is None else {"beam_size": beam}),
        device=device,
    )
    say(f"attend: {result.model_dir}: {sentence} → {result.target}")
    for path in result.paths:
        typer.echo(path)


@app.command()
def quickstart(
    out: Path = typer.Option(Path("quickstart"), help="Folder to work in."),
) -> None:
    """See all seven stages at work in minutes: no network, no GPU.

    Example: tfm quickstart
    """
    from tfm.stages.quickstart import quickstart as run_stage

    run_stage(out)
