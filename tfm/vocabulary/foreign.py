"""SentencePiece models of other programs, mapped onto the special ids of `tfm.vocabulary.subword`.

A model is a protobuf message (sentencepiece_model.proto): its field 1 repeats the pieces, whose
order gives the ids, and its field 2 holds the settings that it was trained with.
"""

import io
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import sentencepiece

from tfm.errors import DataError, UsageError
from tfm.vocabulary.subword import (
    ABSENT_SCORE,
    BOS,
    EOS,
    PAD,
    SPACE_MARK,
    UNK,
    SubwordModel,
    Vocabulary,
    escape,
)

_SPECIAL = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}
_MISSING_PIECES = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}  # SentencePiece's own names
# Numbers of fields of a model, a piece and the settings of training; types of pieces and models.
_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_ID_FIELDS = {"unk": 40, "bos": 41, "eos": 42, "pad": 43}
_PIECE_FIELDS = {"unk": 45, "bos": 46, "eos": 47, "pad": 48}
_VOCABULARY_SIZE = 200  # as `SubwordModel` reads it
_MODEL_TYPE, _WORD, _NORMALIZER_NAME = 3, 3, 1
_VARINT, _BYTES, _FLOAT = 0, 2, 5  # wire types

_START_BYTES = 1 << 12
# Files of other programs that users take for a model, by how they begin.
_OTHER_FILES = {
    rb"#version: [\d.]+\s": "BPE codes of subword-nmt",
    rb"(?:[^\s]+ [^\s]+ \d+\r?\n){2}": "BPE codes of fastBPE",
    rb"\s*\{.*\"(?:added_tokens|pre_tokenizer|truncation)\"\s*:": "a tokenizer of Hugging Face",
    rb"(?:[^\t\n]+\t-?[\d.e-]+\r?\n){2}": "the list of pieces beside a SentencePiece model",
    rb"(?:[^\s]+ \d+\r?\n){2}": "a dictionary of fairseq",
}

Field = tuple[int, bytes]


def load_subword_models(paths: Sequence[Path]) -> list[SubwordModel]:
    """Read the joint model, or the models of source and target, that a user names.

    Args:
        paths: A folder of a dataset, model or run; or one or two SentencePiece files; or nothing.
    """
    if not paths:
        return []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist: check the path of the subword model")
        if not (path.is_dir() or path.is_file()):
            raise UsageError(f"{path} is a pipe or a device, but is read twice: write it to a file")
        if path.is_dir() and len(paths) > 1:
            raise UsageError(f"{path} is a folder, which has all subword models: give it alone")
        if other := other_file(path):
            raise UsageError(
                f"{path} is {other}, not a SentencePiece model: name a model (.model or .spm), or "
                "leave --subwords out to learn one from the text"
            )
    if paths[0].is_dir():
        vocabulary = Vocabulary.load(_folder_of_models(paths[0]))
        models = [vocabulary.source, vocabulary.target]
        return models[:1] if vocabulary.is_joint else models
    return [
        SubwordModel(with_fixed_ids(path.read_bytes(), origin=path), origin=path) for path in paths
    ]


