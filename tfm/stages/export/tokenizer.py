"""The tokenizer.json of Hugging Face's tokenizers that encodes text as a vocabulary of tfm does."""

from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from tfm.config.normalization import SPACES
from tfm.data.subword import BOS, EOS, PAD, SPACE_MARK, UNK, Vocabulary
from tfm.errors import UsageError

_FIRST_BYTE = "<0x00>"
_PIECES_PER_LINE = 20
# What normalization may change, names of special pieces, rare characters, runs of one character.
_ODD_LINES = (
    "",
    "  a\tb\xa0c \u200b \u3000d\r\n ",
    "ﬁ Å A\u030a ½ Ａ① ABC",
    f"{SPACE_MARK} \ufdd0 \ufdd01 {SPACE_MARK}{SPACE_MARK}",
    "<s> </s><pad> <unk> <0x41>",
    "🙂 é 中文\x00\ufffd",
    "aaaaaaaaaaaaa -------- ababababab",
)


def new_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer of a joint BPE vocabulary, which also cleans text as tfm does.

    Raises:
        UsageError: It would encode or decode some text differently.
    """
    model = vocabulary.source
    pieces = model.pieces(range(len(model)))
    text_pieces = model.text_pieces()
    merges = list(_merges(text_pieces))
    # Learned pieces join two others. Text with a tag, which does not, is cut at it before BPE.
    joined = {left + right for left, right in merges}
    tags = {piece for piece in text_pieces if len(piece) > 1 and piece not in joined}
    names = [_content(piece) if piece in tags else piece for piece in pieces]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: token_id for token_id, name in enumerate(names)},
            merges=merges,
            unk_token=pieces[UNK],
            fuse_unk=True,
            byte_fallback=_FIRST_BYTE in pieces,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(list(_normalizers(vocabulary)))
    tokenizer.add_special_tokens(
        [AddedToken(pieces[token_id], normalized=False) for token_id in (PAD, BOS, EOS, UNK)]
    )
    # The normalizer also changes these names: to the pieces, with a space before the tag.
    tokenizer.add_tokens([AddedToken(_content(tag), normalized=True) for tag in sorted(tags)])
    eos = pieces[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, EOS)]
    )
    tokenizer.decoder = decoders.Sequence(list(_decoders(vocabulary)))
    _check_equal(tokenizer, vocabulary)
    return tokenizer


def _merges(text_pieces: list[str]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of pieces that form a piece, those that form the best piece first."""
    known = set(text_pieces)
    for piece in text_pieces:
        for cut in range(1, len(piece)):
            if piece[:cut] in known and piece[cut:] in known:
                yield piece[:cut], piece[cut:]


def _content(tag: str) -> str:
    return tag.removeprefix(SPACE_MARK)


def _normalizers(vocabulary: Vocabulary) -> Iterator[normalizers.Normalizer]:
    """Yield the steps of `Vocabulary.clean`, of `SubwordModel.encode` and of SentencePiece."""
    rules = vocabulary.normalization
    for character, replacement in rules.replacements.items():
        yield normalizers.Replace(character, replacement)
    if rules.space:
        yield normalizers.Replace(Regex(rules.invisible.pattern), "")
        yield normalizers.Replace(Regex(SPACES.pattern), " ")
        yield normalizers.Replace(Regex(r"\A | \z"), "")
    else:
        yield normalizers.Replace(Regex(rf"\A{SPACES.pattern}\z"), "")
    if rules.unicode:
        yield normalizers.NFC()
    for character, escaped in vocabulary.source.escapes.items():
        yield normalizers.Replace(character, escaped)
    yield normalizers.Prepend(SPACE_MARK)
    yield normalizers.Replace(" ", SPACE_MARK)


def _decoders(vocabulary: Vocabulary) -> Iterator[decoders.Decoder]:
    """Yield the steps of SentencePiece and of `SubwordModel.decode`."""
    yield decoders.Replace(SPACE_MARK, " ")
    yield decoders.ByteFallback()
    yield decoders.Fuse()
    yield decoders.Strip(" ", 1, 0)
    for character, escaped in reversed(vocabulary.source.escapes.items()):
        yield decoders.Replace(escaped, character)


def _check_equal(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Raise UsageError unless both encode and decode a sample with all pieces alike."""
    texts = [piece.replace(SPACE_MARK, " ") for piece in vocabulary.source.text_pieces()]
    starts = range(0, len(texts), _PIECES_PER_LINE)
    joined = ["".join(texts[start : start + _PIECES_PER_LINE]) for start in starts]
    lines = [*_ODD_LINES, *texts, *joined]
    tokenizer.encode_special_tokens = True  # not saved: names of special pieces are text
    found = tokenizer.encode_batch(lines, add_special_tokens=False)
    expected = vocabulary.source.encode(vocabulary.clean(lines))
    for line, encoding, token_ids in zip(lines, found, expected, strict=True):
        if encoding.ids != token_ids or (
            UNK not in token_ids
            and [tokenizer.decode(token_ids)] != vocabulary.source.decode([token_ids])
        ):
            raise UsageError(
                f"a tokenizer.json cannot express this subword model: it encodes {line!r} "
                f"differently (such as one that normalizes Unicode): export with another --format"
            )
