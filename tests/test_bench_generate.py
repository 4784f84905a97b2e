"""tfm bench generate: plausible results for the translations of `tfm generate`."""

import json
import re
import tempfile
from contextlib import nullcontext
from dataclasses import fields

import numpy as np
import pytest
import typer

from tfm.cli import main as cli
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import DataError, UsageError
from tfm.inference import engine as inference
from tfm.stages.bench import generate as stage
from tfm.stages.bench.generate import Milliseconds, Plan, bench_generate
from tfm.stages.generate_plan import Generation, Source, plan_generation

CPU = InferenceConfig(device="cpu", precision="fp32")

PLAN = Plan(rounds=2, repeat=1, latency=False)


@pytest.fixture
def bench(trained_run):
    """Time a text, by default the test split, with the tiny model."""

    def call(text=None, *, plan=PLAN, config=None):
        generation = plan_generation(
            [trained_run], input_path=text, split=None if text else "test", runs_dir=trained_run
        )
        config = config or SearchConfig(beam_size=2)
        return bench_generate(generation, config, plan, CPU)

    return call


def test_tokens_of_the_best_translations_are_counted_with_eos(bench, monkeypatch):
    searched = []
    in_full = inference.Engine.search

    def watched(engine, batch, config):
        outputs = in_full(engine, batch, config)
        searched.extend(zip(batch.sources, outputs, strict=True))
        return outputs

    monkeypatch.setattr(inference.Engine, "search", watched)
    result = bench(plan=Plan(rounds=1, repeat=1, latency=False), config=SearchConfig(n_best=2))
    timed = searched[len(searched) // 2 :]  # after one untimed pass
    assert result.num_source_tokens == sum(len(source) + 1 for source, _ in timed)
    assert result.num_target_tokens == sum(len(best[0].tokens) + 1 for _, best in timed)


def test_results_are_plausible_and_consistent(bench, data_dir, trained_run):
    result = bench()
    assert result.text == str(data_dir / "test.en")
    assert result.model.startswith(str(trained_run))
    assert result.num_sentences == 12
    assert result.num_source_tokens > 12 < result.num_target_tokens
    by_round = result.target_tokens_per_second_by_round
    assert len(by_round) == 2
    assert min(by_round) > 0
    assert result.target_tokens_per_second == pytest.approx(np.median(by_round))
    assert result.target_tokens_per_second / result.sentences_per_second == pytest.approx(
        result.num_target_tokens / 12
    )
    assert result.source_tokens_per_second / result.sentences_per_second == pytest.approx(
        result.num_source_tokens / 12
    )
    assert 0 < result.seconds_to_load < 60
    assert 1e7 < result.peak_memory.process < 1e11
    assert result.num_parameters > 400 * 16
    assert result.latency is None


def test_a_text_repeated_three_times_has_three_times_the_tokens(bench, tmp_path):
    text = tmp_path / "in.en"
    text.write_text("the dog\n\na cat sees it")  # without a final line end
    once, thrice = (bench(text, plan=Plan(rounds=1, repeat=n, latency=False)) for n in (1, 3))
    assert once.num_sentences == 2  # without the empty line
    for name in ("num_sentences", "num_source_tokens", "num_target_tokens"):
        assert getattr(thrice, name) == 3 * getattr(once, name)


def test_each_sentence_is_timed_alone_in_each_round(bench, monkeypatch):
    sizes = []
    in_full = inference.Engine.search

    def watched(engine, batch, config):
        sizes.append(len(batch))
        return in_full(engine, batch, config)

    monkeypatch.setattr(inference.Engine, "search", watched)
    result = bench(plan=Plan(rounds=2, repeat=1, latency=True))
    assert sizes.count(1) >= 2 * 12
    assert sum(sizes) == 12 + 2 * (12 + 12)  # with one untimed pass
    latency = result.latency
    for times in (latency.sentence, latency.token):
        assert 0 < times.median <= times.p90 <= times.p99 < 60_000
    assert latency.token.median < latency.sentence.median


def test_quantiles_are_in_milliseconds():
    assert Milliseconds.of([n / 1e3 for n in range(1, 102)]) == Milliseconds(
        median=pytest.approx(51), p90=pytest.approx(91), p99=pytest.approx(100)
    )


@pytest.mark.parametrize("interrupted", [False, True])
def test_temporary_files_are_removed(bench, tmp_path, monkeypatch, interrupted):
    def interrupt(*args, **kwargs):
        assert list(tmp_path.glob("tfm-bench-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if interrupted:
        monkeypatch.setattr(stage, "decode", interrupt)
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        bench()
    assert not list(tmp_path.iterdir())


# --- refusals


def test_several_processes_are_refused(bench, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2,
                        "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UsageError, match="a single process, but torchrun has started 2"):
        bench()


def test_a_text_without_words_is_refused(bench, tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(DataError, match="no line to translate"):
        bench(tmp_path / "empty")


def test_standard_input_is_refused():
    generation = Generation(
        models=[],
        source=Source(path=None),
        prefixes=None,
        targets=None,
        data_dir="",
        languages=("en", "de"),
        search={},
    )
    with pytest.raises(UsageError, match="give the text with --input"):
        bench_generate(generation, SearchConfig(), PLAN, CPU)


# --- the command line


def test_json_is_one_object(run, trained_run):
    flags = ["--beam", 2, "--rounds", 2, "--repeat", 2, "--device", "cpu", "--latency", "--json"]
    code, out, err = run("bench", "generate", trained_run, *flags)
    assert code == 0, err
    [record] = map(json.loads, out.splitlines())
    assert record["plan"] == {"rounds": 2, "repeat": 2, "latency": True}
    assert record["search"]["beam_size"] == 2
    assert record["num_sentences"] == 24
    assert record["latency"].keys() == {"sentence", "token"}
    assert record["latency"]["token"].keys() == {"median", "p90", "p99"}
    assert {
        "target_tokens_per_second",
        "source_tokens_per_second",
        "sentences_per_second",
        "num_source_tokens",
        "num_target_tokens",
        "seconds_to_load",
        "peak_memory",
        "device",
        "num_threads",
        "torch",
    } <= record.keys()
    assert err.startswith("bench generate: ")


def test_the_table_shows_the_results(run, trained_run, data_dir):
    code, out, err = run(
        "bench", "generate", trained_run, "--split", "valid", "--device", "cpu", "--rounds", 1
    )
    assert code == 0, err
    for word in ("target tokens per second", "sentences per second", "peak memory", "beam 4"):
        assert word in out
    assert "one at a time" not in out
    assert "valid.en" in "".join(out.split())  # it may be wrapped


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--foo", 2, "no such option --foo"),
        ("--rounds 0", 2, "Invalid value for '--rounds'"),
        ("--repeat 0", 2, "Invalid value for '--repeat'"),
        ("--beam 0", 2, "beam_size is 0"),
        ("--temperature 2", 2, "temperature has no effect on search beam"),
        ("--input nowhere", 2, "nowhere does not exist"),
        ("--input /dev/null --split test", 2, "--input and --split exclude each other"),
    ],
)
def test_a_mistake_is_one_line(run, trained_run, arguments, code, message):
    got, out, err = run("bench", "generate", trained_run, *arguments.split())
    assert (got, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert re.match(f"tfm: {message}", err)


def test_the_benchmark_has_every_search_setting():
    group = typer.main.get_command(cli.app)
    generate, timed = group.commands["generate"], group.commands["bench"].commands["generate"]
    settings = {item.name for item in fields(SearchConfig)}
    assert settings <= {p.name for p in generate.params}
    assert settings <= {p.name for p in timed.params}
