"""tfm serve: models → an HTTP server, until it is stopped."""

from typing import Any

from tfm.applications.serve.settings import ServeConfig
from tfm.commands.declaration import command
from tfm.commands.generate import Models
from tfm.config import InferenceConfig, SearchConfig, settings_from
from tfm.disk.paths import RUNS_ROOT
from tfm.errors import UsageError, install_command
from tfm.steps import StepsConfig

_OF_REQUESTS = ("n_best", "tag", "format", "document", "align", "align_reverse")
_OF_OTHER_SEARCHES = (
    "search",
    "mbr",
    "metric_command",
    "temperature",
    "top_k",
    "top_p",
    "epsilon",
    "seed",
    "node_limit",
)


@command(
    ServeConfig,
    StepsConfig,
    SearchConfig,
    InferenceConfig,
    without=(*_OF_REQUESTS, *_OF_OTHER_SEARCHES),
)
def serve(models: Models = (), **settings: Any) -> None:
    """Translate over HTTP (pip install ".[serve]").

    The protocol is LibreTranslate's, so its clients work. Requests that arrive together are
    translated together. SIGTERM stops the server after it has answered all requests.

    Examples::

        tfm serve
        tfm serve runs/multi30k-en-de-small runs/multi30k-de-en-small --port 8080

    Args:
        models: Model or run folders (default: the newest run), one per direction of translation.
        **settings: Settings of [serve], and of [steps], [search] and [inference] but for what
            requests decide.

    Raises:
        UsageError: Models are for the same languages, or a setting is wrong.
        CheckpointError: A folder has no valid model.
        TfmError: The address is not free.
    """
    try:
        from tfm.applications.serve.server import serve as run_server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11", "python_multipart"):
            raise
        raise UsageError(
            f"tfm serve needs {error.name}, which is not installed: run {install_command('serve')}"
        ) from error
    from tfm.folders.run_folder import newest_run

    run_server(
        models or [newest_run(RUNS_ROOT)],
        settings["search"],
        config=settings_from(ServeConfig, settings["serve"]),
        inference=settings_from(InferenceConfig, settings["inference"]),
        steps=settings_from(StepsConfig, settings["steps"]),
    )
