"""The place where one of two parallel texts lacks lines is found, or nothing is said about it."""

import numpy as np
import pytest

from tfm.data.alignment import first_misaligned_line
from tfm.data.synthetic.corpus import generate_pairs

TOLERANCE = 10  # lines


def lengths(lines):
    return np.array([len(line.encode()) for line in lines], dtype=np.int32)


@pytest.fixture(scope="module")
def corpus():
    """Return the lengths of the lines of both sides."""
    return tuple(map(lengths, zip(*generate_pairs("train", num_pairs=3_000, seed=1), strict=True)))


@pytest.mark.parametrize(("number", "count"), [(4, 1), (1_500, 1), (2_600, 5)])
def test_lines_that_are_missing_in_the_middle_are_found_on_either_side(corpus, number, count):
    source, target = corpus
    removed = np.arange(number, number + count)
    found = first_misaligned_line(source, np.delete(target, removed))
    assert abs(found - (number + 1)) <= TOLERANCE
    assert first_misaligned_line(np.delete(target, removed), source) == found


def test_an_additional_empty_line_is_found(corpus):
    source, target = corpus
    found = first_misaligned_line(source, np.insert(target, 1_500, 0))
    assert abs(found - 1_501) <= TOLERANCE


@pytest.mark.parametrize("num_lines", [1, 700, 2_999])
def test_nothing_is_said_of_a_side_that_is_cut_short_at_its_end(corpus, num_lines):
    source, target = corpus
    assert first_misaligned_line(source, target[:num_lines]) is None


def test_nothing_is_said_if_lines_are_missing_at_distant_places(corpus):
    source, target = corpus
    assert first_misaligned_line(source, np.delete(target, [800, 2_200])) is None


@pytest.mark.parametrize("num_lines", [0, 999])
def test_nothing_is_said_if_all_lines_are_equally_long(num_lines):
    same = np.full(1_000, 7, dtype=np.int32)
    assert first_misaligned_line(same, same[:num_lines]) is None
    assert first_misaligned_line(0 * same, 0 * same[:num_lines]) is None
