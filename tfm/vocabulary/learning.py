"""Learning subword vocabularies with SentencePiece, and the words of a text as vocabulary."""

import io
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tfm.config import SubwordConfig
from tfm.errors import DataError, TfmError, UsageError
from tfm.machine.background import run_in_thread
from tfm.reporting import say
from tfm.text.lines import read_lines
from tfm.vocabulary.subword import BOS, EOS, PAD, SPACE_MARK, UNK, SubwordModel, escape

# (number of pairs, vocabulary size). The last size is the paper's for WMT 2014 (§5.1); 16,000 is
# the paper's for the 40,000 sentences of the Wall Street Journal (§6.3).
_VOCABULARIES = ((500, 1_000), (30_000, 8_000), (300_000, 16_000), (2_000_000, 37_000))
_TREE_VOCABULARIES = ((500, 1_000), (40_000, 16_000), (2_000_000, 32_000))

_SEED = 1
_MAX_WORDS = 1_000_000
_MOST = 0.5  # of the pieces
_MAX_SENTENCE_BYTES = 4_192  # longer lines are skipped in learning, but can be encoded


def default_vocab_size(num_pairs: int, *, for_trees: bool = False) -> int:
    """Return the vocabulary size of the paper (§5.1; §6.3 for trees), or less for small corpora.

    Between the sizes that are known to work, the size grows as a power of the number of pairs,
    rounded to two digits.
    """
    pairs, sizes = zip(*(_TREE_VOCABULARIES if for_trees else _VOCABULARIES), strict=True)
    size = np.exp(np.interp(np.log(max(1, num_pairs)), np.log(pairs), np.log(sizes)))
    return sizes[-1] if num_pairs >= pairs[-1] else int(float(f"{size:.1e}"))


def learn_subword_models(
    source: Sequence[Path], target: Sequence[Path], config: SubwordConfig
) -> list[SubwordModel]:
    """Learn a joint model, or models of source and target, from the files of both sides."""
    more = f" and {len(source) - 1} more parts" if source[1:] else ""
    say(f"learn-bpe: learning from {source[0]} and {target[0]}{more}")
    if not config.separate:
        return [_learn_sides([source, target], config)]
    if config.target_words:
        target_model = learn_word_model(target)
        return [_learn_sides([source], config), target_model]
    return [
        _learn_sides([source], config),
        _learn_sides([target], replace(config, symbols=None)),
    ]


def _learn_sides(sides: Sequence[Sequence[Path]], config: SubwordConfig) -> SubwordModel:
    """Learn one model, and say if most of its pieces are single characters."""
    model = _of_chosen_size(sides, config)
    pieces = model.pieces(range(len(model)))
    num_single = sum(len(piece.removeprefix(SPACE_MARK)) == 1 for piece in pieces)
    if num_single > _MOST * len(model):
        say(
            f"learn-bpe: {num_single:,} of {len(model):,} pieces are single characters, which "
            "makes sentences long: give a larger --vocab-size, or a lower --character-coverage"
        )
    return model


def _of_chosen_size(sides: Sequence[Sequence[Path]], config: SubwordConfig) -> SubwordModel:
    """Learn a model; the default size is changed if the text is too small, or has more characters.

    If it has more characters, there is room for as many pieces besides.
    """
    learn = partial(learn_subword_model, [*chain(*sides)], config)
    if config.vocab_size is not None:
        return learn(vocab_size=config.vocab_size)
    num_pairs = sum(1 for path in sides[0] for _ in read_lines(path, strict=False))
    size = default_vocab_size(num_pairs, for_trees=config.target_words)
    try:
        model = learn(vocab_size=size)
    except VocabularySizeError as error:
        larger = 2 * error.nearest if error.nearest > size else error.nearest
        try:
            model = learn(vocab_size=larger)
        except VocabularySizeError as smaller:
            model = learn(vocab_size=smaller.nearest)
    say(
        f"learn-bpe: chose {len(model):,} pieces for {num_pairs:,} pairs (choose another number "
        "with --vocab-size)"
    )
    return model


