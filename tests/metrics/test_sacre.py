"""The metrics of sacreBLEU equal those of its command."""

import json
import logging
import os
import re
import subprocess
import sys

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER

from tfm.config import ScoreConfig
from tfm.metrics.scores import corpus_scores

REFERENCE = [
    "Der alte Mann sitzt auf einer grünen Bank.",
    "Heute ist der dritte Mai.",
    "Zwei rote Äpfel kosten fünf Euro und zwanzig Cent.",
    'Sie sagte: "Das ist nicht wahr!"',
    "Am Montag kauft er einen schwarzen Hut.",
    "Wir treffen uns um halb vier.",
]
OTHER_REFERENCE = [
    "Ein alter Mann sitzt auf der grünen Bank.",
    "Es ist der 3. Mai.",
    "Zwei rote Äpfel kosten 5,20 Euro.",
    "Sie sagte, das sei nicht wahr.",
    "Montags kauft er einen schwarzen Hut.",
    "Unser Treffen ist um halb vier.",
]
HYPOTHESES = [
    "Der alte Mann sitzt auf einer Bank, die grün ist.",
    "Heute ist der dritte Mai.",
    "Zwei rote Äpfel kosten fünf Euro, zwanzig Cent.",
    "Sie sagte: Das ist wahr!",
    "Am Montag kauft er einen Hut.",
    "Wir treffen uns um halb vier.",
]
BASELINE = [
    "Der Mann sitzt auf Bank.",
    "Heute ist der Mai.",
    "Zwei Äpfel kosten fünf Euro.",
    "Sie sagte: Das ist wahr!",
    "Er kauft am Montag Hut.",
    "Wir treffen uns halb vier.",
]
TEXTS = {
    "hypotheses": HYPOTHESES,
    "reference": REFERENCE,
    "other": OTHER_REFERENCE,
    "baseline": BASELINE,
}


@pytest.fixture
def files(tmp_path):
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: tmp_path / name for name in TEXTS}


def sacrebleu_command(*arguments: object) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, arguments)],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


@pytest.mark.parametrize("references", [["reference"], ["reference", "other"]])
def test_scores_and_signatures_equal_those_of_the_sacrebleu_command(files, references):
    paths = [files[name] for name in references]
    ours = corpus_scores(
        HYPOTHESES, [TEXTS[name] for name in references], ["bleu", "chrf", "ter"], ScoreConfig()
    )
    theirs = json.loads(
        sacrebleu_command(*paths, "-i", files["hypotheses"], "-m", "bleu", "chrf", "ter", "-w", 10)
    )
    assert [(s.label, round(s.value, 10), s.signature) for s in ours] == [
        (s["name"], s["score"], s["signature"]) for s in theirs
    ]


@pytest.mark.parametrize(("tokenize", "warns"), [("13a", True), ("none", False)])
def test_tokenized_text_is_a_mistake_unless_the_metric_does_not_tokenize(
    monkeypatch, tokenize, warns
):
    warnings = []
    monkeypatch.setattr(
        logging.getLogger("sacrebleu"), "warning", lambda text: warnings.append(text)
    )
    tokenized = ["Heute ist der dritte Mai ."] * 100
    corpus_scores(tokenized, [tokenized], ["bleu"], ScoreConfig(tokenize=tokenize))
    assert any("forgot to detokenize" in text for text in warnings) == warns


def test_the_bootstrap_test_equals_that_of_the_sacrebleu_command(files):
    config = ScoreConfig(bootstrap_samples=100)
    ours = corpus_scores(
        HYPOTHESES, [REFERENCE], ["bleu", "chrf", "ter"], config, baseline=BASELINE
    )
    inputs = ["-i", files["baseline"], files["hypotheses"], "-m", "bleu", "chrf", "ter"]
    text = sacrebleu_command(
        files["reference"], *inputs, "-pbs", "-pbsn", 100, "-w", 4, "-f", "text", "-q"
    )
    theirs = [float(number) for number in re.findall(r"\d+\.\d{4}", text)]
    comparisons = [s.comparison for s in ours]
    values = [(s.value, s.mean, s.interval) for s in ours]
    assert theirs[0:9:3] == [round(c.baseline, 4) for c in comparisons]
    assert theirs[9:18] == [round(number, 4) for value in values for number in value]
    assert theirs[18:] == [round(c.p_value, 4) for c in comparisons]
    for result in ours:
        assert result.signature in text


def test_identical_outputs_have_no_difference_to_test():
    metrics = ["bleu", "chrf", "ter", "paper-bleu"]
    found = corpus_scores(
        HYPOTHESES,
        [REFERENCE],
        metrics,
        ScoreConfig(bootstrap_samples=20),
        baseline=HYPOTHESES,
        language="de",
    )
    for each in found:
        assert each.comparison.baseline == each.value
        assert each.comparison.p_value is None
        assert each.interval > 0


def test_an_interval_without_a_baseline_equals_that_of_sacrebleu():
    config, names = ScoreConfig(bootstrap_samples=100), ["bleu", "chrf", "ter", "paper-bleu"]
    ours = corpus_scores(HYPOTHESES, [REFERENCE], names, config, language="de")
    for one, metric in zip(ours, (BLEU(), CHRF(), TER()), strict=False):
        score = metric.corpus_score(HYPOTHESES, [REFERENCE], n_bootstrap=100)
        assert (one.value, one.interval) == (score.score, score._ci)
    assert ours[-1].interval > 0


def test_the_seed_changes_the_samples_but_not_the_environment(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    one, same, other = (
        corpus_scores(
            HYPOTHESES,
            [REFERENCE],
            ["chrf"],
            ScoreConfig(bootstrap_samples=50, bootstrap_seed=seed),
            baseline=BASELINE,
        )[0]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one.mean != other.mean
    assert "seed:1|" in one.signature
    assert os.environ["SACREBLEU_SEED"] == "7"
