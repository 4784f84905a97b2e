"""The command that serves models to other programs."""

from pathlib import Path

from tfm.cli.app import TRANSLATIONS_PANEL, app, argument
from tfm.cli.help import Command
from tfm.cli.options import Overrides, with_settings
from tfm.cli.unknown_names import existing_models
from tfm.config import InferenceConfig, SearchConfig, ServeConfig, settings_from
from tfm.errors import UsageError, install_command
from tfm.storage.paths import RUNS_ROOT

# Each request decides the first two; the others belong to searches other than beam search.
_WITHOUT = ("n_best", "tag", "search", "mbr", "temperature", "top_k", "top_p", "seed", "node_limit")


@app.command(rich_help_panel=TRANSLATIONS_PANEL, cls=Command)
@with_settings(ServeConfig, SearchConfig, InferenceConfig, help_all=True, without=_WITHOUT)
def serve(
    models: list[Path] | None = argument(
        callback=existing_models,
        metavar="MODEL",
        help="Model or run folders (default: the newest run), one for each pair of languages.",
    ),
    *,
    overrides: Overrides,
) -> None:
    """Translate over HTTP (pip install "tfm-mt[serve]").

    The protocol is that of LibreTranslate, so its clients work. Requests that arrive together are
    translated together. SIGTERM stops the server after it has answered all of them.

    \b
    Examples:
      tfm serve
      tfm serve runs/multi30k-en-de-small runs/multi30k-de-en-small --port 8080
    """
    try:
        from tfm.stages.serve.server import serve as run_stage
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11", "python_multipart"):
            raise
        raise UsageError(
            f"tfm serve needs {error.name}, which is not installed: run {install_command('serve')}"
        ) from error
    from tfm.folders.run_folder import newest_run

    run_stage(
        models or [newest_run(RUNS_ROOT)],
        overrides.get("search", {}),
        config=settings_from(ServeConfig, overrides.get("serve", {})),
        inference=settings_from(InferenceConfig, overrides.get("inference", {})),
    )
