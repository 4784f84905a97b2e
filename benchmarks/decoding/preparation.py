"""Write the text and the model in a format that runners can read without tfm."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from weights import Example, Shape, StoredModel, write_model

from tfm.config import TransformerConfig
from tfm.dataset.manifest import Manifest
from tfm.folders.model_folder import ModelFolder
from tfm.model.attention import sinusoidal_encoding
from tfm.model.transformer import Transformer
from tfm.vocabulary.subword import BOS, EOS, Vocabulary

_NUM_POSITIONS = 1024
_NUM_EXAMPLES = 4
_MAX_EXTRA_LENGTH = 50  # the default of tfm generate


class Text(NamedTuple):
    """A text and its reference, without empty lines."""

    lines: list[str]
    ids: list[list[int]]  # of the lines, without EOS
    references: list[str]

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a translation."""
        return max(map(len, self.ids)) + 1 + _MAX_EXTRA_LENGTH


def read_text(folder: Path, source: Path | None, reference: Path | None) -> Text:
    """Read the text, by default the test split of the dataset of the model in a folder."""
    if source is None or reference is None:
        data_dir = Path(ModelFolder(folder).info.data_dir)
        manifest = Manifest.load(data_dir)
        source = manifest.text_path("test", manifest.source)
        reference = manifest.reference_path("test")
        if reference is None:
            raise SystemExit(f"{data_dir} has no test split: give --input and --reference")
    pairs = zip(_lines(source), _lines(reference), strict=True)
    lines, references = zip(*((line, other) for line, other in pairs if line.strip()), strict=True)
    ids = Vocabulary.load(folder).source.encode(lines)
    return Text(list(lines), ids, list(references))


def write_setup(setup: Path, folder: Path, text: Text) -> None:
    """Write a text and the model in a folder to `setup`, for the runners."""
    setup.mkdir(parents=True, exist_ok=True)
    vocabulary = Vocabulary.load(folder)
    sentences = [
        (line, vocabulary.source.pieces(ids), ids)
        for line, ids in zip(text.lines, text.ids, strict=True)
    ]
    (setup / "text.json").write_text(json.dumps(sentences))
    pieces = vocabulary.target.pieces(range(len(vocabulary.target)))
    (setup / "pieces.json").write_text(json.dumps(pieces))
    targets = vocabulary.target.encode(text.references[:_NUM_EXAMPLES])
    write_model(setup / "model.pt", _stored_model(folder, text.ids[:_NUM_EXAMPLES], targets))


def export_to_ctranslate2(folder: Path, out: Path) -> None:
    """Export the model with tfm export, which prints an error if that is not possible."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "tfm", "export", folder, "--format", "ctranslate2"]
    process = subprocess.run([*command, "--out", out], stdout=sys.stderr, check=False)
    if process.returncode:
        print("the export failed: CTranslate2 will be left out", file=sys.stderr)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _stored_model(
    folder: Path, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> StoredModel:
    """Return the model with examples of its log probabilities."""
    opened = ModelFolder(folder)
    model, info = opened.model().eval(), opened.info
    config = info.run.model
    if not (isinstance(config, TransformerConfig) and isinstance(model, Transformer)):
        raise SystemExit(f"{folder} is no Transformer, and only those are compared")
    examples = []
    for source, target in zip(sources, targets, strict=True):
        ids, target_input = torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]])
        log_probs = _log_probs(model, ids, target_input)
        examples.append(Example(ids, target_input, log_probs))
    return StoredModel(
        shape=Shape(
            vocab_size=info.vocab_sizes[1],
            num_encoder_layers=config.num_encoder_layers,
            num_decoder_layers=config.num_decoder_layers,
            d_model=config.d_model,
            d_ff=config.d_ff,
            num_heads=config.num_heads,
        ),
        norm=config.norm,
        tied_embeddings=config.tied_embeddings,
        weights=dict(model.state_dict()),
        positions=sinusoidal_encoding(torch.arange(_NUM_POSITIONS), config.d_model),
        examples=examples,
    )


def _log_probs(model: Transformer, source: Tensor, target_input: Tensor) -> Tensor:
    """Compute the [T, V] log probabilities of the next token, for one sentence pair."""
    with torch.inference_mode():
        hidden_states = model(source, torch.tensor([source.size(1)]), target_input)
        return model.logits(hidden_states)[0].log_softmax(dim=-1).clone()
