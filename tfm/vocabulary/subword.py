"""Subword vocabularies: SentencePiece models with fixed special ids (§5.1)."""

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece

from tfm.config import (
    LATEST_NORMALIZATION,
    Normalization,
    tag_problem,
)
from tfm.errors import DataError, UsageError, tfm_command
from tfm.machine.cpu import num_cores
from tfm.text.tags import split_tag
from tfm.vocabulary.bpe_dropout import BpeDropout, TokenIds

PAD, BOS, EOS, UNK = 0, 1, 2, 3

# SentencePiece writes a space as U+2581, and would decode a U+2581 in the text to a space. It skips
# lines with U+2585 when it learns, and has no pieces with a tab or U+001F.
# These are therefore escaped, with a noncharacter that Unicode reserves for internal use.
SPACE_MARK, _ESCAPE = "\u2581", "\ufdd0"
_MAX_SHOWN = 20  # tags in a message
_MIN_SIMILARITY = 0.4  # of tags
_FEW_LINES = 32
# {character: what SentencePiece gets instead}, in the order of replacing them.
_ESCAPED = _ESCAPE + SPACE_MARK + "\u2585\t\x1f"
ESCAPES = {char: f"{_ESCAPE}{number}" for number, char in enumerate(_ESCAPED)}
# A model of another program may name pieces that its segmentation lacks, but its outputs have: they
# are unused, of this score. SentencePiece's BPE would join them to longer pieces, but not control
# pieces. These are the ends of the messages of both.
ABSENT_SCORE = -float(2**24)
_UNUSED, _CONTROL = (b"\x15%b\x18%c" % (struct.pack("<f", ABSENT_SCORE), each) for each in (5, 3))
# Field 200, which SentencePiece leaves to others, gives the size of the vocabulary at the end of a
# model of another program. Its further pieces divide text, but stand for unknown text.
_SIZE = re.compile(rb"\xc2\x0c.([0-9]+)\Z", re.DOTALL)
# Letters of an average piece, at least in a vocabulary of words, and at most in a sentence without
# any of them; of shorter sentences, nothing is said.
_WORDS, _SPELLED, _MIN_LETTERS = 2.5, 1.8, 10
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SubwordModel:
    """A SentencePiece model: text to token ids and back.

    `content` is the content of a model file, and `origin` its path for error messages.
    """

    def __init__(self, content: bytes, *, origin: Path) -> None:
        self.content = content
        self.fingerprint = hashlib.sha256(content).hexdigest()
        try:
            self._processor = self._encoder = _load(content)
            named = _SIZE.search(content)
            self._size = int(named[1]) if named else self._processor.GetPieceSize()
            piece_of = self._processor.IdToPiece
            self._pieces = [piece_of(i) for i in range(len(self))]  # not UTF-8 if damaged
            if _UNUSED in content and self.is_bpe:
                self._encoder = _load(content.replace(_UNUSED, _CONTROL))
        except (RuntimeError, UnicodeDecodeError, IndexError) as error:
            raise DataError(f"{origin} is not a SentencePiece model: learn it again") from error
        ids = [getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk")]
        if ids != [PAD, BOS, EOS, UNK]:
            raise DataError(
                f"{origin} has pad, bos, eos, unk at {ids}, not {[PAD, BOS, EOS, UNK]}: "
                f"move it elsewhere, and use it with "
                + tfm_command("learn-bpe", origin.parent, "--subwords", f"FOLDER/{origin.name}")
            )

    def __len__(self) -> int:
        return self._size

    def encode(self, lines: Iterable[str]) -> list[list[int]]:
        """Encode each line (without its end) to token ids, without special tokens."""
        texts = [escape(line) for line in lines]
        encode = self._encoder.EncodeAsIds
        ids: list[list[int]]
        try:
            # Counting cores and starting threads takes longer than encoding a few lines.
            few = len(texts) <= _FEW_LINES
            ids = [*map(encode, texts)] if few else encode(texts, num_threads=num_cores())
        except (TypeError, RuntimeError) as error:
            broken = next(filter(_LONE_SURROGATE.search, texts), None)
            if broken is None:
                raise
            raise DataError(
                f"{broken[:40]!r} has an unpaired surrogate, which is not valid Unicode: correct it"
            ) from error
        return self._known(texts, ids)

    def _known(self, texts: Sequence[str | bytes], ids: list[list[int]]) -> list[list[int]]:
        """Return the token ids of texts, with UNK for ids beyond the vocabulary.

        In a vocabulary of words, each missing word is one UNK: SentencePiece joins several.
        """
        if self._has_unknown_pieces:
            return [[i if i < self._size else UNK for i in sequence] for sequence in ids]
        if words := self._words:
            pairs = zip(texts, ids, strict=True)
            return [_ids(text, words) if UNK in sequence else sequence for text, sequence in pairs]
        return ids

    @property
    def _has_unknown_pieces(self) -> bool:
        return self._size < int(self._processor.GetPieceSize())

    @cached_property
    def _words(self) -> dict[str, int]:
        """The token ids of another program's vocabulary of words; empty if it has other pieces."""
        pieces = self._pieces[UNK + 1 :]
        are_words = _SIZE.search(self.content) and all(p.startswith(SPACE_MARK) for p in pieces)
        return {piece[1:]: id_ for id_, piece in enumerate(pieces, UNK + 1)} if are_words else {}

    @property
    def is_bpe(self) -> bool:
        """Whether text is encoded by merges: only their scores are ranks, whole numbers."""
        return all(self._processor.GetScore(i).is_integer() for i in range(len(self)))

    def encode_block(
        self, lines: list[bytes], dropout: float = 0.0, random: np.random.Generator | None = None
    ) -> TokenIds:
        """Encode lines of UTF-8 to arrays in one thread, without holding Python's GIL.

        Args:
            lines: Lines without their ends.
            dropout: The probability of leaving out a merge of BPE, for which Python holds the GIL.
            random: Draws the merges to leave out.

        Returns:
            [number of tokens] the concatenated token ids, and [number of lines] their counts.
        """
        texts = self._escaped(lines)
        if dropout and random is not None:
            ids, lengths = self._bpe_dropout.encode(texts, dropout, random)
            return np.where(ids < self._size, ids, UNK), lengths
        token_ids = self._known(texts, self._encoder.EncodeAsIds(texts, num_threads=1))
        lengths = np.fromiter(map(len, token_ids), dtype=np.int64, count=len(token_ids))
        flat = chain.from_iterable(token_ids)
        return np.fromiter(flat, dtype=np.int32, count=int(lengths.sum())), lengths

    def _escaped(self, lines: list[bytes]) -> list[bytes]:
        text = b"\n".join(lines)
        if any(character.encode() in text for character in ESCAPES):
            return [escape(line.decode()).encode() for line in lines]
        return lines

    @cached_property
    def _bpe_dropout(self) -> BpeDropout:
        return BpeDropout(self._encoder)

    def decode(self, token_ids: Iterable[Sequence[int]]) -> list[str]:
        """Decode sequences of token ids to plain text, without special tokens.

        Decoding restores the encoded text, except for characters that the model does not know.
        """
        sequences = [list(ids) for ids in token_ids]
        decode = self._processor.DecodeIds
        texts: list[str] = [decode(sequences[0])] if len(sequences) == 1 else decode(sequences)
        return [self._unescape(text) for text in texts]

    def _unescape(self, text: str) -> str:
        if _ESCAPE in text:
            for character, escaped in reversed(ESCAPES.items()):
                text = text.replace(escaped, character)
        return text

    @cached_property
    def byte_values(self) -> npt.NDArray[np.int16]:
        """The byte that each piece stands for [V]; -1 for pieces of text."""
        is_byte, pieces = self._processor.IsByte, enumerate(self._pieces)
        values = [int(piece[3:5], 16) if is_byte(i) else -1 for i, piece in pieces]  # <0x0A>
        return np.array(values, dtype=np.int16)

    def lacks(self, text: str) -> bool:
        """Return whether a text has a character without a piece: it is bytes, or unknown."""
        [ids] = self.encode([text])
        return UNK in ids or bool((self.byte_values[ids] >= 0).any())

    def num_known_letters(self, token_ids: Iterable[int]) -> int:
        """Return the number of letters in pieces; unknown tokens and bytes have none."""
        return sum(self._num_letters[token_id] for token_id in token_ids)

    def spells_out(self, token_ids: Iterable[int]) -> bool:
        """Return whether words are cut into far smaller pieces than those of the vocabulary.

        Of the training text, hardly any sentence is.
        """
        lengths = [number for each in token_ids if (number := self._num_letters[each])]
        is_long = self._has_words and sum(lengths) >= _MIN_LETTERS
        return is_long and sum(lengths) < _SPELLED * len(lengths)

    @cached_property
    def _has_words(self) -> bool:
        return sum(self._num_letters) > _WORDS * sum(map(bool, self._num_letters))

    @cached_property
    def _num_letters(self) -> list[int]:
        """The number of letters of each piece."""
        model = self._processor
        return [
            0 if model.IsByte(i) or model.IsUnknown(i) else sum(map(str.isalpha, piece))
            for i, piece in enumerate(self._pieces)
        ]

    def pieces(self, token_ids: Iterable[int]) -> list[str]:
        """Return the pieces of token ids, as they are in the vocabulary."""
        return [self._pieces[token_id] for token_id in token_ids]

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Return the token ids of pieces that are in the vocabulary."""
        return [self._processor.PieceToId(piece) for piece in pieces]

    def text_pieces(self) -> list[str]:
        """Return the pieces that are neither special nor bytes, by descending score.

        BPE joins two neighbouring pieces to the first of this list that any two form.
        """
        model = self._processor
        is_other = (model.IsControl, model.IsUnknown, model.IsByte, model.IsUnused)
        kept = [i for i in range(len(self)) if not any(is_kind(i) for is_kind in is_other)]
        return self.pieces(sorted(kept, key=model.GetScore, reverse=True))

    def surfaces(self) -> list[bytes]:
        """Return what each token adds to the escaped text, in UTF-8.

        Bytes of several tokens may form one character. A space before the text is not in it.
        """
        surfaces = [piece.replace(SPACE_MARK, " ").encode() for piece in self._pieces]
        for i, byte in enumerate(self.byte_values.tolist()):
            if byte >= 0 or self._processor.IsControl(i):
                surfaces[i] = bytes([byte]) if byte >= 0 else b""
        return surfaces

    def divide(self, line: str) -> list[str]:
        """Return the part of a line that each of its pieces stands for, without spaces.

        A character that is several pieces, its bytes, belongs to the last piece.
        """
        escaped = escape(line)
        pieces, ids = (self._encoder.Encode(escaped, out_type=kind) for kind in (str, int))
        parts, pending = [], b""
        for piece, token_id in zip(pieces, ids, strict=True):
            byte = int(self.byte_values[token_id]) if token_id < self._size else -1
            pending = pending + bytes([byte]) if byte >= 0 else b""
            text = pending.decode(errors="ignore") if byte >= 0 else piece
            pending = b"" if text else pending
            parts.append(_without_marks(text))
        return parts

    def spelled(self, text: str) -> str:
        """Return a text as its pieces spell it, without spaces; models may change characters."""
        return _without_marks(self._encoder.Normalize(escape(text)))

    def has_tag(self, tag: str) -> bool:
        """Return whether a tag at the start of a line is one piece, or one after a space."""
        *space, piece = self.pieces(self.encode([tag])[0])
        return piece.removeprefix(SPACE_MARK) == tag and space in ([], [SPACE_MARK])

    def tags(self) -> list[str]:
        """Return the pieces that can be tags, in the order of the vocabulary."""
        pieces = (piece.removeprefix(SPACE_MARK) for piece in self._pieces)
        return [piece for piece in pieces if tag_problem(piece) is None]

    def vocab_text(self) -> str:
        """Return one line per piece, with its score, like a .vocab file of SentencePiece."""
        score = self._processor.GetScore
        return "".join(f"{piece}\t{score(i):g}\n" for i, piece in enumerate(self._pieces))


def _without_marks(text: str) -> str:
    return text.replace(SPACE_MARK, "").replace(_ESCAPE, "")


def _ids(text: str | bytes, words: Mapping[str, int]) -> list[int]:
    """Return the token ids of words between spaces."""
    decoded = text.decode() if isinstance(text, bytes) else text
    return [words.get(word, UNK) for word in decoded.split(" ") if word]


def _load(content: bytes) -> Any:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    return processor


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The subword models of both languages, the same object if the vocabulary is joint."""

    source: SubwordModel
    target: SubwordModel
    normalization: Normalization = LATEST_NORMALIZATION  # of the training text
    tags: tuple[str, ...] = ()  # each training source began with one; empty if not, or if unknown
    tags_choose_language: bool = False

    @property
    def is_joint(self) -> bool:
        """Whether both languages share one vocabulary."""
        return self.source is self.target

    @property
    def fingerprint(self) -> str:
        """A hexadecimal digest of both models."""
        fingerprints = self.source.fingerprint + self.target.fingerprint
        return hashlib.sha256(fingerprints.encode()).hexdigest()

    def clean(self, lines: Iterable[str]) -> list[str]:
        """Return lines as the text that was trained on; lines without text are empty."""
        cleaned = map(self.normalization.normalize, lines)
        return [self._with_space(line) if line.strip() else "" for line in cleaned]

    def _with_space(self, line: str) -> str:
        """Return a line with a space after a tag such as >>fra<<, which OPUS-MT does not need."""
        tag, text = split_tag(line, self.tags) if line.startswith(">>") else ("", line)
        return f"{tag} {text}".rstrip() if tag else line

    def lacks(self, text: str) -> bool:
        """Return whether a source has a character without a piece: see `SubwordModel.lacks`."""
        return self.source.lacks(*self.clean([text]))

    def outputs(self, token_ids: Iterable[Sequence[int]]) -> list[str]:
        """Decode translations to lines, as they are printed."""
        return [self.normalization.output(text) for text in self.target.decode(token_ids)]

    def require_tag(self, tag: str) -> None:
        """Raise UsageError, with all tags, unless a tag is one of the vocabulary."""
        if tag_problem(tag) is not None or not self.source.has_tag(tag):
            raise UsageError(f"the model's vocabulary has no tag {tag}: {self.advised_tags(tag)}")

    def advised_tags(self, instead_of: str) -> str:
        """Return the advice to take one of the tags, the most similar ones first."""
        tags = self.tags or self.source.tags()
        near = get_close_matches(instead_of, tags, cutoff=_MIN_SIMILARITY)
        shown = shown_tags([*dict.fromkeys([*near, *tags])])
        return f"choose among {shown}" if tags else "leave it out"

    def check_tag(
        self, line: str, name: str, notify: Callable[[str], None], *, flag: str = ""
    ) -> bool:
        """Return whether a clean line lacks a tag, and `notify` of it; `flag` may give one, too."""
        if not self.tags or not line or line.split(maxsplit=1)[0] in self.tags:
            return False
        message = (
            f"{name} has no tag, but the model was trained with one before each sentence: begin it "
            f"with one of {shown_tags(self.tags)}{flag}"
        )
        if self.tags_choose_language:
            raise UsageError(message)
        notify(f"warning: {message}")
        return True

    @classmethod
    def load(
        cls,
        folder: Path,
        normalization: Normalization = LATEST_NORMALIZATION,
        *,
        tags: tuple[str, ...] = (),
        tags_choose_language: bool = False,
    ) -> "Vocabulary":
        """Read the subword models of a dataset or model folder, which may record other fields."""
        for separate in (False, True):
            paths = model_paths(folder, separate=separate)
            if all(path.is_file() for path in paths):
                models = [SubwordModel(path.read_bytes(), origin=path) for path in paths]
                return cls(models[0], models[-1], normalization, tags, tags_choose_language)
        raise DataError(
            f"{folder} has no subword model (bpe.model): run {tfm_command('learn-bpe', folder)}"
        )

    def files(self) -> dict[str, bytes]:
        """Return {file name: content} of the model or models, for `load` to read."""
        paths = model_paths(Path(), separate=not self.is_joint)
        models = (self.source, self.target)
        return {path.name: model.content for path, model in zip(paths, models, strict=False)}


def model_paths(folder: Path, *, separate: bool) -> list[Path]:
    """Return the paths of a folder's SentencePiece models: one joint, or source and target."""
    names = ("bpe.source", "bpe.target") if separate else ("bpe",)
    return [folder / f"{name}.model" for name in names]


def shown_tags(tags: Sequence[str]) -> str:
    """Return tags as a list for messages, without those after the first ones of a long list."""
    return ", ".join(tags[:_MAX_SHOWN]) + ", …" * (len(tags) > _MAX_SHOWN)


def escape(text: str) -> str:
    """Return a text as SentencePiece gets it; decoding undoes it."""
    for character, escaped in ESCAPES.items():
        text = text.replace(character, escaped)
    return text
