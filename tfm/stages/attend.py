"""tfm attend: a sentence → pictures of what the model attends to."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

import torch

from tfm.config import DeviceName, SearchConfig
from tfm.data.subword import BOS, EOS, SubwordModel, Vocabulary
from tfm.device.compute import choose_compute
from tfm.errors import CheckpointError, UsageError
from tfm.model.build import load_model
from tfm.model.weights import AttentionWeights, record_attention
from tfm.search.beam import beam_search
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import find_model
from tfm.visualization.attention_figure import write_figure
from tfm.visualization.attention_maps import GENERATOR, WORDS, AttentionKind, AttentionMaps
from tfm.visualization.attention_page import write_page

_FORMATS = (".html", ".png", ".svg")
_DEFAULT_NAME = "attention.html"
_MAX_PIECES = 80  # of one side, with EOS; of more, a picture cannot be read
_BYTES_WITH_GENERATOR = 4_096


@dataclass(frozen=True, kw_only=True)
class AttendResult:
    """The model folder, the target sentence, given or translated, and the pictures."""

    model_dir: Path
    target: str
    paths: list[Path]


def attend(
    model_path: Path,
    sentence: str,
    *,
    target: str | None,
    out: Sequence[Path],
    kind: AttentionKind = "cross",
    layer: int | None = None,
    head: int | None = None,
    search: SearchConfig,
    device: DeviceName,
) -> AttendResult:
    """Draw what a model attends to as it reads a sentence and predicts another.

    Args:
        model_path: A model or run folder.
        sentence: The source sentence.
        target: The target sentence; the model's own translation if None.
        out: Files to write, .html, .png or .svg, or folders for a page; a page here if empty.
        kind: Which attention to draw; a page starts with it, and has the others, too.
        layer: Which layer, counted from 1; None for all, of which a page starts with the last.
        head: Which head, counted from 1; None for all.
        search: How to translate.
        device: Where to compute.

    Raises:
        UsageError: A sentence is empty or too long, a file is not one for pictures, or there is
            no such layer or head.
        CheckpointError: There is no sound model.
    """
    paths = [_picture_path(path) for path in out or [Path()]]
    compute = choose_compute(device, "fp32")
    folder = find_model(model_path)
    info, vocabulary = load_info(folder), Vocabulary.load(folder)
    if vocabulary.fingerprint != info.fingerprint:
        raise CheckpointError(
            f"{folder} was trained with subword model {info.fingerprint[:8]}, not "
            f"{vocabulary.fingerprint[:8]}, which it holds: choose another model"
        )
    model = load_model(folder, info).to(compute.device).eval()
    max_pieces = min(_MAX_PIECES, model.max_positions or _MAX_PIECES)
    source_ids = _encoded(vocabulary.source, sentence, max_pieces, name="the sentence")
    source = torch.tensor([[*source_ids, EOS]], device=compute.device)
    lengths = torch.tensor([source.size(1)], device=compute.device)
    if target is None:
        with torch.inference_mode():
            [[best, *_]] = beam_search(model, source, lengths, search)
        target_ids = list(best.tokens)
        _check_length(target_ids, max_pieces, name="the translation")
        [target] = vocabulary.target.decode([target_ids])
        origin = f"translated with beam {search.beam_size}"
    else:
        target_ids = _encoded(vocabulary.target, target, max_pieces, name="--target")
        origin = "target as given"
    target_input = torch.tensor([[BOS, *target_ids]], device=compute.device)
    weights = record_attention(model, source, lengths, target_input)
    maps = _maps(weights, vocabulary, source_ids, target_ids)
    if kind not in maps:
        raise UsageError(
            f"{folder} has no {kind} self-attention, it is recurrent: use --kind cross"
        )
    title = WORDS[kind][0].lower()
    num_layers, num_heads, *_ = maps[kind].weights.shape
    layers = _numbers("layer", layer, num_layers, title)
    heads = _numbers("head", head, num_heads, title)
    for path in paths:
        if path.suffix.lower() != ".html":
            write_figure(path, maps[kind], layers=layers, heads=heads)
            continue
        write_page(
            path,
            list(maps.values()),
            source=sentence,
            target=target,
            languages=(info.source, info.target),
            note=f"{folder}, {origin}",
            kind=kind,
            layer=layers[-1],
            heads=heads,
        )
    return AttendResult(model_dir=folder, target=target, paths=paths)


def _encoded(model: SubwordModel, text: str, max_pieces: int, *, name: str) -> list[int]:
    """Token ids of a sentence, without EOS, if it is neither empty nor too long for a picture."""
    if not text.strip():
        raise UsageError(f"{name} is empty: there is nothing to show")
    [ids] = model.encode([text])
    _check_length(ids, max_pieces, name=name)
    return ids


def _check_length(ids: Sized, max_pieces: int, *, name: str) -> None:
    if len(ids) + 1 > max_pieces:
        raise UsageError(
            f"{name} has {len(ids) + 1:,} pieces, more than the {max_pieces} that a picture can "
            "hold: give a shorter one"
        )


def _maps(
    recorded: AttentionWeights,
    vocabulary: Vocabulary,
    source_ids: list[int],
    target_ids: list[int],
) -> dict[AttentionKind, AttentionMaps]:
    """What the model attended to as it predicted this target, of each kind that it has."""
    sources = vocabulary.source.pieces([*source_ids, EOS])
    given = vocabulary.target.pieces([BOS, *target_ids])
    predicted = vocabulary.target.pieces([*target_ids, EOS])
    kinds: dict[AttentionKind, tuple[torch.Tensor | None, list[str], list[str]]] = {
        "encoder": (recorded.encoder, sources, sources),
        "decoder": (recorded.decoder, predicted, given),
        "cross": (recorded.cross, predicted, sources),
    }
    return {
        kind: AttentionMaps(
            kind=kind, queries=queries, keys=keys, weights=weights[:, 0].cpu().numpy()
        )
        for kind, (weights, queries, keys) in kinds.items()
        if weights is not None
    }


def _picture_path(path: Path) -> Path:
    """The file that a path means, if its ending is right and nothing else stands there."""
    if path.is_dir():
        path = path / _DEFAULT_NAME
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"{path} is no name for a picture: end it in {', '.join(_FORMATS)}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file: choose another name with --out")
    if path.exists():
        with path.open("rb") as file:
            start = file.read(_BYTES_WITH_GENERATOR)
        if start and GENERATOR.encode() not in start:
            raise UsageError(
                f"{path} is there and no picture of {GENERATOR}: choose another name with --out"
            )
    return path


def _numbers(name: str, wanted: int | None, count: int, title: str) -> list[int]:
    """The layers or heads to draw, counted from 1: the one that is wanted, or all."""
    if wanted is not None and not 1 <= wanted <= count:
        raise UsageError(f"--{name} {wanted}: {title} has {name}s 1 to {count}")
    return [*range(1, count + 1)] if wanted is None else [wanted]
