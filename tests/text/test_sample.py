"""What a sample of a text tells of it before it is cleaned."""

import random
import re
from itertools import pairwise

import pytest

from tfm.config import CleaningConfig
from tfm.errors import DataError
from tfm.text import sample
from tfm.text.pair_checks import ratio_checks
from tfm.text.sample import check_alignment, length_ratio, sample_windows

# Characters of a target sentence per source character, and the alphabet of the source.
SCRIPTS = {"latin": (1.1, "abcdefgh "), "han": (4.0, "雪舟水墨画家僧"), "lao": (0.8, "ກຂຄງຈສຊຍ")}


def translations(script, number=400, seed=1):
    """Pairs of one to three sentences whose lengths are related as in real text."""
    draw = random.Random(seed)
    expansion, alphabet = SCRIPTS[script]
    pairs = []
    for _ in range(number):
        sizes = [draw.randint(10, 60) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
        sides = [
            (alphabet, "。" if script == "han" else ". ", 1),
            ("abcdefgh ", ". ", expansion * draw.lognormvariate(0, 0.15)),
        ]
        pair = [
            "".join("".join(draw.choices(letters, k=int(size * factor))) + end for size in sizes)
            for letters, end, factor in sides
        ]
        pairs.append((pair[0].encode(), pair[1].encode()))
    return pairs


def damaged(pairs, kind, side):
    """Pairs of which a side is another's, is cut, or has more sentences than the other side."""
    texts = [pair[side].decode() for pair in pairs]
    change = {
        "shifted": lambda n: texts[n - 1],
        "cut": lambda n: texts[n][: len(texts[n]) // 4],
        "joined": lambda n: texts[n - 2] + texts[n - 1] + texts[n],
    }[kind]
    changed = [change(number).encode() for number in range(len(pairs))]
    others = [pair[1 - side] for pair in pairs]
    return list(zip(*((changed, others) if side == 0 else (others, changed)), strict=True))


@pytest.mark.parametrize("script", SCRIPTS)
def test_lengths_are_compared_with_the_texts_own_ratio(script):
    pairs = translations(script)
    [(_, is_unequal)] = ratio_checks(CleaningConfig(), length_ratio(pairs))

    def rate(rule, some):
        return sum(rule(source.decode(), target.decode()) for source, target in some) / len(some)

    assert rate(is_unequal, pairs) < 0.01
    for kind, least in (("shifted", 0.1), ("cut", 0.7), ("joined", 0.7)):
        for side in (0, 1):
            assert rate(is_unequal, damaged(pairs, kind, side)) > least


def test_a_few_damaged_pairs_or_few_pairs_at_all_do_not_change_the_ratio():
    pairs = translations("han")
    mixed = damaged(pairs[:120], "joined", 1) + pairs[120:]
    assert length_ratio(mixed) == pytest.approx(length_ratio(pairs), rel=0.1)
    assert length_ratio(pairs[:19]) is length_ratio([]) is None
    [(_, is_unequal)] = ratio_checks(CleaningConfig(), None)
    assert not any(is_unequal(source.decode(), target.decode()) for source, target in pairs[:19])


@pytest.mark.parametrize("number", [0, 1, 4, 30, 32, 33, 100, 1_000])
def test_windows_are_evenly_spaced_and_bounded(monkeypatch, number):
    monkeypatch.setattr(sample, "_WINDOW_PAIRS", 4)
    monkeypatch.setattr(sample, "_MAX_WINDOWS", 8)
    pairs = [(b"%d" % n, b"x" * 10_000) for n in range(number)]
    windows = sample_windows(iter(pairs))
    starts = [start for start, _ in windows]
    assert len({b - a for a, b in pairwise(starts)}) <= 1
    assert len(windows) == -(-number // 4) if number <= 32 else 4 < len(windows) <= 8
    for start, window in windows:
        assert [source for source, _ in window] == [s for s, _ in pairs[start : start + 4]]
        assert all(len(target) == 4_096 for _, target in window)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("offset", [-5, -2, -1, 1, 3, 5])
@pytest.mark.parametrize("first", [0, 700])
def test_a_shift_is_refused_or_warned_of_where_it_begins(capsys, script, offset, first):
    pairs = translations(script, 1_000)
    check_alignment(sample_windows(pairs), "x.tsv")
    sources, targets = map(list, zip(*pairs, strict=True))
    longer = targets if offset > 0 else sources
    longer[first:first] = longer[500 : 500 + abs(offset)]
    shifted = sample_windows(zip(sources, targets, strict=False))
    problem = rf"x\.tsv: from about line ([0-9]+) on, line N .* N\{offset:+} of the target"
    if first:
        check_alignment(shifted, "x.tsv")
        found = re.match(f"warning: {problem}", capsys.readouterr().err)
        assert abs(int(found[1]) - first) <= 128
    else:
        with pytest.raises(DataError, match=rf"{problem}.*--force"):
            check_alignment(shifted, "x.tsv")
        check_alignment(shifted, "x.tsv", force=True)
        assert re.match(f"warning: {problem}", capsys.readouterr().err)
    assert not capsys.readouterr().err


def test_sides_without_any_relation_or_all_alike_are_not_taken_for_shifted(capsys):
    targets = [target for _, target in translations("latin", 1_000, seed=2)]
    unrelated = [(s, t) for (s, _), t in zip(translations("han", 1_000), targets, strict=True)]
    for pairs in (unrelated, [(b"same", b"gleich")] * 500, [(b"\xff", b"")] * 99):
        check_alignment(sample_windows(pairs), "x.tsv")
    assert not capsys.readouterr().err
