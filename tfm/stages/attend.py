"""tfm attend: a sentence → pictures of what the model attends to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tfm.config import DeviceName, SearchConfig
from tfm.data.subword import BOS, EOS, SubwordModel, Vocabulary
from tfm.device.compute import choose_compute
from tfm.errors import CheckpointError, UsageError
from tfm.model.build import Model, load_model
from tfm.model.weights import record_attention
from tfm.search.beam import beam_search
from tfm.storage.checkpoint.model_folder import ModelInfo, load_info
from tfm.storage.checkpoint.run_folder import find_model
from tfm.visualization.attention_figure import write_figure
from tfm.visualization.attention_maps import GENERATOR, AttentionKind, AttentionMaps
from tfm.visualization.attention_page import Sentence, View, write_page

_FORMATS = (".html", ".png", ".svg")
_DEFAULT_NAME = "attention.html"
_MOST_PIECES = 80  # of one side, with EOS; of more, a picture cannot be read
_BYTES_WITH_GENERATOR = 4_096


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to draw; a page shows it at first, and the rest on demand.

    Attributes:
        kind: Which attention.
        layer: Which layer, counted from 1; if None all, and in a page the last.
        head: Which head, counted from 1; None for all.
    """

    kind: AttentionKind = "cross"
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True, kw_only=True)
class AttendResult:
    """Where the pictures are, and what they show.

    Attributes:
        model_dir: The model folder.
        target: The target sentence, given or translated.
        paths: The pictures.
    """

    model_dir: Path
    target: str
    paths: list[Path]


def attend(
    model_path: Path,
    sentence: str,
    *,
    target: str | None,
    out: Sequence[Path],
    choice: Choice,
    search: SearchConfig,
    device: DeviceName,
) -> AttendResult:
    """Draw what a model attends to as it reads a sentence and predicts another.

    Args:
        model_path: A model or run folder.
        sentence: The source sentence.
        target: The target sentence; the model's own translation if not given.
        out: Files to write, .html, .png or .svg, or folders for a page; a page here if empty.
        choice: What to draw.
        search: How to translate.
        device: Where to compute.

    Raises:
        UsageError: A sentence is empty or too long, a file is not one for pictures, or there is
            no such layer or head.
        CheckpointError: There is no sound model.
    """
    paths = [_picture_path(path) for path in out or [Path()]]
    reader = _Reader.load(model_path, device)
    source_ids = reader.encode(reader.vocabulary.source, sentence, name="the sentence")
    if target is None:
        target_ids = reader.translate(source_ids, search)
        [target] = reader.vocabulary.target.decode([target_ids])
        origin = f"translated with beam {search.beam_size}"
    else:
        target_ids = reader.encode(reader.vocabulary.target, target, name="--target")
        origin = "target as given"
    maps = reader.maps(source_ids, target_ids)
    chosen = next((each for each in maps if each.kind == choice.kind), None)
    if chosen is None:
        raise UsageError(
            f"{reader.folder} has no {choice.kind} self-attention, it is recurrent: "
            "use --kind cross"
        )
    layers = _numbers("layer", choice.layer, chosen.num_layers, chosen)
    heads = _numbers("head", choice.head, chosen.num_heads, chosen)
    for path in paths:
        if path.suffix.lower() != ".html":
            write_figure(path, chosen, layers=layers, heads=heads)
            continue
        write_page(
            path,
            maps,
            source=Sentence(text=sentence, language=reader.info.source),
            target=Sentence(text=target, language=reader.info.target),
            note=f"{reader.folder}, {origin}",
            start=View(kind=chosen.kind, layer=layers[-1], heads=heads),
        )
    return AttendResult(model_dir=reader.folder, target=target, paths=paths)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """A model that is about to read one sentence."""

    folder: Path
    info: ModelInfo
    vocabulary: Vocabulary
    model: Model
    device: torch.device

    @classmethod
    def load(cls, path: Path, device: DeviceName) -> "_Reader":
        """Read a model from disk.

        Raises:
            CheckpointError: There is none, or its subword model is another's.
        """
        compute = choose_compute(device, "fp32")
        folder = find_model(path)
        info, vocabulary = load_info(folder), Vocabulary.load(folder)
        if vocabulary.fingerprint != info.fingerprint:
            raise CheckpointError(
                f"{folder} was trained with subword model {info.fingerprint[:8]}, not "
                f"{vocabulary.fingerprint[:8]}, which it holds: choose another model"
            )
        model = load_model(folder, info).to(compute.device).eval()
        return cls(
            folder=folder, info=info, vocabulary=vocabulary, model=model, device=compute.device
        )

    def encode(self, subword_model: SubwordModel, text: str, *, name: str) -> list[int]:
        """Token ids of a sentence, without EOS.

        Raises:
            UsageError: The sentence is empty, or too long for a picture.
        """
        if not text.strip():
            raise UsageError(f"{name} is empty: there is nothing to show")
        [ids] = subword_model.encode([text])
        self._check_length(ids, name=name)
        return ids

    def translate(self, source_ids: list[int], search: SearchConfig) -> list[int]:
        """Token ids of the model's translation, without EOS.

        Raises:
            UsageError: It is too long for a picture.
        """
        source, lengths = self._source(source_ids)
        with torch.inference_mode():
            [[best, *_]] = beam_search(self.model, source, lengths, search)
        self._check_length(best.tokens, name="the translation")
        return list(best.tokens)

    def maps(self, source_ids: list[int], target_ids: list[int]) -> list[AttentionMaps]:
        """What the model attends to as it predicts this target, by kind."""
        source, lengths = self._source(source_ids)
        target_input = torch.tensor([[BOS, *target_ids]], device=self.device)
        recorded = record_attention(self.model, source, lengths, target_input)
        sources = self.vocabulary.source.pieces([*source_ids, EOS])
        given = self.vocabulary.target.pieces([BOS, *target_ids])
        predicted = self.vocabulary.target.pieces([*target_ids, EOS])
        kinds: list[tuple[AttentionKind, torch.Tensor | None, list[str], list[str]]] = [
            ("encoder", recorded.encoder, sources, sources),
            ("decoder", recorded.decoder, predicted, given),
            ("cross", recorded.cross, predicted, sources),
        ]
        return [
            AttentionMaps(
                kind=kind, queries=queries, keys=keys, weights=weights[:, 0].cpu().numpy()
            )
            for kind, weights, queries, keys in kinds
            if weights is not None
        ]

    def _source(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of one: [1, S] token ids with EOS, and [1] their number."""
        source = torch.tensor([[*ids, EOS]], device=self.device)
        return source, torch.tensor([source.size(1)], device=self.device)

    def _check_length(self, ids: Sequence[int], *, name: str) -> None:
        most = min(_MOST_PIECES, self.model.max_positions or _MOST_PIECES)
        if len(ids) + 1 > most:
            raise UsageError(
                f"{name} has {len(ids) + 1:,} pieces, more than the {most} that a picture can "
                "hold: give a shorter one"
            )


def _picture_path(path: Path) -> Path:
    """The file that a path means, if a picture may stand there.

    Raises:
        UsageError: It has another ending, or holds something else.
    """
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


def _numbers(name: str, wanted: int | None, count: int, maps: AttentionMaps) -> list[int]:
    """The layers or heads to draw, counted from 1: the one that is wanted, or all.

    Raises:
        UsageError: There are fewer.
    """
    if wanted is not None and not 1 <= wanted <= count:
        raise UsageError(f"--{name} {wanted}: {maps.title.lower()} has {name}s 1 to {count}")
    return [*range(1, count + 1)] if wanted is None else [wanted]
