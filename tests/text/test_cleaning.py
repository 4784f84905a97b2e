"""Cleaning: the rules that drop pairs, and their counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import CleaningConfig
from tfm.text import hashes, lines
from tfm.text.cleaning import Cleaner
from tfm.text.counts import RULES, PairCounts
from tfm.text.hashes import SeenHashes
from tfm.text.pair_checks import ratio_checks

KEEP_ALL = {
    "normalize_space": False,
    "drop_empty": False,
    "max_characters": 0,
    "max_length_ratio": 0.0,
    "drop_duplicates": False,
    "drop_copies": False,
}


def clean(pairs, ratio=1.0, **config):
    counts, config = PairCounts(), CleaningConfig(**config)
    kept = list(Cleaner(config).clean(pairs, counts, checks=ratio_checks(config, ratio)))
    return kept, counts


def test_each_rule_drops_and_counts_its_pair():
    pairs = [
        (b"a dog", b"ein Hund"),
        (b"\xff\xfe", b"kaputt"),
        (b" \xc2\xa0\t", b"leer"),
        (b"x" * 101, b"y" * 90),
        (b"short", b"by far too many words for such a short source, and so on and on"),
        (b"a copy", b"a  copy"),
        (b"a\xe2\x80\xa8dog", b"ein Hund"),
    ]
    kept, counts = clean(pairs, max_characters=100)
    assert kept == [(b"a dog", b"ein Hund")]
    by_default = ("not_utf8", "empty", "too_long", "length_ratio", "copy", "duplicate")
    assert counts.dropped == {rule: int(rule in by_default) for rule in RULES}
    assert (counts.read, counts.normalized, counts.kept) == (7, 3, 1)


def test_each_rule_can_be_turned_off():
    pairs = [
        (b"", b"leer"),
        (b"x" * 2000, b"y"),
        (b"a copy", b"a copy"),
        (b"a copy", b"a copy"),
        (b"two  spaces", b"\tTab"),
    ]
    kept, counts = clean(pairs, **KEEP_ALL)
    assert kept == pairs
    assert counts.normalized == 0


def test_length_limits_are_inclusive_and_count_characters_not_bytes():
    at_limit = "ä" * 100
    too_long = at_limit + "ä"
    pairs = [(at_limit.encode(), b"o" * 100), (too_long.encode(), b"o" * 100)]
    kept, _ = clean(pairs, max_characters=100)
    assert kept == pairs[:1]


@pytest.mark.parametrize(
    ("ratio", "source", "longest"),
    [(1, "s" * 10, 50), (1, "雪" * 10, 90), (1, "s" * 10 + "!", 91), (4, "雪" * 10, 300)],
)
def test_a_side_may_be_twice_as_long_as_usual_after_a_margin_is_added(ratio, source, longest):
    # (10 + 30) · 2 = 50 + 30; (30 · 2 + 30) · 2 = 300 / 2 + 30
    pairs = [(source.encode(), b"t" * size) for size in (longest, longest + 2)]
    for each in (pairs, [pair[::-1] for pair in pairs]):
        kept, _ = clean(each, ratio if each is pairs else 1 / ratio)
        assert kept == each[:1]


def test_duplicates_are_found_across_texts_of_one_cleaner():
    cleaner = Cleaner(CleaningConfig())
    first, second = PairCounts(), PairCounts()
    assert len(list(cleaner.clean([(b"a", b"b"), (b"c", b"d")], first))) == 2
    assert list(cleaner.clean([(b"c", b"d"), (b"a", b"d")], second)) == [(b"a", b"d")]
    assert (first.dropped["duplicate"], second.dropped["duplicate"]) == (0, 1)


def test_a_rule_that_is_not_named_drops_nothing():
    pairs = [
        (
            b"f\xc3\x83\xc2\xbcr 3 dogs",
            b"\xd0\x93\xd0\xb0\xd0\xb2, 4 \xd1\x80\xd0\xb0\xd0\xb7\xd0\xb0",
        ),
        (
            b"Two dogs play in the deep snow of the mountains.",
            b"?!?!?!?!?!?!?!?!?!?!?!?!?!?!?!?!?!",
        ),
    ]
    assert clean(pairs)[0] == pairs


@given(st.lists(st.floats(-9, 0), max_size=40), st.floats(-9, 0))
def test_pairs_with_a_score_of_at_least_the_minimum_are_kept(scores, minimum):
    pairs = [(str(number).encode(), str(score).encode()) for number, score in enumerate(scores)]
    counts = PairCounts()
    config = CleaningConfig(score_model="a", min_score=minimum, **KEEP_ALL)
    kept = Cleaner(config).clean(
        pairs, counts, score=lambda chunk, _: [float(target) for _, target in chunk]
    )
    assert list(kept) == [
        pair for pair, score in zip(pairs, scores, strict=True) if score >= minimum
    ]
    assert counts.dropped["low_score"] == len(scores) - counts.kept


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("Tom &amp; Jerry&#39;s &quot;fun&#x22;", 'Tom & Jerry\'s "fun"'),
        ("R&amp;amp;D, &amp;amp;lt; &amp;#39;", "R&D, < '"),
        ("caf&eacute;&nbsp;na&iuml;ve&#10;&shy;two &#128; &hellip;", "café naïve two € …"),
        ("a&copy=1&lt b && c; &;", "a&copy=1&lt b && c; &;"),
        ("&unknown; &#0; &#xD800; &#x110000; &#1;", "&unknown; &#0; &#xD800; &#x110000; &#1;"),
    ],
)
def test_entities_are_decoded_and_counted_if_asked_for(text, decoded):
    pairs = [(text.encode(), b"one")]
    kept, counts = clean(pairs, decode_entities=True, max_length_ratio=0)
    assert kept == [(decoded.encode(), b"one")]
    assert counts.entities == (text != decoded)
    kept, counts = clean(pairs, max_length_ratio=0)
    assert (kept, counts.entities) == (pairs, 0)


def test_examples_are_some_of_the_pairs_that_a_rule_dropped_without_favorites():
    pairs = [(b"copy %d" % number,) * 2 for number in range(1_000)]
    _, counts = clean([*pairs, (b"one", b"eins"), (b"\xff" * 5_000, b"a\tb\r" * 5_000)])
    assert set(counts.examples) == {"copy", "not_utf8"}
    examples = [*counts.examples["copy"].values()]
    assert len(set(examples)) == 10
    numbers = [int(source.removeprefix("copy ")) for source, _ in examples]
    assert min(numbers) < 300 < 700 < max(numbers)
    [(source, target)] = counts.examples["not_utf8"].values()
    assert len(source) == len(target) == 300
    assert not set("\t\r\n") & {*source, *target}


line = st.text(st.sampled_from("ab \u2028\u200b"), max_size=4).map(str.encode) | st.just(b"\xff")


@given(st.lists(st.tuples(line, line), max_size=60), st.integers(1, 2000))
def test_counts_add_up_and_kept_pairs_are_ordered_and_distinct(pairs, chunk_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK_BYTES", chunk_bytes)
        kept, counts = clean(pairs)
    assert counts.read == len(pairs)
    assert counts.kept == len(kept) == len(set(kept))
    assert counts.read == counts.kept + sum(counts.dropped.values())
    without, _ = clean(pairs, drop_duplicates=False)
    assert kept == list(dict.fromkeys(without))


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=20), st.sampled_from([5, 99]))
def test_seen_hashes_reports_first_occurrences_as_a_set_would(batches, num_in_memory):
    seen, reference = SeenHashes(), set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "_MAX_HASHES_IN_MEMORY", num_in_memory)
        patch.setattr(hashes, "_HASHES_AT_ONCE", 3)
        for batch in batches:
            expected = [v not in reference and v not in batch[:i] for i, v in enumerate(batch)]
            assert seen.add(np.array(batch, dtype=np.uint64)).tolist() == expected
            reference.update(batch)


def test_seen_hashes_takes_eight_bytes_per_hash_in_few_runs():
    seen = SeenHashes()
    random = np.random.default_rng(1)
    for _ in range(200):
        seen.add(random.integers(0, 2**64, 500, dtype=np.uint64))
    assert sum(run.nbytes for run in seen._runs) == 200 * 500 * 8
    assert len(seen._runs) <= 10
