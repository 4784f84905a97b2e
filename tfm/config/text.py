"""The settings of preparing text: defaults, units, limits and help."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tfm.config.normalization import Normalization
from tfm.config.schema import (
    MAX_COUNT,
    MAX_LENGTH,
    MAX_SEED,
    MAX_THREADS,
    Problem,
    Settings,
    count,
    setting,
)
from tfm.config.values import Line, shown

_TAG = re.compile(r"<[A-Za-z0-9_-]{1,30}>|>>[A-Za-z0-9_-]{1,30}<<")  # as OPUS-MT's >>fra<<
_RESERVED_PIECES = re.compile(r"<(pad|s|unk|0x..)>")  # of SentencePiece
_NUM_SPECIAL, _NUM_BYTES = 4, 256  # pieces of every vocabulary, and of byte fallback
# The settings of learning a subword model, which a given one excludes.
_OF_LEARNING = (
    *("vocab_size", "model_type", "separate", "target_words"),
    *("character_coverage", "byte_fallback", "sample_sentences"),
)


def tag_problem(tag: str) -> str | None:
    """Return why text cannot be a tag before source sentences, after its name; None if it can."""
    if not _TAG.fullmatch(tag):
        return f"is {shown(tag)}, but must be a name in angle brackets, such as <bt>"
    if _RESERVED_PIECES.fullmatch(tag):
        return f"is {tag}, but must not be a piece that every vocabulary has"
    return None


@dataclass(frozen=True, kw_only=True)
class CleaningConfig(Settings, section="cleaning"):
    """Rules for training text; validation and test text are never cleaned."""

    normalize_space: bool = setting(
        True,
        "Normalize white space, invisible characters and Windows-1252; also in text to translate.",
    )
    normalize_unicode: bool = setting(
        True, "Compose Unicode (NFC), such as u and ¨ to ü, in all text; also in text to translate."
    )
    decode_entities: bool = setting(
        False,
        "Decode HTML entities, such as &amp; to & and &#39; to ', and &amp;quot; to a quote.",
    )
    drop_empty: bool = setting(True, "Drop pairs with an empty side.")
    max_characters: int = setting(
        1_000,
        "Drop pairs with a side of more than N characters; 0 keeps all.",
        limits=(0, MAX_COUNT),
    )
    max_length_ratio: float = setting(
        2.0,
        "Drop pairs with a side over X times as long as usual in the text; 0 keeps all.",
        limits=(0, MAX_COUNT),
    )
    drop_duplicates: bool = setting(True, "Keep only the first of identical pairs.")
    drop_copies: bool = setting(True, "Drop pairs whose two sides are the same text.")
    drop_mojibake: bool = setting(
        False, "Drop pairs with text decoded from the wrong encoding, such as fÃ¼r instead of für."
    )
    drop_other_script: bool = setting(
        False, "Drop pairs with a side that is mostly not in the script of its language."
    )
    drop_unequal_numbers: bool = setting(
        False, "Drop pairs whose sides have different numbers; only numbers in digits count."
    )
    drop_other_language: bool = setting(
        False,
        "Drop pairs with a side in another language, as py3langid (extra: langid) identifies it.",
    )
    min_identified_characters: int = setting(
        40,
        "Do not identify the language of sides of fewer than N characters, which is unreliable.",
        limits=(0, MAX_COUNT),
        needs=("drop_other_language",),
    )
    max_length_deviations: float = setting(
        0.0,
        "Drop pairs whose length ratio is over X deviations from the text's mean; 0 keeps all.",
        limits=(0, 1000),
    )
    max_punctuation_deviations: float = setting(
        0.0,
        "Drop pairs whose punctuation ratio is over X deviations from its mean; 0 keeps all.",
        limits=(0, 1000),
    )
    protect: tuple[str, ...] = setting(
        (),
        "Drop pairs with a side that is in this test set or file, exactly or nearly; repeatable.",
        metavar="NAME|FILE",
    )
    shard_pairs: int = setting(
        10_000_000,
        "Write the training text in shards, each with what is kept of N consecutive pairs.",
        limits=(100, MAX_COUNT),
    )
    score_model: str | None = setting(
        None,
        "Model or run that scores pairs by the mean log probability of target tokens in nats.",
        metavar="MODEL",
        needs=("min_score", "unique_sides"),
    )
    scores: str | None = setting(
        None,
        "File with a number per pair of the training text, in its order, higher for better pairs.",
        metavar="FILE",
        needs=("min_score", "unique_sides"),
        excludes=("score_model",),
    )
    min_score: float | None = setting(
        None,
        "Drop pairs with a score below X, such as -5 by a model, or 0.5 in a file.",
        limits=(-1000, 1000),
        needs=("score_model", "scores"),
    )
    unique_sides: Literal["source", "target", "both"] | None = setting(
        None,
        "Of pairs with the same source, target or either, keep the best by scores or the first.",
    )
    hold_out: int = setting(
        0,
        "Hold out N training pairs as validation text, and N as test text, where none is given.",
        limits=(0, MAX_COUNT),
        common=True,
    )
    hold_out_seed: int = setting(
        1,
        "Choose other pairs to hold out with another number.",
        limits=(0, MAX_SEED),
        needs=("hold_out",),
    )

    @property
    def normalization(self) -> Normalization:
        """The current rules by which text is normalized."""
        return Normalization(space=self.normalize_space, unicode=self.normalize_unicode)


@dataclass(frozen=True, kw_only=True)
class SubwordConfig(Settings, section="subword"):
    """The subword model, trained by SentencePiece."""

    vocab_size: int | None = setting(
        None,
        "Number of pieces in the vocabulary; if unset, it depends on the size of the text.",
        limits=(8, 1_000_000),
        common=True,
    )
    model_type: Literal["bpe", "unigram"] = setting(
        "bpe", "Subword algorithm; unigram takes several times as long to learn."
    )
    separate: bool = setting(False, "Learn one vocabulary per language instead of a joint one.")
    target_words: bool = setting(
        False,
        "Make each target word one piece, as for symbols of trees; needs --separate.",
        needs=("separate",),
    )
    character_coverage: float = setting(
        0.9999, "Fraction of the text's characters that the vocabulary covers.", limits=(0.98, 1)
    )
    subwords: tuple[str, ...] = setting(
        (),
        "Folder or file of an existing subword model; give it twice for source and target.",
        common=True,
        metavar="PATH",
        excludes=_OF_LEARNING,
    )
    byte_fallback: bool = setting(
        True, "Spell uncovered characters in UTF-8 bytes instead of an unknown token."
    )
    symbols: Line | None = setting(
        None, "Tags such as '<bt> <2fr>' to reserve a piece for, besides the recipe's."
    )
    sample_sentences: int = setting(
        5_000_000,
        "Learn from a random sample of N lines; a million lines take about 0.6 GB of memory.",
        limits=(101, MAX_COUNT),
    )

    def _contradictions(self) -> Iterator[Problem]:
        if len(self.subwords) > 2:
            yield Problem(
                "subwords",
                f"subwords has {len(self.subwords)} models, but must have one, or one of the "
                "source and one of the target language",
            )
        symbols = (self.symbols or "").split()
        if problem := next(filter(None, map(tag_problem, symbols)), None):
            yield Problem("symbols", f"symbols in [subword] {problem}")
        if repeated := next((tag for tag, n in Counter(symbols).items() if n > 1), None):
            yield Problem("symbols", f"symbols in [subword] have {repeated} twice: give it once")
        num_fixed = _NUM_SPECIAL + _NUM_BYTES * self.byte_fallback + len(symbols)
        if self.vocab_size is not None and not self.subwords and self.vocab_size <= num_fixed:
            yield Problem(
                "vocab_size",
                f"vocab_size is {self.vocab_size}, but must be more than {num_fixed}, the number "
                f"of special tokens{', bytes' if self.byte_fallback else ''} and symbols",
            )


@dataclass(frozen=True, kw_only=True)
class BinarizeConfig(Settings, section="binarize"):
    """Conversion of text to token ids."""

    max_length: int = count(
        250,
        "Drop training pairs with a side of more than N subword tokens.",
        most=MAX_LENGTH,
        common=True,
    )
    threads: int | None = count(
        None, "Number of CPU threads; if unset, one per core.", most=MAX_THREADS
    )
    seen_megabytes: int = setting(
        64,
        "Record the training text for tfm score, in a file of at most N MB; 0 makes no record.",
        limits=(0, 4096),
    )
    written_by: tuple[str, ...] = setting(
        (),
        "Model or run that wrote some of the text: what it has seen counts as seen; repeatable.",
        metavar="MODEL",
    )
