"""Bracket F1 of a parser's output lines."""

import pytest

from tfm.errors import DataError, UsageError
from tfm.metrics.brackets import bracket_f1

# 4 and 3 brackets that count; the period is punctuation.
GOLD = [
    "(S (NP (NNP Anna)) (VP (VBZ sleeps) (ADVP (RB well))) (. .))",
    "(S (NP (PRP it)) (VP (VBZ rains)) (. .))",
]
BRACKETS = [
    "(S (NP (XX Anna)) (VP (XX sleeps) (ADVP (XX well))) (XX .))",
    "(S (NP (XX it) (XX rains)) (XX .))",
]
SYMBOLS = ["(S (NP XX )NP (VP XX (ADVP XX )ADVP )VP XX )S", "(S (NP XX XX )NP XX )S"]


@pytest.mark.parametrize("lines", [BRACKETS, SYMBOLS])
def test_trees_are_scored_as_brackets_or_as_symbols(lines):
    # All 4 of the first tree match; of the second, S but neither NP nor VP: precision 5/6, recall
    # 5/7.
    result = bracket_f1(lines, [GOLD])
    assert result.value == pytest.approx(100 * 2 * 5 / (6 + 7))
    assert result.details["precision"] == pytest.approx(100 * 5 / 6)
    assert result.details["recall"] == pytest.approx(100 * 5 / 7)
    assert result.details["complete match"] == 50
    assert (result.details["errors"], result.details["skipped"]) == (0, 0)
    assert result.signature == "evalb:COLLINS|tags:gold|sentences:2|errors:0|skipped:0"


def test_repairs_to_symbols_are_counted():
    forgotten = SYMBOLS[1].replace(")NP ", "")
    mended = bracket_f1([SYMBOLS[0], forgotten], [GOLD])
    assert bracket_f1(SYMBOLS, [GOLD]).details["repairs"] == 0
    assert mended.details["repairs"] == 1
    assert mended.value == bracket_f1(SYMBOLS, [GOLD]).value


@pytest.mark.parametrize("line", ["(S (NP (NP (NP", "(S (S XX XX XX XX", "XX", "(S"])
def test_a_parser_that_does_not_close_brackets_is_scored(line):
    result = bracket_f1([line, line], [GOLD])
    assert result.details["repairs"] > 0
    assert 0 <= result.value < 100
    assert bracket_f1([line, ""], [GOLD]).details["repairs"] > 0


def test_other_words_are_an_error_and_an_empty_line_is_no_parse():
    result = bracket_f1([BRACKETS[0], "(S (NP (XX it) (XX snows)) (XX .))"], [GOLD])
    assert (result.value, result.details["errors"]) == (100, 1)
    result = bracket_f1([BRACKETS[0], ""], [GOLD])
    assert (result.value, result.details["skipped"]) == (100, 1)


def test_tags_are_scored_if_the_parser_outputs_them():
    assert "tagging accuracy" not in bracket_f1(BRACKETS, [GOLD]).details
    tagged = [GOLD[0].replace("RB", "JJ"), GOLD[1]]
    assert bracket_f1(tagged, [GOLD]).details["tagging accuracy"] == 80


def test_a_baseline_is_scored_in_the_same_way():
    result = bracket_f1(GOLD, [GOLD], baseline=SYMBOLS)
    assert result.value == 100
    assert result.comparison.baseline == bracket_f1(SYMBOLS, [GOLD]).value


def test_invalid_trees_are_named():
    with pytest.raises(DataError, match="hypotheses, line 2"):
        bracket_f1([BRACKETS[0], "(S (NP it) rains)"], [GOLD])
    with pytest.raises(DataError, match="reference, line 2"):
        bracket_f1(BRACKETS, [[GOLD[0], ""]])


def test_a_sentence_has_one_gold_tree():
    with pytest.raises(UsageError, match="not 2"):
        bracket_f1(BRACKETS, [GOLD, GOLD])
