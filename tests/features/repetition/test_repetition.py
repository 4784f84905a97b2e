"""Translations that repeat themselves: found, counted, and replaced by others of the beam."""

import json

import pytest

from tfm.config import SearchConfig
from tfm.features.repetition.step import Repetition, repeated_part
from tfm.folders.run_folder import checkpoints
from tfm.search.hypotheses import Hypothesis
from tfm.translation.batches import BatchLimits
from tfm.translation.chain import Chain
from tfm.translation.engine import Engine
from tfm.vocabulary.subword import Vocabulary

LOOP = "hut hut hut hut"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Ischschschschutzende Hunde", "sch"),
        ("Hunde bes bes, bes bes besuchen", "bes"),
        ("ein Mann geht, ein Mann geht, ein Mann geht", "ein Mann geht"),
        ("红色的红色的红色的红色的帽子", "红色的"),
        ("क़िला क़िला क़िला क़िला", "क़िला"),
    ],
)
def test_what_repeats_is_found_unless_the_source_repeats_too(text, part):
    assert repeated_part(text, "a red hat") == part
    assert repeated_part(text, "no, no, no") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "so so und so", "der alte Mann und der alte Hund", "10 000 000 000", "......"),
        *("-----", "ha ha ha!", "Mississippi", "Schifffahrt", "1, 2, 1, 2, 1, 2, 1, 2", "哈哈哈"),
    ],
)
def test_ordinary_text_does_not_repeat(text):
    assert repeated_part(text, "a red hat") is None


class Beam:
    """Finds a beam of four for any source: one output that repeats, and three that do not."""

    limits = BatchLimits(max_positions=None, max_tokens=100)

    def __init__(self, vocabulary):
        texts = [LOOP, "eins zwei", "eins", "zwei"]
        self.found = [
            Hypothesis(tokens=tuple(ids), log_prob=-number, score=-number)
            for number, ids in enumerate(vocabulary.target.encode(texts))
        ]

    def run(self, batch, config):
        return [self.found[: config.n_best]] * len(batch.sources)


@pytest.mark.parametrize(("n_best", "first"), [(1, ["eins zwei"]), (2, ["eins zwei", "eins"])])
def test_the_best_of_the_beam_that_does_not_repeat_is_taken(trained_run, n_best, first):
    vocabulary = Vocabulary.load(checkpoints(trained_run)[-1])
    chain = Chain(engine=Beam(vocabulary), vocabulary=vocabulary)
    for avoids in (False, True):
        search = SearchConfig(n_best=n_best, no_repetition=avoids)
        step = Repetition(search)
        one, other = chain.search_lines(["a red hat", "hat hat hat hat"], search, [step])
        assert [each.text for each in one] == (first if avoids else [LOOP, *first][:n_best])
        assert one[0].repeated == (None if avoids else "hut")
        assert other[0].text == LOOP  # as its source does
        assert (step.summary("") is None) == avoids


def test_lines_that_repeat_are_named(run, trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Engine, "run", Beam(Vocabulary.load(checkpoints(trained_run)[-1])).run)
    text = tmp_path / "in.en"
    text.write_text("seven\n\nhat hat hat hat\non Monday\n", encoding="utf-8")
    lines, messages = run.ok("generate", trained_run, "--input", text, "--json")
    records = [json.loads(line)["translations"][0] for line in lines.splitlines()]
    assert [each.get("repeated") for each in records] == ["hut", None, None, "hut"]
    assert "in lines 1; 4: --no-repetition" in messages
    lines, messages = run.ok("generate", trained_run, "--input", text, "--no-repetition")
    assert lines.splitlines() == ["eins zwei", "", LOOP, "eins zwei"]
    assert "again and again" not in messages
