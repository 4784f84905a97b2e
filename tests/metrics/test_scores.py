"""Properties of all metrics."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.config import ScoreConfig
from tfm.errors import DataError, UsageError
from tfm.metrics.scores import check_metrics, corpus_scores

CONFIG = ScoreConfig()

text_line = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(text_line.filter(str.strip), min_size=1, max_size=5))
def test_a_perfect_translation_has_perfect_scores(lines):
    exact, chrf, ter = corpus_scores(lines, [lines], ["exact", "chrf", "ter"], CONFIG)
    assert exact.value == 100
    assert chrf.value == pytest.approx(100)
    assert ter.value == 0


@given(st.lists(text_line, min_size=1, max_size=5))
def test_a_perfect_translation_has_perfect_bleu_however_it_is_tokenized(lines):
    lines = [*lines, "five words make a fourgram"]
    bleu, paper = corpus_scores(lines, [lines], ["bleu", "paper-bleu"], CONFIG, language="de")
    assert bleu.value == pytest.approx(100)
    assert paper.value == pytest.approx(100)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "exact"])
def test_both_forms_of_a_letter_are_equal(metric):
    lines = ["Žlutá kočka leží na zdi.", "tiếng Việt là một thứ tiếng"]
    others = [unicodedata.normalize("NFD", line) for line in lines]
    scored = [
        corpus_scores(hypotheses, [references], [metric], CONFIG, baseline=others)[0].value
        for hypotheses, references in ((lines, lines), (lines, others), (others, lines))
    ]
    assert scored == [scored[0]] * 3


def test_scores_have_the_requested_order_without_duplicates():
    scores = corpus_scores(["a b"], [["a c"]], ["exact", "bleu", "exact"], CONFIG)
    assert [result.name for result in scores] == ["exact", "bleu"]


@pytest.mark.parametrize(
    ("language", "tokenize", "bleu", "tokenizer"),
    [
        (None, "auto", 0, "13a"),
        ("de", "auto", 0, "13a"),
        ("zho_Hans", "auto", 70.71, "zh"),
        ("ja", "auto", 70.71, "char"),
        ("zh", "13a", 0, "13a"),
        ("de", "zh", 70.71, "zh"),
    ],
)
def test_the_language_chooses_the_tokenizer_of_bleu(language, tokenize, bleu, tokenizer):
    lines, references = ["这只狗在雪里跑。"] * 3, ["这只狗在雪里玩。"] * 3
    config = ScoreConfig(tokenize=tokenize)
    [score] = corpus_scores(lines, [references], ["bleu"], config, language=language)
    assert score.value == pytest.approx(bleu, abs=0.005)
    assert f"|tok:{tokenizer}|" in score.signature


def test_lists_that_are_empty_or_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="no lines"):
        corpus_scores([], [[]], ["bleu"], CONFIG)
    with pytest.raises(DataError, match="hypotheses and reference 2 have 1 and 2 lines"):
        corpus_scores(["a"], [["a"], ["a", "b"]], ["bleu"], CONFIG)


@pytest.mark.parametrize(
    ("num_lines", "hint"), [(6, " (tfm generate --n-best 3 prints 3)"), (5, "")]
)
def test_n_best_lists_are_guessed_only_from_a_multiple_of_the_references(num_lines, hint):
    with pytest.raises(DataError, match="both need one for each segment") as refused:
        corpus_scores(["a"] * num_lines, [["b"] * 2], ["bleu"], CONFIG)
    assert str(refused.value).endswith(f"each segment{hint}")
    with pytest.raises(DataError, match=r"have \d and 0 lines: both need one for each segment$"):
        corpus_scores(["a"] * num_lines, [[]], ["bleu"], CONFIG)


def test_an_unknown_metric_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match='no metric "blue": choose among bleu, paper-bleu, '):
        check_metrics(["bleu", "blue"])
