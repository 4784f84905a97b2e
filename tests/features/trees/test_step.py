"""The step that makes trees of a parser's symbols."""

from tfm.features.trees.step import Trees
from tfm.translation.steps import Output, Segment
from tfm.vocabulary.subword import Vocabulary


def test_trees_are_over_the_words_as_users_wrote_them(data_dir):
    step = Trees(Vocabulary.load(data_dir))
    lines = ["We\u00a0 ＳＬＥＥＰ \u200b", "", "x"]
    symbols = ["(S (NP XX )NP (VP XX )VP )S", "(S XX )S", "(S XX"]
    states = [Segment(number, line) for number, line in enumerate(lines)]
    found = step.after(states, [[Output(text, -1.0, -2.0)] for text in symbols])
    trees = [output.text for [output] in found]
    assert trees[0] == "(S (NP (XX We)) (VP (XX ＳＬＥＥＰ)))"
    assert trees[1] == ""
    assert "x" in trees[2]
    assert step.summary("") == "repairs to the trees: 1"
