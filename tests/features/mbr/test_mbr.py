"""Minimum Bayes risk decoding."""

import sys

import pytest

from tfm.commands.translator import Translator
from tfm.features.mbr.step import MinimumBayesRisk, pairwise_utilities
from tfm.metrics.command import MetricCommand
from tfm.translation.steps import Output

LINES = ["I am buying a red hat", "", "seven", "on Monday"]


def most_useful(candidates, utility, **settings):
    return MinimumBayesRisk(utility=utility, **settings).most_useful(candidates)


def translations(*texts, log_probs=None):
    log_probs = log_probs or [-1.0] * len(texts)
    return [Output(t, score=p, log_prob=p) for t, p in zip(texts, log_probs, strict=True)]


@pytest.fixture(scope="module")
def translator(trained_run):
    return Translator.load(trained_run, device="cpu")


def test_the_candidate_that_is_most_similar_to_all_is_chosen():
    texts = ["ganz anderes", "ein roter Hut", "ein roter Mantel", "ein rotes Hemd"]
    utilities = pairwise_utilities(texts, "chrf")
    chosen = most_useful(translations(*texts), "chrf", are_samples=True)
    assert chosen.text == texts[int(utilities.mean(axis=1).argmax())] != texts[0]
    assert chosen.utility == pytest.approx(utilities.mean(axis=1).max())


def test_translations_of_a_beam_count_by_their_probabilities():
    texts, log_probs = ("ein roter Hut", "zwei Uhr", "zwei Uhr."), [-0.1, -5.0, -6.0]
    found = translations(*texts, log_probs=log_probs)
    assert most_useful(found, "chrf", are_samples=False).text == texts[0]
    assert most_useful(found, "chrf", are_samples=True).text != texts[0]


def test_words_of_chinese_are_compared_by_characters():
    found = translations("他走了。", "我在这里玩。", "我在那里玩。", "我在这里跑。")
    chosen = [
        most_useful(found, "bleu", are_samples=True, tokenizer=tokenizer).text
        for tokenizer in ("13a", "zh")
    ]
    assert chosen == ["他走了。", "我在这里玩。"]


def test_of_equally_useful_candidates_the_first_is_chosen():
    assert most_useful(translations("ab", "xy"), "chrf", are_samples=True).text == "ab"
    assert most_useful(translations("xy", "ab"), "chrf", are_samples=True).text == "xy"
    assert most_useful(translations("", ""), "bleu", are_samples=True).utility == 100


def test_a_program_compares_the_candidates_given_the_source():
    # Prints the number of characters that the candidate has in common with source and reference.
    texts, source = ["abcd", "abx", "bcd"], "abc"
    columns = "(line[:-1].split('\\t') for line in sys.stdin)"
    code = f"[print(len(set(s) & set(h) & set(r))) for s, h, r in {columns}]"
    with MetricCommand(f'"{sys.executable}" -u -c "import sys; {code}"') as command:
        utilities = pairwise_utilities(texts, command, source=source)
        chosen = MinimumBayesRisk(utility=command, are_samples=True).most_useful(
            translations(*texts), source
        )
    assert utilities.tolist() == [[3, 2, 2], [2, 2, 1], [2, 1, 2]]
    assert (chosen.text, chosen.utility) == ("abcd", pytest.approx(7 / 3))


def test_a_search_uses_a_program(translator):
    line_length = f'"{sys.executable}" -u -c "import sys; [print(len(i)) for i in sys.stdin]"'
    settings = {"n_best": 4, "max_extra_length": 5}
    candidates = translator.search(LINES[:1], **settings)
    chosen = translator.search(LINES[:1], **settings, mbr="command", metric_command=line_length)
    assert chosen[0][0].text == max((each.text for each in candidates[0]), key=len)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
@pytest.mark.parametrize("search", [{"search": "sample"}, {"beam": 6}])
def test_a_search_returns_one_of_its_candidates(translator, utility, search):
    settings = {**search, "n_best": 6, "max_extra_length": 5}
    candidates = translator.search(LINES, **settings)
    chosen = translator.search(LINES, **settings, mbr=utility)
    for found, [best] in zip(candidates, chosen, strict=True):
        assert best.text in [each.text for each in found]
        assert 0 <= best.utility <= 100
    assert translator.translate(LINES, **settings, mbr=utility) == [b.text for [b] in chosen]
