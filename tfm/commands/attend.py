"""tfm attend: a sentence → pictures of the model's attention weights."""

import os
import shlex
from base64 import b64encode
from collections.abc import Sized
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tfm.commands.declaration import Flag, command
from tfm.config import InferenceDevice, SearchConfig
from tfm.config.schema import Rules
from tfm.disk.paths import RUNS_ROOT, OutputPath, check_written_by, existing_folder
from tfm.errors import UsageError
from tfm.reporting import say

if TYPE_CHECKING:
    from tfm.vocabulary.subword import SubwordModel

_FORMATS = (".html", ".png", ".svg")
_DEFAULT_NAME = "attention.html"
_MAX_PIECES = 80  # per side, with EOS; a larger picture would be illegible


@dataclass(frozen=True, kw_only=True)
class AttendResult:
    """The model folder, the target sentence and the pictures that were written."""

    model_dir: Path
    target: str
    paths: list[Path]

    def _repr_html_(self) -> str:
        """Return the first picture as HTML: notebooks show it."""
        path = self.paths[0]
        if path.suffix.lower() == ".png":
            return f'<img src="data:image/png;base64,{b64encode(path.read_bytes()).decode()}">'
        page = escape(path.read_text(encoding="utf-8"))  # HTML, or SVG, which is a part of it
        return f'<iframe srcdoc="{page}" width="100%" height="600"></iframe>'


def _pictures(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the files to write; UsageError if a name, or an existing file, is no picture."""
    files = tuple(each / _DEFAULT_NAME if each.is_dir() else each for each in paths or [Path()])
    for path in files:
        if path.suffix.lower() not in _FORMATS:
            raise UsageError(
                f"{path} is not a picture: use a name that ends in {', '.join(_FORMATS)}"
            )
        if path.is_file():
            from tfm.applications.attend.content import GENERATOR

            check_written_by(path, GENERATOR)
    return files


@command()
def attend(
    model: Annotated[str | None, Flag("MODEL")] = None,
    sentence: Annotated[str | None, Flag("SENTENCE")] = None,
    *,
    target: str | None = None,
    out: Annotated[tuple[Path, ...], _pictures, OutputPath(), Flag("FILE")] = (),
    kind: Literal["encoder", "decoder", "cross"] = "cross",
    layer: int | None = None,
    head: int | None = None,
    beam: Annotated[
        int | None, Flag(default=SearchConfig.beam_size), Rules(excludes=("target",))
    ] = None,
    device: InferenceDevice = "auto",
) -> AttendResult:
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
        device: Device to compute on; mps: an Apple GPU, untested.

    Raises:
        UsageError: A sentence is empty or too long, a file name is not a picture's, or there is no
            such layer or head.
        CheckpointError: The model is missing, damaged or has diverged.
    """
    folder, sentence = _model_and_sentence(model, sentence)
    from tfm.applications.attend.content import Content, compute_maps, select, write_page
    from tfm.backends.plain import PLAIN_INFERENCE
    from tfm.folders.model_folder import ModelFolder
    from tfm.folders.run_folder import newest_run
    from tfm.machine.compute import choose_compute
    from tfm.translation.chain import Chain
    from tfm.translation.engine import Engine

    compute = choose_compute(device, "fp32")
    opened = ModelFolder.open(folder or newest_run(RUNS_ROOT))
    search = SearchConfig.for_model(opened.info.search, {} if beam is None else {"beam_size": beam})
    vocabulary = opened.vocabulary
    network = opened.model().to(compute.device).eval()
    max_pieces = min(_MAX_PIECES, network.max_positions or _MAX_PIECES)
    [cleaned] = vocabulary.clean([sentence])
    vocabulary.check_tag(cleaned, "the sentence", say)
    source_ids = _encode(vocabulary.source, [cleaned], max_pieces, name="the sentence")
    if target is None:
        engine = Engine([network], compute, backend=PLAIN_INFERENCE, vocabulary=lambda: vocabulary)
        chain = Chain(engine=engine, vocabulary=vocabulary, notify=lambda _: None)
        [[best, *_]] = chain.search_lines([sentence], search)
        target_ids = vocabulary.target.ids(best.pieces[:-1])
        _check_length(target_ids, max_pieces, name="the translation")
        target = best.text
        origin = f"translated with beam {search.beam_size}"
    else:
        target_ids = _encode(
            vocabulary.target, vocabulary.clean([target]), max_pieces, name="--target"
        )
        origin = "target as given"
    maps = compute_maps(network, vocabulary, source_ids, target_ids, kind, name=str(opened))
    num_layers, num_heads, *_ = maps[kind].weights.shape
    content = Content(
        maps=maps,
        kind=kind,
        layers=select("layer", layer, num_layers, kind),
        heads=select("head", head, num_heads, kind),
        source=sentence,
        target=target,
        languages=(opened.info.source, opened.info.target),
        note=f"{opened}, {origin}",
    )
    for path in out:
        if path.suffix.lower() == ".html":
            write_page(path, content)
        else:
            # Imported late: a page needs no matplotlib.
            from tfm.applications.attend.figure import write_figure

            write_figure(path, content)
    say(f"attend: {opened.path}: {sentence} → {target}")
    return AttendResult(model_dir=opened.path, target=target, paths=[*out])


def _model_and_sentence(model: str | None, sentence: str | None) -> tuple[Path | None, str]:
    """Return the model folder and the sentence; a single argument is the sentence."""
    if sentence is None:
        model, sentence = None, model
    if sentence is None or os.path.isdir(sentence):  # noqa: PTH112 - Path fails on long ones
        if model is not None and not os.path.exists(model):  # noqa: PTH110 - the same
            raise UsageError(f"the model comes first: tfm attend {sentence} {shlex.quote(model)}")
        raise UsageError('attend needs a sentence, in quotes: "Two dogs play in the snow."')
    return None if model is None else existing_folder(Path(model)), sentence


def _encode(model: "SubwordModel", lines: list[str], max_pieces: int, *, name: str) -> list[int]:
    """Return the token ids of a line, without EOS; UsageError if it is empty or too long."""
    if lines == [""]:
        raise UsageError(f"{name} is empty: give a sentence with words")
    [ids] = model.encode(lines)
    _check_length(ids, max_pieces, name=name)
    return ids


def _check_length(ids: Sized, max_pieces: int, *, name: str) -> None:
    if len(ids) + 1 > max_pieces:
        raise UsageError(
            f"{name} has {len(ids) + 1:,} pieces, more than the {max_pieces} that fit in a "
            "picture: give a shorter sentence"
        )