def learn_subword_model(
    texts: Sequence[Path], config: SubwordConfig, *, vocab_size: int
) -> SubwordModel:
    """Learn a SentencePiece model from UTF-8 files with one sentence per line.

    Unicode is not normalized, so that decoding restores every line. `vocab_size` replaces the
    config's.
    """
    return _learn(
        texts,
        model_type=config.model_type,
        vocab_size=vocab_size,
        character_coverage=config.character_coverage,
        byte_fallback=config.byte_fallback,
        # With the space that SentencePiece puts before each line, a tag is a single piece.
        user_defined_symbols=[SPACE_MARK + tag for tag in (config.symbols or "").split()],
        input_sentence_size=config.sample_sentences,
        shuffle_input_sentence=True,
        num_threads=1,  # unigram pieces depend on the number
    )


def learn_word_model(texts: Sequence[Path]) -> SubwordModel:
    """Build a model whose pieces are the words of UTF-8 text, such as linearized trees."""
    return _learn(
        texts,
        model_type="word",
        vocab_size=_MAX_WORDS,
        hard_vocab_limit=False,
        character_coverage=1.0,
    )


def _learn(texts: Sequence[Path], *, vocab_size: int, **options: Any) -> SubwordModel:
    model = io.BytesIO()
    num_long = 0

    def sentences() -> Iterator[str]:
        nonlocal num_long
        for line in _sample(texts, options.get("input_sentence_size", 0)):
            sentence = escape(line.decode(errors="replace"))
            num_long += len(sentence.encode()) > _MAX_SENTENCE_BYTES
            yield sentence

    def learn() -> None:
        sentencepiece.SentencePieceTrainer.Train(
            # If SentencePiece read the files itself, it would save their paths in the model.
            sentence_iterator=sentences(),
            model_writer=model,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            minloglevel=2,
            vocab_size=vocab_size,
            **options,
        )

    try:
        run_in_thread(learn).result()  # in the main thread, Ctrl-C would wait for the end
    except RuntimeError as error:
        raise _learning_error(str(error), vocab_size, texts) from error
    if num_long:
        say(
            f"warning: nothing is learned from {num_long:,} lines of more than "
            f"{_MAX_SENTENCE_BYTES:,} bytes, which SentencePiece skips: put one sentence on each "
            "line"
        )
    return SubwordModel(model.getvalue(), origin=Path("the learned model"))


def _sample(texts: Sequence[Path], size: int) -> Iterator[bytes]:
    """Yield a sample of `size` lines of texts, in their order; all lines if `size` is 0.

    SentencePiece gets no more lines than it would take: it would draw others in each process.
    """
    num_lines = sum(1 for path in texts for _ in read_lines(path, strict=False)) if size else 0
    num_left, num_wanted = num_lines, min(size, num_lines)
    draw = random.Random(_SEED).random  # noqa: S311 - alike in all versions
    for path in texts:
        for line in read_lines(path, strict=False):
            if num_wanted == num_left or draw() * num_left < num_wanted:
                num_wanted -= 1
                yield line
            num_left -= 1


class VocabularySizeError(UsageError):
    """The vocabulary size does not fit the text; `nearest` is the nearest size that does."""

    def __init__(self, message: str, *, nearest: int) -> None:
        super().__init__(message)
        self.nearest = nearest


def _learning_error(message: str, vocab_size: int, texts: Sequence[Path]) -> TfmError:
    """Translate an error of SentencePiece into an error that says what to do."""
    names = ", ".join(str(path) for path in texts)
    size = f"a vocabulary of {vocab_size:,}"
    if match := re.search(r"set it to a value <= (\d+)", message):
        advice = f"the largest that works is --vocab-size {match[1]}"
        problem = f"{size} is too large for {names}: {advice}"
        return VocabularySizeError(problem, nearest=int(match[1]))
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        advice = f"use at least --vocab-size {match[1]}, or a lower --character-coverage"
        problem = f"{size} is too small for the characters of {names}: {advice}"
        return VocabularySizeError(problem, nearest=int(match[1]))
    if "sentences_.empty()" in message:
        return DataError(
            f"there is nothing to learn from in {names}: all lines are empty, or longer than "
            f"{_MAX_SENTENCE_BYTES:,} bytes"
        )
    reason = message.partition("\n")[0]
    return DataError(f"SentencePiece cannot learn from {names}: {reason}")
