"""Validation during training."""

import itertools
import math
import re
import sys
from dataclasses import replace

import pytest
import torch

from tfm import training
from tfm.commands.translator import Translator
from tfm.config import BatchingConfig, SearchConfig
from tfm.dataset.batching import Batcher
from tfm.machine.compute import Compute
from tfm.metrics.command import MetricCommand, MetricCommandError
from tfm.metrics.scores import corpus_scores
from tfm.model.build import new_model
from tfm.training.data import open_data
from tfm.training.loss import BatchLoss
from tfm.training.validation import ValidationStoppedError, Validator
from tfm.translation.engine import Engine


@pytest.fixture
def validate(data_dir, tiny_run):
    """Validate an untrained model with a beam."""

    def call(beam, check=lambda model, data: None, change=lambda data: None, **fields):
        metric = "score" if beam else "loss"
        run = tiny_run(training={"validation_beam": beam, "best_metric": metric})
        data = open_data(data_dir, run)
        change(data)
        torch.manual_seed(0)
        model = new_model(run.model, data.info.vocab_sizes)
        validator = Validator(
            split=data.valid,
            vocabulary=data.vocabulary,
            info=data.info,
            compute=Compute(torch.device("cpu"), torch.float32),
            **fields,
        )
        validation = validator.validate(model)
        check(model, data)
        return validation

    return call


def test_without_a_beam_only_the_loss_is_computed(validate):
    validation = validate(0)
    assert validation.metrics.keys() == {"loss", "perplexity"}
    assert validation.metrics["perplexity"] == pytest.approx(math.exp(validation.metrics["loss"]))
    assert "BLEU" not in str(validation)


def test_with_a_beam_bleu_comes_with_its_signature_but_a_line_shows_only_its_value(validate):
    validation = validate(1)
    assert 0 <= validation.metrics["bleu"] <= 100
    assert "tok:13a" in validation.score.signature
    assert str(validation).endswith(f" · BLEU {validation.score.value:.2f}")
    assert validation.metrics["loss"] == validate(0).metrics["loss"]


def test_a_program_scores_the_outputs_with_their_sources_and_references(validate):
    # Prints the length of the source, or fails for another number of columns.
    columns = "(line[:-1].split('\\t') for line in sys.stdin)"
    code = f"import sys; [print(len(s), flush=True) for s, h, r in {columns}]"
    sources = []
    with MetricCommand(f'"{sys.executable}" -X utf8 -c "{code}"') as command:
        validation = validate(
            1, lambda _, data: sources.extend(data.valid.sources), command=command
        )
    mean = sum(map(len, sources)) / len(sources)
    assert validation.metrics["command"] == pytest.approx(mean)
    assert str(validation).endswith(f" · command {mean:.4g}")


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_same_sentences_are_samples_of_each_validation(validate, number):
    pairs = []

    def ask(data):
        training = replace(data.info.run.training, validation_samples=number)
        run = replace(data.info.run, training=training)
        object.__setattr__(data, "info", replace(data.info, run=run))
        pairs.extend(zip(data.valid.sources, data.valid.references, strict=True))

    samples = validate(1, change=ask).samples
    assert [each.line for each in samples] == {0: [], 1: [len(pairs) // 2 + 1]}.get(
        number, [(2 * i + 1) * len(pairs) // 6 + 1 for i in range(number)]
    )
    assert [(each.source, each.reference) for each in samples] == [
        pairs[s.line - 1] for s in samples
    ]


def test_a_program_that_fails_costs_only_its_score(validate, capsys):
    with MetricCommand("echo 1; echo out of memory >&2; exit 3") as command:
        validation = validate(1, command=command)
    assert validation.metrics.keys() == {"loss", "perplexity", "bleu"}
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(
        "warning: the metric command .* with exit code 3: out of memory; training", line
    )


def test_a_signal_ends_the_wait_for_a_program(validate):
    requests = []

    def interrupt(num_scored):
        requests.append(num_scored)
        raise MetricCommandError("interrupted")

    with (
        MetricCommand("sleep 60", waiting=interrupt) as command,
        pytest.raises(ValidationStoppedError),
    ):
        validate(1, command=command, should_stop=lambda: bool(requests))


def test_bleu_has_the_tokenizer_of_the_run(validate):
    def use_characters(data):
        object.__setattr__(data, "info", replace(data.info, bleu_tokenizer="char"))

    assert "tok:char" in validate(1, change=use_characters).score.signature


def test_outputs_are_scored_in_the_order_of_their_sources(validate, monkeypatch):
    scored = []

    def score(outputs, *others):
        scored.append(outputs)
        return corpus_scores(outputs, *others)

    def check(model, data):
        lengths = [len(source) for source in data.valid.sources]
        assert lengths != sorted(lengths, reverse=True)
        engine = Engine([model], Compute(torch.device("cpu"), torch.float32))
        translator = Translator.of(engine, data.vocabulary)
        assert scored == [translator.translate(data.valid.sources, SearchConfig(beam_size=1))]
        assert len(set(scored[0])) > 1

    monkeypatch.setattr(training.validation, "corpus_scores", score)
    monkeypatch.setattr(training.validation, "_CHUNK", 3)
    validate(1, check)


def test_sources_are_normalized_as_the_training_text_was(validate):
    def add_white_space(data):
        data.valid.sources[:] = [f"\t{source}\u200b " for source in data.valid.sources]

    assert validate(1, change=add_white_space).score == validate(1).score


def loss_of(model, data, **batching):
    run = replace(data.info.run, batching=replace(data.info.run.batching, **batching))
    validator = Validator(
        split=data.valid,
        vocabulary=data.vocabulary,
        info=replace(data.info, run=run),
        compute=Compute(torch.device("cpu"), torch.float32),
    )
    return validator.validate(model).metrics["loss"]


def test_the_loss_is_the_unsmoothed_mean_without_dropout(new_trainer, data_dir, tiny_run):
    trainer, data = new_trainer(), open_data(data_dir, tiny_run())
    sizes = {"batch_tokens": 60, "bucket_tokens": 60}
    few, many = (loss_of(trainer.model, data, max_tokens=n, **sizes) for n in (40, 100_000))
    assert few == pytest.approx(many, rel=1e-5)

    trainer.model.eval()
    total = num_tokens = 0
    batcher = Batcher(data.valid.pairs, BatchingConfig(max_tokens=100_000, **sizes), seed=0)
    for rows in batcher.epoch(1):
        for batch in map(batcher.batch, batcher.split(rows)):
            _, nll = BatchLoss(trainer.model, label_smoothing=0.0)(batch)
            total, num_tokens = total + float(nll), num_tokens + batch.num_tokens
    assert many == pytest.approx(total / num_tokens, rel=1e-6)
    assert num_tokens == batcher.num_tokens


def test_a_validation_does_not_change_the_training(new_trainer, data_dir, tiny_run):
    one, other = new_trainer(), new_trainer()
    batches = list(itertools.islice(one.batches(), 4))
    for number, batch in enumerate(batches):
        if number == 2:
            loss_of(other.model, open_data(data_dir, tiny_run()))
        assert one.step(batch)[0].report().loss == other.step(batch)[0].report().loss
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(itertools.starmap(torch.equal, pairs))
