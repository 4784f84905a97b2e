"""Subword vocabularies: SentencePiece models with fixed special ids (§5.1)."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from tfm.config import SubwordConfig
from tfm.errors import DataError, UsageError
from tfm.runtime.files import atomic_write

PAD, BOS, EOS, UNK = 0, 1, 2, 3

_JOINT_NAMES = ("bpe",)
_SEPARATE_NAMES = ("bpe.source", "bpe.target")
_SEED = 1


class SubwordModel:
    """A SentencePiece model: text to token ids and back.

    Args:
        content: The bytes of a SentencePiece model file.
        origin: Where they come from, for error messages.
    """

    def __init__(self, content: bytes, *, origin: Path) -> None:
        self.content = content
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(content)
        except RuntimeError as error:
            raise DataError(f"{origin} is no SentencePiece model: learn it again") from error
        ids = [getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk")]
        if ids != [PAD, BOS, EOS, UNK]:
            raise DataError(
                f"{origin} has pad, bos, eos, unk at {ids}, not {[PAD, BOS, EOS, UNK]}: "
                'learn it with "tfm learn-bpe"'
            )

    def __len__(self) -> int:
        return int(self._processor.GetPieceSize())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Token ids of each line, without special tokens."""
        ids: list[list[int]] = self._processor.EncodeAsIds(list(lines))
        return ids

    def decode(self, token_ids: Iterable[Sequence[int]]) -> list[str]:
        """Plain text of each sequence of token ids; special tokens leave no trace."""
        texts: list[str] = self._processor.DecodeIds([list(ids) for ids in token_ids])
        return texts


class Vocabulary:
    """The subword models of both languages: one and the same if joint."""

    def __init__(self, source: SubwordModel, target: SubwordModel) -> None:
        self.source = source
        self.target = target

    @property
    def is_joint(self) -> bool:
        """Whether both languages share one vocabulary."""
        return self.source is self.target

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest that changes with any change of either model."""
        return hashlib.sha256(
            (self.source.fingerprint + self.target.fingerprint).encode()
        ).hexdigest()

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Read the model or models of a dataset or model folder.

        Raises:
            DataError: There are none, or they are not SentencePiece models.
        """
        joint, *_ = model_paths(folder, separate=False)
        separate = model_paths(folder, separate=True)
        if joint.is_file():
            model = SubwordModel(joint.read_bytes(), origin=joint)
            return cls(model, model)
        if all(path.is_file() for path in separate):
            source, target = (SubwordModel(p.read_bytes(), origin=p) for p in separate)
            return cls(source, target)
        raise DataError(f'{folder} has no subword model ({joint.name}): run "tfm learn-bpe"')

    def files(self) -> dict[str, bytes]:
        """The model or models as files, under the names that `load` knows."""
        paths = model_paths(Path(), separate=not self.is_joint)
        models = [self.source] if self.is_joint else [self.source, self.target]
        return {path.name: model.content for path, model in zip(paths, models, strict=True)}


def model_paths(folder: Path, *, separate: bool) -> list[Path]:
    """Where a folder keeps its SentencePiece models: one joint, or source and target."""
    names = _SEPARATE_NAMES if separate else _JOINT_NAMES
    return [folder / f"{name}.model" for name in names]


def default_vocab_size(num_pairs: int) -> int:
    """A vocabulary for a corpus: the paper's 37,000 for millions of pairs, less for less."""
    for pairs, size in ((2_000_000, 37_000), (300_000, 16_000), (20_000, 8_000), (2_000, 4_000)):
        if num_pairs >= pairs:
            return size
    return 1_000


def learn_subword_model(
    texts: Sequence[Path], model_path: Path, config: SubwordConfig, *, vocab_size: int
) -> SubwordModel:
    """Learn a SentencePiece model from text files; its vocabulary is written beside it.

    The text is taken as it is (no Unicode normalisation), so that decoding gives back every line.

    Args:
        texts: UTF-8 files with a sentence a line.
        model_path: Where to write the model; the pieces go to the same name with ".vocab".
        config: How to learn.
        vocab_size: Number of pieces; takes the place of the config's.

    Raises:
        UsageError: The vocabulary is too large or too small for the text; says what would do.
    """
    with tempfile.TemporaryDirectory(dir=model_path.parent, prefix=".learn-bpe.") as scratch:
        prefix = Path(scratch) / "model"
        sentencepiece.set_random_generator_seed(_SEED)
        try:
            sentencepiece.SentencePieceTrainer.Train(
                input=[str(path) for path in texts],
                model_prefix=str(prefix),
                model_type=config.model_type,
                vocab_size=vocab_size,
                character_coverage=config.character_coverage,
                byte_fallback=config.byte_fallback,
                input_sentence_size=config.sample_sentences,
                shuffle_input_sentence=True,
                num_threads=config.num_threads or os.cpu_count() or 1,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNK,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise _vocabulary_error(str(error), vocab_size, texts) from error
        for suffix in (".vocab", ".model"):
            with atomic_write(model_path.with_suffix(suffix)) as file:
                file.write(prefix.with_suffix(suffix).read_bytes())
    return SubwordModel(model_path.read_bytes(), origin=model_path)


class VocabularyTooLargeError(UsageError):
    """The text has too few different pieces for the vocabulary asked for."""

    def __init__(self, vocab_size: int, largest: int, texts: Sequence[Path]) -> None:
        names = ", ".join(path.name for path in texts)
        super().__init__(
            f"a vocabulary of {vocab_size:,} is too large for {names}: "
            f"the largest that works is --vocab-size {largest}"
        )
        self.largest = largest


def _vocabulary_error(message: str, vocab_size: int, texts: Sequence[Path]) -> UsageError:
    """Put SentencePiece's complaint into words that say what to do."""
    if found := re.search(r"set it to a value <= (\d+)", message):
        return VocabularyTooLargeError(vocab_size, int(found[1]), texts)
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UsageError(
            f"a vocabulary of {vocab_size:,} is too small for the characters of the text: "
            f"use at least --vocab-size {found[1]}, or a lower --character-coverage"
        )
    names = ", ".join(str(path) for path in texts)
    return UsageError(f"SentencePiece cannot learn from {names}: {message}")
