"""Scores as tables."""

from html_pages import read_page, rows, texts

from tfm.commands.evaluate import Evaluation, SetResult
from tfm.metrics.metric import Comparison, MetricScore


def of_set(name, *p_values, extra=None):
    scores = {
        f"m_{number}": [
            MetricScore(
                name="bleu",
                label="BLEU",
                value=30 + number,
                signature=f"tok:{name}",
                comparison=Comparison(baseline=30, p_value=p_value, mean=30, interval=1.5),
            )
        ]
        for number, p_value in enumerate(p_values)
    }
    return SetResult(name=name, num_lines=3003, scores=scores, outputs={}, extra=extra or {})


RESULT = Evaluation(
    models=["m_0", "m_1"],
    sets=[of_set("a", None, 0.0123), of_set("b&c", None, 0.5, extra={"pairs seen": 12})],
)


def test_a_table_has_a_row_for_each_model_and_a_column_for_each_set():
    bleu, of_sets = RESULT.tables()
    assert bleu.columns == ["BLEU", "a (3,003)", "b&c (3,003)"]
    assert bleu.rows == [
        ["m_0", "30.00 ± 1.50", "30.00 ± 1.50"],
        ["m_1", "31.00 ± 1.50, p = 0.0123*", "31.00 ± 1.50, p = 0.5000"],
    ]
    assert of_sets.columns == ["test sets", "a (3,003)", "b&c (3,003)"]
    assert of_sets.rows == [["pairs seen", "", "12"]]
    assert RESULT.notes()[:2] == ["BLEU, a: tok:a", "BLEU, b&c: tok:b&c"]


def test_a_page_has_all_tables_and_notes(tmp_path):
    RESULT.write_page(tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert rows(page) == [[*row] for t in RESULT.tables() for row in (t.columns, *t.rows)]
    assert texts(page, ".//p") == RESULT.notes()
