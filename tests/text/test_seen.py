"""The record of training text: what it finds, its size, its rate of false hits, its file."""

import random
import re

import numpy as np
import pytest
import safetensors.numpy
from helpers import write_pairs

from tfm.errors import DataError
from tfm.text import seen
from tfm.text.seen import SeenText


def sentences(number, seed, length=12):
    """Random sentences, which have no 4-grams in common."""
    generator = random.Random(seed)
    return [" ".join(f"w{generator.randrange(1000)}" for _ in range(length)) for _ in range(number)]


def encoded(lines):
    return [line.encode() for line in lines]


@pytest.fixture
def make_record(tmp_path):
    def make(sources, targets, max_bytes=1 << 20, origins=()):
        paths = write_pairs(tmp_path, "train", list(zip(sources, targets, strict=True)))
        return SeenText.of_pairs([paths], max_bytes=max_bytes, origins=origins)

    return make


def found(record, lines):
    exactly, seen = record.look_up(encoded(lines))
    return exactly.sum(), seen.sum()


@pytest.mark.parametrize("step", [1, 2, 4])
def test_all_lines_are_found_exactly_and_hardly_any_others(make_record, step):
    texts = sentences(2_000, 1, 40), sentences(2_000, 2, 40)
    num_hashes = 4_000 * 38
    record = make_record(*texts, max_bytes=int(1.6 * num_hashes / step))
    assert record.step == step
    for lines in texts:
        assert found(record, lines) == (2_000, 2_000)
    exactly, seen = found(record, sentences(10_000, 3, 40))
    assert exactly == 0
    assert seen <= 1


def test_a_line_is_nearly_seen_from_four_fifths_of_its_4_grams_on(make_record):
    line = sentences(1, 1, length=23)[0].split()  # 20 4-grams
    record = make_record([" ".join(line)], ["ja"])
    for num_changed, is_seen in ((3, True), (4, True), (5, False)):
        # New words at the end change as many 4-grams.
        changed = " ".join([*line[: len(line) - num_changed], *["neu"] * num_changed])
        assert found(record, [changed]) == (0, is_seen)
    assert found(record, [" ".join(line[4:])]) == (0, 1)
    assert found(record, [" ".join(line[:3])]) == (0, 0)  # which has no 4-grams


def test_short_lines_are_found_and_empty_ones_are_not(make_record):
    record = make_record(["Yes.", "", "..."], ["Ja!", "", "-"])
    assert found(record, ["YES", "ja", "no", "", "?"]) == (2, 2)


def test_a_line_is_judged_by_samples_only_if_there_are_enough(make_record):
    texts = sentences(2_000, 1, 14), sentences(2_000, 2, 14)
    record = make_record(*texts, max_bytes=21_000)
    assert record.step == 4
    near = [" ".join(line.split()[:-1]) for line in texts[0]]  # of about 2.5 sampled 4-grams
    exactly, seen = found(record, near)
    assert exactly < 40
    assert seen < 400


def test_without_room_for_4_grams_lines_are_found_exactly(make_record):
    texts = sentences(2_000, 1, 14), sentences(2_000, 2, 14)
    record = make_record(*texts, max_bytes=4_200)
    assert found(record, texts[0]) == (2_000, 2_000)
    assert found(record, [line + " x" for line in texts[0]])[1] < 100


def test_text_that_is_too_large_is_not_recorded_with_the_size_that_suffices(make_record, capsys):
    assert make_record(sentences(2_000, 1), sentences(2_000, 2), max_bytes=2_000) is None
    message = r"training text is not recorded: about [34],\d+ lines need --seen-megabytes 1\n"
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("max_bytes", [40_000, 24_000, 18_000])
def test_the_rate_of_false_hits_is_that_of_other_hashes(make_record, max_bytes):
    record = make_record(sentences(2_000, 1), sentences(2_000, 2), max_bytes=max_bytes)
    assert len(record.bits) == max_bytes
    short = [f"{a} {b}" for a in range(400) for b in range(500)]  # without 4-grams
    rate = found(record, short)[0] / len(short)
    assert rate == pytest.approx(record.false_hits(), rel=0.25, abs=2e-5)


def test_estimates_of_sampled_files_are_close(tmp_path, monkeypatch):
    lines = [line for length in (5, 15, 25, 35) for line in sentences(1_000, length, length)]
    path, _ = write_pairs(tmp_path, "train", [(line, "") for line in lines])
    expected = sum(len(line.split()) - 3 for line in lines)
    monkeypatch.setattr(seen, "_SAMPLE_BYTES", 4096)
    num_lines, num_grams = seen._estimate_hashes(path)
    assert num_lines == pytest.approx(4_000, rel=0.1)
    assert num_grams == pytest.approx(expected, rel=0.1)
    monkeypatch.setattr(seen, "_SAMPLE_BYTES", 1 << 16)
    assert seen._estimate_hashes(path) == (4_001, expected)


def test_records_of_two_texts_are_joined_by_or():
    first, second = sentences(50, 1), sentences(50, 2)
    one, other, both = (SeenText(bits=np.zeros(5_000, dtype=np.uint8)) for _ in range(3))
    for record, lines in ((one, first), (other, second), (both, first + second)):
        record.add(encoded(lines))
    assert ((one.bits | other.bits) == both.bits).all()


def test_a_record_is_read_as_it_was_written_and_equal_ones_are_equal_files(tmp_path, make_record):
    origin = {"path": "runs/other", "data_dir": "data/other", "seen": None}
    record = make_record(["One two."], ["Eins zwei."], origins=[origin])
    paths = [tmp_path / f"{number}.safetensors" for number in range(9)]
    for path in paths:
        record.save(path)
    assert len({path.read_bytes() for path in paths}) == 1
    read = SeenText.load(paths[0])
    assert (read.step, list(read.origins)) == (1, [origin])
    assert (read.bits == record.bits).all()


def test_a_record_of_another_format_is_refused(tmp_path):
    metadata = {"record": '{"format": 2, "step": 1, "origins": []}'}
    path = tmp_path / seen.FILE
    path.write_bytes(safetensors.numpy.save({"bits": np.zeros(9, dtype=np.uint8)}, metadata))
    with pytest.raises(DataError, match=r"has format 2, but .* reads format 1: make it again"):
        SeenText.load(path)
