"""Banned text: exactly the tokens that complete it are ruled out."""

import random
import re
import unicodedata

import pytest
from search.workshop import EVERY_SEARCH, SEARCHES

from tfm.commands.translator import Translator
from tfm.config import LATEST_NORMALIZATION, Normalization
from tfm.errors import DataError
from tfm.search.constraints import BannedText, read_phrases
from tfm.vocabulary.subword import Vocabulary


@pytest.fixture(
    scope="module", params=[LATEST_NORMALIZATION, Normalization(unicode=False)], ids=str
)
def vocabulary(data_dir, request):
    return Vocabulary.load(data_dir, request.param)


def pattern_of(phrases):
    def edge(character):
        return character.isdigit() or character.lower() != character.upper()

    word = r"[\w\u0300-\u036f]"
    alternatives = (
        (rf"(?<!{word})" if edge(p[0]) else "")
        + re.escape(p)
        + (rf"(?!{word})" if edge(p[-1]) else "")
        for p in (unicodedata.normalize("NFC", phrase) for phrase in phrases)
    )
    return re.compile("|".join(f"(?:{each})" for each in alternatives))


PHRASES = [
    ["am"],
    ["am Montag", "acht", "8"],
    ["a", "an", "an a", "e", "t"],
    ["ä", "üb", "日本", "ा", "x y z"],
    ["(", ") a", "a(", "\u2581", "A_"],
    ["eins zwei", "zwei drei", "e\u0301"],
    ["Ti\u1ebfng Vi\u1ec7t", "Việt", "schön", "が"],
    ["か", "가", "schon", "각 나"],
]


def random_hypothesis(vocabulary, phrases, chance):
    """Return tokens whose text often contains parts of phrases."""
    model = vocabulary.target
    tokens = []
    for _ in range(chance.randrange(6)):
        phrase = chance.choice(phrases)
        phrase = unicodedata.normalize(chance.choice(["NFC", "NFD"]), phrase)
        if chance.random() < 0.3:  # ệ as ê and a dot
            phrase = phrase.replace("\u0323\u0302", "\u0302\u0323")
        [ids] = model.encode([phrase[: chance.randrange(len(phrase) + 1)]])
        spelled = [chance.randrange(4, len(model))] if chance.random() < 0.3 else ids
        if chance.random() < 0.3:  # in bytes
            spelled = [
                next(t for t, s in enumerate(model.surfaces()) if s == bytes([byte]) and t > 3)
                for byte in phrase.encode()[: chance.randrange(5)]
                if byte != 0x20
            ]
        if chance.random() < 0.3:
            spelled = [
                *spelled,
                *model.encode([chance.choice([" ", "\u200b", "\0", "\n", "\u0308"])])[0],
            ]
        tokens += spelled
    return tokens


def printed(vocabulary, token_ids):
    return [unicodedata.normalize("NFC", text) for text in vocabulary.outputs(token_ids)]


@pytest.mark.parametrize("phrases", PHRASES, ids=str)
def test_exactly_the_tokens_that_complete_banned_text_are_ruled_out(vocabulary, phrases):
    model, pattern, chance = vocabulary.target, pattern_of(phrases), random.Random(1)
    banned = BannedText(phrases, vocabulary)
    always = set(banned.always)
    num_completed = num_checked = 0
    while num_checked < 60:
        tokens = random_hypothesis(vocabulary, phrases, chance)
        prefixes = [tokens[:size] for size in range(len(tokens) + 1)]
        if any(map(pattern.search, printed(vocabulary, prefixes))):
            continue
        num_checked += 1
        candidates = range(4, len(model))
        texts = printed(vocabulary, [[*tokens, candidate] for candidate in candidates])
        expected = {
            candidate
            for candidate, text in zip(candidates, texts, strict=True)
            if pattern.search(text)
        }
        ruled_out = always | banned.completing(tokens)
        assert ruled_out == expected, model.decode([tokens])
        num_completed += len(expected - always)
    assert num_completed


WORDS_TO_BAN = ["am", "der", "drei Autos", "1", "neun", "ist"]


@EVERY_SEARCH
def test_no_translation_contains_banned_text(kind, trained_run, tmp_path):
    translator = Translator.load(trained_run, device="cpu")
    lines = ["on Monday", "seven", "today is the third of May", "I am buying nine cars"]
    settings = {**SEARCHES[kind], "max_extra_length": 4}
    if kind == "exact":
        settings["node_limit"] = 50
    free = [each.text for best in translator.search(lines, **settings) for each in best]
    words = {word for text in free for word in text.split() if word.isalnum()}
    words |= set(WORDS_TO_BAN)
    (tmp_path / "ban").write_text("".join(f"{word}\n" for word in sorted(words)), encoding="utf-8")
    found = translator.search(lines, **settings, ban=str(tmp_path / "ban"), no_repeat_ngram=3)
    texts = [each.text for best in found for each in best]
    assert any(texts)
    pattern = pattern_of(sorted(words))
    assert not list(filter(pattern.search, texts))
    assert any(map(pattern.search, free))


def test_a_changed_file_is_read_again(trained_run, tmp_path):
    translator, path = Translator.load(trained_run, device="cpu"), tmp_path / "ban"
    for _ in range(2):
        before = translator.translate("on Monday", max_extra_length=4)
        path.write_text(before.split()[0], encoding="utf-8")
        assert translator.translate("on Monday", max_extra_length=4, ban=str(path)) != before
        path.write_text("something else", encoding="utf-8")
        assert translator.translate("on Monday", max_extra_length=4, ban=str(path)) == before


def test_phrases_have_single_spaces_and_no_empty_lines(tmp_path):
    (tmp_path / "ban").write_bytes("\ufeff am\u00a0 Montag \r\n\n \nä\n".encode())
    assert read_phrases(tmp_path / "ban") == ["am Montag", "ä"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has no text to ban"),
        (b" \n\n", "has no text to ban"),
        (b"a\n\xff\n", "line 2 is not UTF-8"),
        ("a\nb\ufffd\n".encode(), "line 2 has U\\+FFFD"),
        (b"a\n" * 10_001, "line 10,001: at most 10,000 lines of 100 characters"),
        (b"a\n" + b"b" * 101, "line 2: at most"),
    ],
)
def test_a_file_that_is_not_usable_is_refused(tmp_path, content, reason):
    (tmp_path / "ban").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_phrases(tmp_path / "ban")
