"""Constraints on outputs: no n-gram twice, and no banned text."""

import itertools
import random
import re
import unicodedata

import numpy as np
import pytest
import torch
from search.workshop import EVERY_SEARCH, SEARCHES
from small_models import batch_of, transformer

from tfm.commands.translator import Translator
from tfm.config import LATEST_NORMALIZATION, Normalization, SearchConfig
from tfm.errors import DataError
from tfm.search import search
from tfm.search.active import ActiveHypotheses
from tfm.search.constraints import BannedText, Constraints, read_phrases
from tfm.search.forced import forced_decoding
from tfm.vocabulary.subword import EOS, Vocabulary

V = 7
WORDS = (4, 5, 6)
SOURCES = [[4, 5, EOS], [6, EOS], [5, 5, 6, EOS]]


def find(kind, model, constraints, *, prefixes=None, **changes):
    config = SearchConfig(**{"max_extra_length": 6, **SEARCHES[kind], **changes})
    with torch.inference_mode():
        return search(
            model, *batch_of(SOURCES), config,
            line_numbers=range(3), prefixes=prefixes, constraints=constraints,
        )  # fmt: skip


def ngrams(tokens, size):
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


def repeats(tokens, size):
    return len(set(ngrams(tokens, size))) < len(ngrams(tokens, size))


# --- n-grams


@EVERY_SEARCH
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_occurs_twice(kind, size):
    some_would = False
    for seed in range(3):
        model = transformer(V, seed, sharpness=2)
        free = find(kind, model, None)
        some_would |= any(repeats(each.tokens, size) for best in free for each in best)
        for best in find(kind, model, Constraints(size, None)):
            assert best
            assert not any(repeats(each.tokens, size) for each in best)
    assert some_would


@pytest.mark.parametrize("size", [1, 2])
def test_exact_search_finds_the_best_outputs_without_a_repeated_ngram(size):
    model = transformer(V, sharpness=2)
    config = {"node_limit": 10_000, "max_extra_length": 2, "n_best": 2, "min_length": 0}
    found = find("exact", model, Constraints(size, None), **config)
    for source, best in zip(SOURCES, found, strict=True):
        outputs = [
            output
            for length in range(len(source) + 2)
            for output in itertools.product(WORDS, repeat=length)
            if not repeats(output, size)
        ]
        with torch.inference_mode():
            scored = forced_decoding(
                [model], *batch_of([source] * len(outputs)), outputs, SearchConfig()
            )
        expected = sorted((each.score for each in scored), reverse=True)[:2]
        assert [each.score for each in best] == pytest.approx(expected, abs=1e-4)


@EVERY_SEARCH
def test_the_longest_output_without_repetition_ends_even_below_the_minimum_length(kind):
    for best in find(kind, transformer(V), Constraints(1, None), min_length=9):
        assert {tuple(sorted(each.tokens)) for each in best} == {WORDS}


@EVERY_SEARCH
def test_a_prefix_wins_and_the_rest_repeats_no_ngram(kind):
    prefix = [5, 5, 5, 4]
    for best in find(kind, transformer(V), Constraints(2, None), prefixes=[prefix] * 3):
        for each in best:
            assert list(each.tokens[:4]) == prefix
            assert not repeats(each.tokens[2:], 2)


@pytest.mark.parametrize("vocab_size", [V, 300])
def test_the_best_continuations_are_those_of_all_log_probabilities(vocab_size):
    config, constraints = SearchConfig(max_extra_length=3), Constraints(1, None)
    model, sources = transformer(vocab_size), SOURCES * 300
    with torch.inference_mode():
        hypotheses = ActiveHypotheses(
            model, *batch_of(sources), config, [[5], [], []] * 300, constraints
        )
        while hypotheses.num_open:
            log_probs = hypotheses.copy().next_log_probs()
            totals = torch.from_numpy(hypotheses.log_probs)[:, :, None] + log_probs
            found = hypotheses.best_continuations(3)
            best = totals.flatten(1).topk(3).values
            torch.testing.assert_close(torch.from_numpy(found.totals), best)
            is_active = (found.tokens != EOS) & np.isfinite(found.totals)
            hypotheses.advance(found, is_active)


# --- banned text


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
