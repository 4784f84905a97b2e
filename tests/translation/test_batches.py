"""How the lines of a chunk are grouped into batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import Normalization, SearchConfig
from tfm.folders.run_folder import checkpoints
from tfm.translation.batches import BatchLimits, SentenceEncoder
from tfm.translation.steps import Segment
from tfm.vocabulary.subword import Vocabulary

NUM_LINES = 60


def segments(lines, first=1):
    return [Segment(number, line) for number, line in enumerate(lines, start=first)]


@pytest.fixture(scope="module")
def batches(trained_run):
    """Group lines of 1 to 12 words."""
    vocabulary = Vocabulary.load(checkpoints(trained_run)[-1])
    lines = ["seven " * (1 + i % 12) for i in range(NUM_LINES)]
    chunk = segments(lines)

    def group(config=SearchConfig(), **limits):  # noqa: B008 - immutable
        batch_limits = BatchLimits(**{"max_positions": None, "max_tokens": 100} | limits)
        return SentenceEncoder(vocabulary, batch_limits, config).encode(chunk)

    return group


# A tab, a no-break space, white space at the ends, a zero-width space, a byte order mark.
@pytest.fixture
def encoder(trained_run):
    """Make an encoder without limits."""
    folder = checkpoints(trained_run)[-1]

    def make(*, space=True, is_scored=False, tags=(), **settings):
        vocabulary = Vocabulary.load(folder, Normalization(space=space), tags=tags)
        limits = BatchLimits(max_positions=None, max_tokens=100)
        return SentenceEncoder(vocabulary, limits, SearchConfig(**settings), is_scored=is_scored)

    return make


@pytest.mark.parametrize("space", [True, False])
def test_a_line_without_text_is_empty(encoder, space):
    lines = ["", " \t", "\u2003", "<2x>", ">>fra<< "] + ["\u200b\ufeff", "\u200b<2x>"] * space
    chunk = segments(lines)
    assert encoder(space=space, tags=("<2x>", ">>fra<<")).encode(chunk) == []


def test_a_truncated_source_is_named_with_the_setting_to_change(encoder, capsys):
    text = "seven " * 2_000
    chunk = [Segment(7, "8", "x"), Segment(31, text, "y")]
    for is_scored in (False, True):
        encoder(is_scored=is_scored).encode(chunk)
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f'warning: line 31 ("{text[:40]}…") has 4,000 tokens: ')
        assert "truncated to 1,024" in line
        assert "max_source_length" in line


def test_text_in_an_unknown_script_is_reported_once(encoder, capsys):
    encode = encoder().encode
    known = ["on Monday", "8 + 8", "seven 🙂🙂🙂", "a seven and a слово"]
    encode(segments(known))
    assert capsys.readouterr().err == ""
    for first in (5, 7):
        encode(segments(["seven", "Собака бежит по снегу."], first))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith('warning: most letters of line 6 ("Собака бежит по снегу.") are not in')


def padded(batch):
    return len(batch) * (1 + max(map(len, batch.sources)))


@pytest.mark.parametrize("limits", [{"max_tokens": 600}, {}, {"max_hypotheses": 72}])
def test_workers_get_equal_numbers_of_batches_and_end_together(batches, limits):
    found = batches(SearchConfig(beam_size=4), num_workers=2, **{"max_tokens": 10**6} | limits)
    assert len(found) == 4
    work = [0, 0]
    for batch in found:  # for the worker that ends first
        work[work.index(min(work))] += sum(1 + len(source) for source in batch.sources)
    assert max(work) < 1.15 * min(work)


def test_batches_of_several_workers_keep_the_limit_of_hypotheses(batches):
    found = batches(SearchConfig(beam_size=4), max_hypotheses=12, max_tokens=10**6, num_workers=2)
    assert {len(batch) for batch in found} == {3}


@given(max_tokens=st.integers(1, 2_000), num_workers=st.integers(1, 5))
def test_batches_keep_the_limit_and_hold_each_line_once(batches, max_tokens, num_workers):
    found = batches(max_tokens=max_tokens, num_workers=num_workers)
    assert all(padded(batch) <= max_tokens or len(batch) == 1 for batch in found)
    assert sorted(n for batch in found for n in batch.line_numbers) == [*range(1, NUM_LINES + 1)]
    assert len(found) >= num_workers
    longest = [max(map(len, batch.sources)) for batch in found]
    assert longest == sorted(longest, reverse=True)


def test_wide_beams_have_smaller_batches_unless_the_tokens_are_given(batches):
    def largest(**search):
        limits = {"max_tokens": 10**6, "max_hypotheses": 40}
        return max(map(len, batches(SearchConfig(**search), **limits)))

    assert [largest(beam_size=size) for size in (1, 4, 10, 50)] == [40, 10, 4, 1]
    assert largest(search="sample", n_best=8) == 5
    assert largest(beam_size=4, max_tokens=10**6) == NUM_LINES