def other_file(path: Path) -> str | None:
    """Return what a file of another program is that is not a model; None if it may be one."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
    kinds = (kind for begin, kind in _OTHER_FILES.items() if re.match(begin, start, re.DOTALL))
    return next(kinds, None)


def _folder_of_models(path: Path) -> Path:
    """Return the folder itself, or a model of a run: all models of a run share their pieces."""
    folders = [path, path / "averaged", *sorted((path / "checkpoints").glob("step-*"))]
    found = next((folder for folder in folders if any(folder.glob("bpe*.model"))), None)
    if found is None:
        raise UsageError(
            f"{path} has no subword model: name a dataset, model or run folder, or a SentencePiece "
            "file"
        )
    return found


def with_fixed_ids(content: bytes, *, origin: Path) -> bytes:
    """Return a SentencePiece model with pad, bos, eos and unk at the ids of tfm.

    Special pieces that the model lacks are added. The other pieces keep their order, and all lines
    their encoding. A model that has these ids is returned unchanged.
    """
    original = _load(content, origin)
    ids = {name: getattr(original, f"{name}_id")() for name in _SPECIAL}
    if ids == _SPECIAL:
        return content
    present = [number for number in ids.values() if number >= 0]
    if len(set(present)) < len(present):
        raise DataError(
            f"{origin} has one piece for several of pad, bos, eos and unk (ids "
            f"{', '.join(map(str, ids.values()))}): train a SentencePiece model with different ones"
        )
    fields = _split(content, origin)
    pieces = [value for number, value in fields if number == _PIECES]
    special = {}
    for name, number in ids.items():
        piece = original.IdToPiece(number) if number >= 0 else _MISSING_PIECES[name]
        if number < 0 and original.PieceToId(piece) != original.unk_id():
            raise DataError(
                f"{origin} has {piece} as a piece of text, so it cannot be {name}: train a "
                f"SentencePiece model with {name}_id, or without this piece"
            )
        special[piece] = pieces[number] if number >= 0 else _new_piece(piece, _CONTROL)
    ordinary = (piece for number, piece in enumerate(pieces) if number not in present)
    return _assemble(special, ordinary, fields)


def text_pieces(content: bytes, *, origin: Path) -> dict[str, bytes]:
    """Return the pieces that a SentencePiece model encodes text to, with their messages."""
    model = _load(content, origin)
    messages = (value for number, value in _split(content, origin) if number == _PIECES)
    return {
        model.IdToPiece(i): message
        for i, message in enumerate(messages)
        if not (model.IsControl(i) or model.IsUnknown(i) or model.IsUnused(i))
    }


def pieces_by_id(content: bytes, *, origin: Path) -> tuple[list[str], int, int]:
    """Return the pieces of a SentencePiece model, and the ids of eos and unk."""
    model = _load(content, origin)
    if model.eos_id() < 0:
        raise DataError(f"{origin} has no piece for the end of a sentence: name another file")
    return [model.IdToPiece(i) for i in range(len(model))], model.eos_id(), model.unk_id()


def with_vocabulary(
    content: bytes, vocabulary: Sequence[str], *, tags: Collection[str] = (), origin: Path
) -> bytes:
    """Return a SentencePiece model that encodes text as another, with the ids of a vocabulary.

    Pieces of the vocabulary that the model lacks are only decoded, not encoded, unless the model
    has none of their characters: text that is unknown to the model is looked up in the vocabulary.
    Pieces of the model that the vocabulary lacks divide text, and are unknown.

    Args:
        content: The other model.
        vocabulary: [V] distinct pieces by id; the first four are pad, bos, eos and unk.
        tags: Pieces of the vocabulary that are words of the text, such as ">>fra<<".
        origin: Path of the model, for error messages.
    """
    known = text_pieces(content, origin=origin)
    characters = set().union(*known)
    special = _special_pieces(vocabulary)

    def message(piece: str) -> bytes:
        if piece in tags:
            return _new_piece(SPACE_MARK + piece, _USER_DEFINED)
        if piece.rstrip("_") in special:
            return _new_piece(piece, _CONTROL)
        if piece in known:
            return known[piece]
        if characters.isdisjoint(piece):
            return _new_piece(piece, _USER_DEFINED)
        return _new_piece(piece, _UNUSED, score=ABSENT_SCORE)

    others = known.keys() - {*vocabulary, *(SPACE_MARK + tag for tag in tags)}
    unknown = [each for piece, each in known.items() if piece in others]
    pieces = [*map(message, vocabulary[len(_SPECIAL) :]), *unknown]
    size = _size(vocabulary) if unknown else b""
    return _assemble(special, pieces, _split(content, origin)) + size


def word_model(vocabulary: Sequence[str]) -> bytes:
    """Return a model whose pieces are words between spaces; the first four are as above.

    Each word that it lacks is an unknown token, unlike in other models.
    """
    words = vocabulary[len(_SPECIAL) :]
    pieces = [_new_piece(SPACE_MARK + escape(word), _NORMAL) for word in words]
    settings = [
        (_TRAINER_SPEC, _number(_MODEL_TYPE, _WORD)),
        (_NORMALIZER_SPEC, _text(_NORMALIZER_NAME, "identity")),
    ]
    return _assemble(_special_pieces(vocabulary), pieces, settings) + _size(vocabulary)


def _size(vocabulary: Sequence[str]) -> bytes:
    return _text(_VOCABULARY_SIZE, str(len(vocabulary)))


def _special_pieces(vocabulary: Sequence[str]) -> dict[str, bytes]:
    """Return the first pieces of a vocabulary, which are special, with their messages."""
    types = (_UNKNOWN if id_ == UNK else _CONTROL for id_ in _SPECIAL.values())
    return {
        piece: _new_piece(piece, type_) for piece, type_ in zip(vocabulary, types, strict=False)
    }


def _assemble(
    special: Mapping[str, bytes], pieces: Iterable[bytes], fields: Iterable[Field]
) -> bytes:
    """Replace the pieces of a model by special ones, in the order of their ids, and others."""
    settings = b"".join(
        _number(_ID_FIELDS[name], _SPECIAL[name]) + _text(_PIECE_FIELDS[name], piece)
        for name, piece in zip(_SPECIAL, special, strict=True)
    )
    messages = [(_PIECES, piece) for piece in (*special.values(), *pieces)]
    others = [field for field in fields if field[0] != _PIECES]
    # Of a setting that is there twice, the last one counts.
    return b"".join(_field(*each) for each in (*messages, *others, (_TRAINER_SPEC, settings)))


def _load(content: bytes, origin: Path) -> sentencepiece.SentencePieceProcessor:
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
    except RuntimeError as error:
        raise DataError(f"{origin} is not a SentencePiece model: name another file") from error
    return model


def _split(message: bytes, origin: Path) -> list[Field]:
    """Return the number and content of each field of a message that consists of messages."""
    file, fields = io.BytesIO(message), []

    def varint() -> int:
        [byte] = file.read(1)
        return byte if byte < 0x80 else byte - 0x80 + (varint() << 7)

    while file.tell() < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type != _BYTES:
            raise DataError(f"{origin} is a SentencePiece model of an unknown format")
        fields.append((number, file.read(varint())))
    return fields


def _new_piece(piece: str, type_: int, *, score: float = 0.0) -> bytes:
    number = _varint(8 * _SCORE + _FLOAT) + struct.pack("<f", score)
    return _text(_PIECE, piece) + number + _number(_TYPE, type_)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(8 * number + _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(8 * number + _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)
