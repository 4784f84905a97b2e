"""The chain of steps around a search, with an engine that returns its sources."""

from dataclasses import replace
from itertools import islice

import pytest

from tfm.config import SearchConfig
from tfm.folders.run_folder import checkpoints
from tfm.search.hypotheses import Hypothesis
from tfm.translation.batches import BatchLimits
from tfm.translation.chain import Chain
from tfm.translation.steps import Output, Segment, Step
from tfm.vocabulary.subword import Vocabulary


class Echo:
    limits = BatchLimits(max_positions=12, max_tokens=100, chunk_lines=3)

    def run(self, batch, config):
        return [[Hypothesis(tokens=tuple(ids), log_prob=-1, score=-1)] for ids in batch.sources]


class Words(Step):
    """Searches words by themselves, and joins them with a mark."""

    def __init__(self, mark=" "):
        self.mark = mark
        self.num_words = 0

    def before(self, unit):
        words = unit.source.split()
        numbers = range(self.num_words + 1, self.num_words + len(words) + 1)
        self.num_words += len(words)
        return list(map(Segment, numbers, words)), len(words)

    def after(self, states, outputs):
        words = iter(outputs)
        texts = [self.mark.join(best.text for [best] in islice(words, n)) for n in states]
        return [[Output(text, 0.0, 0.0)] for text in texts]


class Marked(Step):
    """Puts a letter around each output."""

    def __init__(self, letter):
        self.letter = letter

    def after(self, states, outputs):
        assert len(states) == len(outputs)
        marked = [f"{self.letter}{best.text}{self.letter}" for [best] in outputs]
        return [[Output(text, 0.0, 0.0)] for text in marked]


@pytest.fixture(scope="module")
def chain(trained_run):
    return Chain(engine=Echo(), vocabulary=Vocabulary.load(checkpoints(trained_run)[-1]))


def run(chain, chunks, steps=(), **settings):
    """Return the numbers of units that are searched together, and their texts."""
    lines = ([Segment(number, text) for number, text in chunk.items()] for chunk in chunks)
    found = chain.run(lines, SearchConfig(), steps, **settings)
    return [([unit.number for unit in units], [best.text for [best] in n]) for units, n in found]


def test_steps_after_a_search_come_in_reverse_order(chain):
    steps = [Marked("a"), Words("-"), Marked("b")]
    assert run(chain, [{1: "on Monday", 2: "", 3: "seven"}], steps) == [
        ([1, 2, 3], ["abonb-bMondayba", "aa", "absevenba"])
    ]


def test_a_step_may_divide_a_unit_into_segments_of_its_own_number(chain):
    class Halves(Words):
        def before(self, unit):
            words = unit.source.split()
            return [replace(unit, source=word) for word in words], len(words)

    [(_, texts)] = run(chain, [{1: "on Monday", 2: "", 3: "seven eight"}], [Halves()])
    assert texts == ["on Monday", "", "seven eight"]


def test_only_chunks_that_steps_lengthen_are_divided(chain):
    lines = {1: "on Monday", 2: "", 3: "seven eight", 4: "eight", 5: ""}
    assert [numbers for numbers, _ in run(chain, [lines])] == [[1, 2, 3, 4, 5]]
    divided = run(chain, [dict(islice(lines.items(), 3)), {4: "eight", 5: ""}], [Words()])
    assert [numbers for numbers, _ in divided] == [[1, 2, 3], [4, 5]]
    lines = {1: "on Monday", 2: "seven eight", 3: "eight"}
    assert run(chain, [lines], [Words()]) == [
        ([1, 2], ["on Monday", "seven eight"]),
        ([3], ["eight"]),
    ]


def test_units_whose_outputs_exist_are_only_counted(chain):
    step = Words()
    lines = {1: "on Monday", 2: "seven", 3: "eight"}
    assert run(chain, [lines], [step], num_done=2) == [([3], ["eight"])]
    assert step.num_words == 4


def test_the_units_before_one_that_fails_are_translated_first(chain):
    lines = {1: "on Monday", 2: "x", 3: "seven " + "x" * 40, 4: "eight"}
    segments = [Segment(number, text) for number, text in lines.items()]
    found = chain.run([segments], SearchConfig(), [Words()], valid_first=True)
    units, outputs = next(found)
    assert [unit.number for unit in units] == [1, 2]
    assert [best.text for [best] in outputs] == ["on Monday", "x"]
    with pytest.raises(Exception, match=r"^line 5 has \d+ tokens"):
        next(found)
