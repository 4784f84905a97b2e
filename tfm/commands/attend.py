"""tfm attend: a sentence → pictures of the model's attention weights."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tfm.commands.declaration import Flag, command
from tfm.config import InferenceDevice, SearchConfig, settings_from
from tfm.errors import UsageError
from tfm.reporting import say
from tfm.storage.paths import existing_folder

if TYPE_CHECKING:
    from tfm.stages.attend import AttendResult


@command()
def attend(
    model: Annotated[str | None, Flag("MODEL")] = None,
    sentence: Annotated[str | None, Flag("SENTENCE")] = None,
    *,
    target: str | None = None,
    out: Annotated[tuple[Path, ...], Flag("FILE")] = (),
    kind: Literal["encoder", "decoder", "cross"] = "cross",
    layer: int | None = None,
    head: int | None = None,
    beam: Annotated[int | None, Flag(default=SearchConfig.beam_size)] = None,
    device: InferenceDevice = "auto",
) -> "AttendResult":
    """Draw the attention of each layer and head while a model translates a sentence.

    Examples::

        tfm attend "Two dogs play in the snow."
        tfm attend runs/wmt14-en-de-base "The law." --layer 5 --out law.svg

    Args:
        model: Model or run folder (default: the newest run).
        sentence: Source sentence in quotes.
        target: Target sentence (default: the model's translation).
        out: Page (.html) or figure (.png, .svg) to write; repeatable (default: attention.html).
        kind: Attention to draw; a page contains all kinds and shows this one first.
        layer: Draw only this layer, counted from 1.
        head: Draw only this head, counted from 1.
        beam: Beam size of the translation.
        device: Device to compute on; mps: an Apple GPU, never tried.

    Raises:
        UsageError: A sentence is empty or too long, a file name is not a picture's, or there is no
            such layer or head.
        CheckpointError: The model is missing, damaged or has diverged.
    """
    if sentence is None:
        model, sentence = None, model
    if sentence is None or os.path.isdir(sentence):  # noqa: PTH112 - Path fails on long ones
        raise UsageError('attend needs a sentence, in quotes: "Two dogs play in the snow."')
    folder = None if model is None else existing_folder(Path(model))
    if beam is not None and target is not None:
        raise UsageError("--beam has no effect with --target: leave one out")
    search = settings_from(SearchConfig, {} if beam is None else {"beam_size": beam})
    from tfm.stages import attend as stage

    result = stage.attend(
        folder,
        sentence,
        target=target,
        out=out,
        kind=kind,
        layer=layer,
        head=head,
        search=search,
        device=device,
    )
    say(f"attend: {result.model_dir}: {sentence} → {result.target}")
    return result
