"""Scores between all pairs of candidates, compared with sacreBLEU's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from tfm.features.mbr.step import pairwise_utilities

WORDS = ["ein", "ein", "Hund", "Hunde", "läuft,", "läuft", "schnell.", "我爱，你", "ß", ""]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("name", "tokenizer", "metric"),
    [("chrf", "13a", CHRF())]
    + [("bleu", name, BLEU(effective_order=True, tokenize=name)) for name in ("13a", "zh", "char")],
)
@given(texts=TEXTS)
def test_utilities_equal_the_sentence_scores_of_sacrebleu(name, tokenizer, metric, texts):
    expected = [[metric.sentence_score(text, [other]).score for other in texts] for text in texts]
    found = pairwise_utilities(texts, name, tokenizer=tokenizer)
    assert found == pytest.approx(np.array(expected), abs=1e-9)
