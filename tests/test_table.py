"""Tables on terminals, in Markdown and in LaTeX."""

import math
from itertools import chain

from tfm.table import Table


def lines(table, width=math.inf):
    return [*chain(*table.blocks(width))]


RUNS = Table(
    [
        ["runs/short", "running", "1 of 40", ""],
        ["runs/数据集-英语", "finished", "40 of 40", ""],
    ],
    ["run", "state", "step", "license"],
)


def test_columns_are_aligned_also_with_wide_characters():
    assert lines(RUNS) == [
        "run               state     step      license",
        "runs/short        running   1 of 40",
        "runs/数据集-英语  finished  40 of 40",
    ]
    assert lines(Table([["a", "b c d"]])) == ["a  b c d"]
    assert lines(Table([["a", "30"], ["bc", "7"]], is_numeric=True)) == ["a   30", "bc   7"]


def test_a_table_that_is_too_wide_leaves_out_empty_columns_and_never_cuts_names():
    assert lines(RUNS, 40)[0] == "run               state     step"
    assert lines(RUNS, 34) == [
        "run", "  state     step",
        "runs/short", "  running   1 of 40",
        "runs/数据集-英语", "  finished  40 of 40",
    ]  # fmt: skip
    assert lines(RUNS, 19)[-1] == "  finished 40 of 40"


def test_last_cells_of_a_list_are_folded_between_words_beside_others_or_below_them():
    table = Table([["dataset", "/a/folder/with-a/very/long/name, 400 pairs"], ["device", "cpu"]])
    assert lines(table, 36) == [
        "dataset  /a/folder/with-a/very/long/name,",
        "         400 pairs",
        "device   cpu",
    ]
    assert lines(table, 20) == [
        "dataset", "  /a/folder/with-a/very/long/name,", "  400 pairs",
        "device", "  cpu",
    ]  # fmt: skip


def test_characters_with_a_meaning_in_markup_are_escaped():
    table = Table([["m_1", "a|b"]], ["model", "b&c"], is_numeric=True)
    assert table.text("markdown").splitlines()[1:] == [
        "|:--------|------:|",
        r"| m_1     |  a\|b |",
    ]
    assert r"m\_1" in table.text("latex")
    assert r"b\&c" in table.text("latex")
