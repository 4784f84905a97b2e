"""tfm attend: a sentence → pictures of the model's attention weights."""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

from tfm.backends.plain import PLAIN_INFERENCE
from tfm.config import InferenceDevice, SearchConfig
from tfm.data.subword import SubwordModel
from tfm.device.compute import choose_compute
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import newest_run
from tfm.inference.batches import Chunk
from tfm.inference.translator import Translator
from tfm.model.weights import attention_maps
from tfm.reporting import say
from tfm.search.active import check_finite
from tfm.storage.paths import RUNS_ROOT, new_file
from tfm.visualization.attention_maps import GENERATOR, LABELS, AttentionKind, write_page

_FORMATS = (".html", ".png", ".svg")
_DEFAULT_NAME = "attention.html"
_MAX_PIECES = 80  # per side, with EOS; a larger picture would be illegible
_HEADER_BYTES = 4_096  # the beginning of a picture, which names its generator


@dataclass(frozen=True, kw_only=True)
class AttendResult:
    """The model folder, the target sentence and the pictures that were written."""

    model_dir: Path
    target: str
    paths: list[Path]


def attend(
    model_path: Path | None,
    sentence: str,
    *,
    target: str | None,
    out: Sequence[Path],
    kind: AttentionKind = "cross",
    layer: int | None = None,
    head: int | None = None,
    search: SearchConfig,
    device: InferenceDevice,
) -> AttendResult:
    """Draw the attention weights of a model, by default of the newest run.

    A page starts with the `kind`, and with the `layer` or the last one, and has all others, too.
    Without names of files, it is written to the working directory. Errors are those of the command.
    """
    paths = [_check_picture_path(path) for path in out or [Path()]]
    compute = choose_compute(device, "fp32")
    folder = ModelFolder.open(model_path or newest_run(RUNS_ROOT))
    vocabulary = folder.vocabulary
    model = folder.model().to(compute.device).eval()
    max_pieces = min(_MAX_PIECES, model.max_positions or _MAX_PIECES)
    [cleaned] = vocabulary.clean([sentence])
    vocabulary.check_tag(cleaned, "the sentence", say)
    source_ids = _encode(vocabulary.source, [cleaned], max_pieces, name="the sentence")
    if target is None:
        translator = Translator(
            [model], vocabulary, compute, backend=PLAIN_INFERENCE, notify=lambda _: None
        )
        chunk = Chunk(line_numbers=[1], lines=[sentence])
        [(_, found)] = translator.search_chunks([chunk], search)
        target_ids = list(found[1][0].tokens)
        _check_length(target_ids, max_pieces, name="the translation")
        [target] = vocabulary.outputs([target_ids])
        origin = f"translated with beam {search.beam_size}"
    else:
        target_ids = _encode(
            vocabulary.target, vocabulary.clean([target]), max_pieces, name="--target"
        )
        origin = "target as given"
    maps = attention_maps(model, vocabulary, source_ids, target_ids)
    check_finite(all(math.isfinite(each.weights.sum()) for each in maps.values()))
    if kind not in maps:
        raise UsageError(
            f"{folder} is recurrent and has no {kind} self-attention: use --kind cross"
        )
    title = LABELS[kind][0].lower()
    num_layers, num_heads, *_ = maps[kind].weights.shape
    layers = _select("layer", layer, num_layers, title)
    heads = _select("head", head, num_heads, title)
    texts = {"source": sentence, "target": target, "note": f"{folder}, {origin}"}
    for path in paths:
        if path.suffix.lower() != ".html":
            # Imported late: a page needs no matplotlib.
            from tfm.visualization.attention_figure import write_figure

            write_figure(path, maps[kind], **texts, layers=layers, heads=heads)
            continue
        write_page(
            path,
            list(maps.values()),
            **texts,
            languages=(folder.info.source, folder.info.target),
            kind=kind,
            layer=layers[-1],
            heads=heads,
        )
    return AttendResult(model_dir=folder.path, target=target, paths=paths)


def _encode(model: SubwordModel, lines: list[str], max_pieces: int, *, name: str) -> list[int]:
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


def _check_picture_path(path: Path) -> Path:
    """Return the file to write; UsageError if its name or its content is not a picture's."""
    if path.is_dir():
        path = path / _DEFAULT_NAME
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"{path} is not a picture: use a name that ends in {', '.join(_FORMATS)}")
    if new_file(path, flag="--out") and path.exists():
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if header and GENERATOR.encode() not in header:
            raise UsageError(
                f"{path} exists and was not written by {GENERATOR}: choose another name with --out"
            )
    return path


def _select(name: str, number: int | None, count: int, title: str) -> list[int]:
    """Return the numbers of the layers or heads to draw, counted from 1; None selects all."""
    if number is not None and not 1 <= number <= count:
        raise UsageError(f"--{name} {number}: {title} has {name}s 1 to {count}")
    return [*range(1, count + 1)] if number is None else [number]
