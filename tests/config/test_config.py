"""Settings: precedence, limits, and conversion to TOML and back."""

import dataclasses
import math
import os
import re
import tomllib
import typing

import pytest

from tfm import config
from tfm.applications.serve.settings import ServeConfig
from tfm.config import (
    AverageConfig,
    BatchingConfig,
    BinarizeConfig,
    CleaningConfig,
    InferenceConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScoreConfig,
    SearchConfig,
    Settings,
    SubwordConfig,
    TrainingConfig,
    TransformerConfig,
    by_section,
    presets,
    read_toml,
    run_config,
    run_table,
    run_toml,
    settings_from,
    suitable_arch,
)
from tfm.config.schema import check_facts, merged
from tfm.config.values import Measured, from_table
from tfm.errors import DETAIL, UsageError
from tfm.steps import StepsConfig

GROUPS = [
    kind
    for kind in vars(config).values()
    if isinstance(kind, type) and issubclass(kind, Settings) and kind not in (Settings, ModelConfig)
]
COMMAND_GROUPS = {
    "prepare": (CleaningConfig, SubwordConfig, BinarizeConfig),
    "train": (TransformerConfig, OptimizerConfig, BatchingConfig, TrainingConfig),
}


def problem(*args, **kwargs):
    """Return the message with which run_config refuses tables."""
    with pytest.raises(UsageError) as caught:
        run_config(*args, **kwargs)
    assert "\n" not in str(caught.value).replace(DETAIL, "")
    return str(caught.value)


def test_the_default_is_the_base_model_of_the_paper():
    run = run_config(None)
    assert run == RunConfig() == run_config("base")
    model, optimizer, training = run.model, run.optimizer, run.training
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    assert (model.d_model, model.d_ff, model.num_heads) == (512, 2048, 8)
    assert (model.key_width, model.value_width) == (64, 64)
    assert (model.dropout, optimizer.label_smoothing) == (0.1, 0.1)
    assert (optimizer.adam_beta1, optimizer.adam_beta2) == (0.9, 0.98)
    assert (optimizer.adam_epsilon, optimizer.warmup_steps) == (1e-9, 4000)
    assert (training.max_steps, training.average_last) == (100_000, 5)
    assert (SearchConfig().beam_size, SearchConfig().length_penalty) == (4, 0.6)
    assert SearchConfig().max_extra_length == 50


def test_flags_win_over_the_file_which_wins_over_the_preset():
    file = {"model": {"d_ff": 1000, "dropout": 0.2}, "training": {"seed": 5}}
    flags = {"model": {"dropout": 0.4}}
    run = run_config("big", file, flags)
    assert run.model.d_model == 1024  # the preset's
    assert (run.model.d_ff, run.training.seed) == (1000, 5)  # the file's
    assert run.model.dropout == 0.4  # the flag's


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([], (500, 10.0)),
        ([{"checkpoint_minutes": 2.0}], (None, 2.0)),  # over the preset
        ([{"checkpoint_minutes": 10.0}], (None, 10.0)),
        ([{"checkpoint_minutes": 2.0}, {"checkpoint_steps": 7}], (7, 10.0)),
        ([{"checkpoint_steps": 7}, {"checkpoint_minutes": 2.0}], (None, 2.0)),
        ([{"checkpoint_steps": 7}, {"max_steps": 9}], (7, 10.0)),
    ],
)
def test_minutes_and_steps_between_checkpoints_replace_each_other(tables, expected):
    training = run_config("tiny", *({"training": table} for table in tables)).training
    assert (training.checkpoint_steps, training.checkpoint_minutes) == expected


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([], (100_000, 50)),
        ([{"max_steps": 100_000}], (100_000, None)),
        ([{"max_epochs": 7}, {"max_steps": 9}], (9, 7)),
        ([{"max_steps": 9}, {"seed": 7}], (9, None)),
    ],
)
def test_given_steps_replace_the_epochs_of_a_preset_also_when_the_run_is_restored(tables, expected):
    run = run_config("medium", *({"training": table} for table in tables))
    for each in (run, run_config(None, run_table(run))):
        assert (each.training.max_steps, each.training.max_epochs) == expected


def test_minutes_and_steps_between_checkpoints_exclude_each_other_in_one_table(tmp_path):
    both = {"training": {"checkpoint_minutes": 2.0, "checkpoint_steps": 7}}
    assert "checkpoint_minutes and checkpoint_steps exclude each other" in problem("base", both)
    path = tmp_path / "run.toml"
    path.write_text("[training]\ncheckpoint_steps = 7\ncheckpoint_minutes = 2.0", encoding="utf-8")
    assert problem("base", read_toml(path)).startswith(f"{path}:3: checkpoint_minutes and ")


def test_a_file_may_name_the_preset():
    assert run_config(None, {"arch": "big"}) == run_config("big")
    assert run_config("big", {"arch": "big"}) == run_config("big")


SLOW = ", on which %s would take days"


@pytest.mark.parametrize(
    ("num_pairs", "on_gpu", "task", "expected"),
    [
        (2_000, False, "translation", ("tiny", "2,000 pairs on a CPU")),
        (99_999, True, "translation", ("tiny", "99,999 pairs on a GPU")),
        (100_000, True, "translation", ("medium", "100,000 pairs on a GPU")),
        (999_999, True, "translation", ("medium", "999,999 pairs on a GPU")),
        (4_500_000, True, "translation", ("base", "4,500,000 pairs on a GPU")),
        (40_000, False, "parsing", ("parser", "40,000 trees")),
        (100_000, False, "translation", ("small", "100,000 pairs on a CPU" + SLOW % "medium")),
        (1_000_000, False, "translation", ("small", "1,000,000 pairs on a CPU" + SLOW % "base")),
    ],
)
def test_the_preset_follows_from_dataset_and_device(num_pairs, on_gpu, task, expected):
    assert suitable_arch(num_pairs, on_gpu=on_gpu, task=task) == expected


def test_all_problems_are_in_one_message():
    message = problem(
        None,
        {
            "modell": {"d_ff": 1},
            "model": {"width": 3, "dropout": 2.0, "d_ff": "many", "norm": "none"},
            "training": {"max_steps": 0, "patience": True},
            "batching": 5,
        },
    )
    for part in (
        "unknown section 'modell': did you mean model?",
        "unknown setting 'width' in [model]: choose from num_encoder_layers",
        "dropout is 2.0, but must be at most 0.9",
        "d_ff in [model] is 'many', but must be a whole number",
        "norm in [model] is 'none', but must be one of post, pre",
        "max_steps is 0, but must be at least 1",
        "patience in [training] is True, but must be a whole number",
        "unknown section 'batching': write its settings under [batching]",
    ):
        assert part in message


def test_a_setting_of_another_kind_of_model_names_the_preset():
    assert problem("tiny", {"model": {"cell": "gru"}}) == (
        "cell in [model] has no effect on arch tiny: leave it out, or use arch rnn"
    )
    assert problem("rnn", {"model": {"num_heads": 4, "d_ff": 8}}) == (
        "2 mistakes:\n"
        "  d_ff in [model] has no effect on arch rnn: leave it out\n"
        "  num_heads in [model] has no effect on arch rnn: leave it out"
    )
    assert problem("rnn", {"model": {"encoder_width": 8, "attention": "dot-product"}}) == (
        "encoder_width has no effect on attention dot-product, only on additive: leave it out"
    )
    assert problem("rnn", {"model": {"local_window": 3}}) == (
        "local_window has no effect on source_attention soft, only on local-m and local-p: "
        "leave it out"
    )
    assert "encoder_width is 7, but must be even" in problem("rnn", {"model": {"encoder_width": 7}})


@pytest.mark.parametrize(
    ("arch", "table", "advice"),
    [
        (None, {"optim": {}}, "'optim': did you mean optimizer?"),
        (
            None,
            {"decoding": {}},
            "'decoding': sections are model, optimizer, batching, augmentation, training",
        ),
        (None, {"dropout": 0.1}, "'dropout': did you mean dropout in [model]?"),
        (None, {"optimizer": {"lr": 0.1}}, "'lr' in [optimizer]: did you mean learning_rate?"),
        (None, {"training": {"lr": 0.1}}, "did you mean learning_rate in [optimizer]?"),
        (None, {"arch": "huge"}, f"choose one of {', '.join(presets())}"),
        (None, {"arch": ["base"]}, f"choose one of {', '.join(presets())}"),
        ("base", {"arch": "big"}, "--arch base contradicts arch big in the file: leave one out"),
    ],
    ids=str,
)
def test_an_unknown_name_or_another_preset_gets_a_suggestion(arch, table, advice):
    assert problem(arch, table).endswith(advice)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('# a run\narch = "tinny"', "2: unknown arch 'tinny'"),
        ("[model]\n# dropout = 1\ndropout = 2", "3: dropout is 2.0"),
        ("training.seed = 1.5", "1: seed in [training] is 1.5"),
        ("\nmodel = {norm = 5}", "2: norm in [model] is 5"),
        ("\n[optim]\nseed = 1", "2: unknown section 'optim'"),
        ("\n[[model]]\nseed = 1", "2: unknown section 'model'"),
        ("[model]\nd_model = 7", "2: d_model is 7, but must be even"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "run.toml"
    path.write_text(content, encoding="utf-8")
    found = problem(None, read_toml(path)).split(DETAIL)
    assert any(line.startswith(f"{path}:{message}") for line in found)


def test_a_flag_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[model]\ndropout = 0.1", encoding="utf-8")
    flags = {"model": {"dropout": 2.0}}
    assert problem(None, read_toml(path), flags).startswith("dropout is 2.0")


EVERY_GROUP = pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)


@pytest.mark.parametrize("group", [*GROUPS, ServeConfig])
def test_every_number_has_both_limits_and_is_refused_beyond_them(group):
    assert list(group().problems()) == []
    hints = typing.get_type_hints(group)
    for item in dataclasses.fields(group):
        if {int, float} & {hints[item.name], *typing.get_args(hints[item.name])}:
            for bound, beyond, word in zip(
                item.metadata["rules"].limits, (-1, 1), ("least", "most"), strict=True
            ):
                with pytest.raises(UsageError, match=f"{item.name}.* is .* be at {word} {bound}"):
                    settings_from(group, {item.name: bound + beyond})


@EVERY_GROUP
def test_a_value_of_another_type_is_refused(group):
    for item in dataclasses.fields(group):
        is_text = typing.get_type_hints(group)[item.name] == str | None
        for value in ({}, object(), 1 if is_text else "no such choice", b"x"):
            with pytest.raises(UsageError, match=rf"{item.name} in \[{group.section}\] is .*, but"):
                settings_from(group, {item.name: value})


def test_integers_are_accepted_for_floats_but_not_the_reverse():
    assert settings_from(TransformerConfig, {"dropout": 0}).dropout == 0.0
    assert isinstance(settings_from(TransformerConfig, {"dropout": 0}).dropout, float)
    with pytest.raises(UsageError, match=r"d_ff in \[model\] is 2\.0, but must be a whole number"):
        settings_from(TransformerConfig, {"d_ff": 2.0})


@pytest.mark.parametrize(
    ("group", "table", "message"),
    [
        (TransformerConfig, {"d_model": 15, "num_heads": 5}, "d_model is 15, but must be even"),
        (TransformerConfig, {"num_heads": 7}, "is not a multiple of num_heads 7"),
        (TransformerConfig, {"num_heads": 7, "d_k": 64}, "is not a multiple of num_heads 7"),
        (TrainingConfig, {"validation_beam": 0}, "validation_beam 0 computes none"),
        (SearchConfig, {"mbr_tokenize": "zh"}, "mbr_tokenize has no effect without mbr bleu"),
        (
            OptimizerConfig,
            {"weight_decay": 0.1},
            r"weight_decay has no effect on algorithm \(--optimizer\) adam, only on adamw",
        ),
        (
            SearchConfig,
            {"diversity_steps": 3},
            "^diversity_steps has no effect without num_groups: leave it out, or give both$",
        ),
        (AverageConfig, {"last": 3, "best": 2}, "^last and best exclude each other: give one$"),
        (SearchConfig, {"num_groups": 3}, "num_groups is 3, but must divide the beam size 4"),
        (SearchConfig, {"mbr": "command", "n_best": 4}, "needs a program: add metric_command"),
        (TrainingConfig, {"keep_last": 2}, "average_last is 5, but only keep_last 2 checkpoints"),
        (SearchConfig, {"n_best": 5}, "n_best is 5, but must be at most the beam size"),
    ],
)
def test_values_that_contradict_each_other_are_refused(group, table, message):
    with pytest.raises(UsageError, match=message):
        settings_from(group, table)


# What rules name besides settings of the same group: facts about a call, and other settings.
FACTS = {"--from", "several processes", "validation text", "baseline", "metrics", "task"}
FACTS |= {"search", "num_groups", "prefix", "score_target", "json"}


def choices_of(group, item):
    """Return the words of which a setting is one."""
    hint = typing.get_type_hints(group)[item.name]
    kinds = [hint, *typing.get_args(hint)]
    return [each for kind in kinds for each in typing.get_args(kind) if isinstance(each, str)]


def another_value(group, item):
    """Return a value of a setting that is valid by itself, but not its default."""
    hint = typing.get_type_hints(group)[item.name]
    kinds = [hint, *typing.get_args(hint)]
    if choices := choices_of(group, item):
        return next(each for each in choices if each != item.default)
    if bool in kinds:
        return not item.default
    if {int, float} & {*kinds}:
        low, high = item.metadata["rules"].limits
        return next(each for each in (high, low) if each != item.default)
    return ("x",) if typing.get_origin(hint) is tuple else "x"


def value_that_is_off(item):
    least, _ = item.metadata["rules"].limits
    return item.default if least is None or least < 0 else least


@pytest.mark.parametrize("group", [*GROUPS, StepsConfig, ServeConfig])
def test_a_setting_is_refused_beside_what_its_rules_forbid(group):
    items = {item.name: item for item in dataclasses.fields(group)}
    for name, item in items.items():
        rules, chosen = item.metadata["rules"], {name: another_value(group, item)}
        assert {*rules.needs, *rules.excludes, *rules.only} <= items.keys() | FACTS
        excluded = [items[other] for other in rules.excludes if other in items]
        tables = [chosen | {other.name: another_value(group, other)} for other in excluded]
        needed = [items[other] for other in rules.needs if other in items]
        if needed:
            tables.append(chosen | {other.name: value_that_is_off(other) for other in needed})
        for other, choices in rules.only.items():
            if other not in items:
                continue
            wrong = {*choices_of(group, items[other]), items[other].default} - {*choices}
            tables += [chosen | {other: value} for value in wrong]
        for table in tables:
            assert name in {problem.name for problem in group(**table).problems()}
        allowed = {other.name: another_value(group, other) for other in needed[:1]}
        allowed |= {other: values[0] for other, values in rules.only.items() if other in items}
        problems = group(**chosen | allowed).problems()
        assert not any(each.is_idle for each in problems if each.name == name)


def test_facts_about_a_call_are_compared_with_settings():
    check_facts([ScoreConfig(tokenize="zh")], {"metrics": ["ter", "bleu"]})
    with pytest.raises(UsageError, match=r"^tokenize has no effect on metrics ter and chrf, only"):
        check_facts([ScoreConfig(tokenize="zh")], {"metrics": ["ter", "chrf"]})
    check_facts([OptimizerConfig(freeze=("encoder",))], {"--from": "runs/a"})
    with pytest.raises(UsageError, match=r"^freeze has no effect without --from: leave it out"):
        check_facts([OptimizerConfig(freeze=("encoder",))], {"--from": None})


def test_a_vocabulary_may_have_thousands_of_tags():
    symbols = " ".join(f"<{number:030}>" for number in range(5_000))
    assert settings_from(SubwordConfig, {"symbols": symbols}).symbols == symbols


def test_defaults_that_do_not_fit_given_settings_are_left_out():
    defaults = {"vocab_size": 500, "symbols": "<x>"}
    given = {"subwords": ("x",)}
    assert merged(SubwordConfig, defaults, given) == SubwordConfig(subwords=("x",), symbols="<x>")
    assert merged(SubwordConfig, given, {"vocab_size": 600}) == SubwordConfig(vocab_size=600)
    defaults = {"num_groups": 2, "diversity_steps": 4}
    assert merged(SearchConfig, defaults, {"num_groups": 1}) == SearchConfig()
    with pytest.raises(UsageError, match="diversity_strength has no effect without num_groups"):
        merged(SearchConfig, {}, {"diversity_strength": 0.0})


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_ends_before_its_warmup_is_refused(schedule):
    table = {
        "optimizer": {"lr_schedule": schedule, "warmup_steps": 11},
        "training": {"max_steps": 10},
    }
    assert problem("tiny", table).startswith("warmup_steps is 11, but must be at most 10, the last")
    run = run_config("tiny", {**table, "training": {"max_steps": 99, "max_epochs": 3}})
    assert [run.last_step(number) for number in (4, 33, 40)] == [12, 99, 99]
    with pytest.raises(UsageError, match="warmup_steps is 11, but must be at most 9, the last"):
        run.last_step(3)


def test_with_given_head_widths_num_heads_need_not_divide_d_model():
    model = settings_from(TransformerConfig, {"num_heads": 7, "d_k": 30, "d_v": 20})
    assert (model.key_width, model.value_width) == (30, 20)


@EVERY_GROUP
def test_every_setting_has_help_of_one_sentence(group):
    for item in dataclasses.fields(group):
        assert re.fullmatch(r"[^a-z\n][^\n]{,97}\.", item.metadata["help"]), item.name


@pytest.mark.parametrize("groups", COMMAND_GROUPS.values(), ids=COMMAND_GROUPS.keys())
def test_settings_of_one_command_have_distinct_names_and_flags(groups):
    """Those with the same name have one flag, and must accept the same values."""
    items = {}
    for group in groups:
        for item in dataclasses.fields(group):
            facts = [item.default, typing.get_type_hints(group)[item.name]]
            facts += [item.metadata["flag"], item.metadata["rules"].limits]
            assert items.setdefault(item.name, facts) == facts
    flags = [facts[2] or name for name, facts in items.items()]
    assert len(set(flags)) == len(flags)


def test_a_setting_of_several_groups_is_set_in_all_their_sections():
    given = {"threads": 2, "separate": True, "vocab_size": None}
    sections = {section: {"threads": 2} for section in ("binarize", "inference")}
    sections["subword"] = {"separate": True}
    assert by_section((SubwordConfig, BinarizeConfig, InferenceConfig), given) == sections


def test_a_setting_may_have_the_name_of_its_flag():
    assert by_section([SearchConfig], {"beam": 3}) == by_section([SearchConfig], {"beam_size": 3})
    with pytest.raises(UsageError, match="beam_size is given twice, under two names"):
        by_section([SearchConfig], {"beam": 3, "beam_size": 3})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("beam_siz", "did you mean beam_size?"),
        ("num_beams", "did you mean beam?"),
        ("lenpen", "did you mean length_penalty?"),
        ("prefix", "did you mean prefixes?"),
        ("qqq", "choose from search, "),
    ],
)
def test_an_unknown_setting_of_a_call_gets_a_suggestion(name, advice):
    with pytest.raises(UsageError) as caught:
        by_section([SearchConfig], {name: 1}, {"prefixes": "prefixes"})
    assert str(caught.value).startswith(f"unknown setting '{name}': {advice}")


@pytest.mark.parametrize("arch", presets())
def test_a_run_is_restored_from_its_toml_and_its_table(arch):
    run = run_config(arch)
    assert run_config(None, tomllib.loads(run_toml(run))) == run
    assert run_config(None, run_table(run)) == run


def test_a_run_with_any_path_is_restored_from_its_toml(tmp_path):
    path = tmp_path / "run.toml"
    for name in ("\N{SNOWFLAKE}\N{GRINNING FACE}", "\x7f", 'a"b\\c'):
        run = run_config("base", {"from_model": name, "training": {"also_valid": [f"x={name}"]}})
        path.write_text(run_toml(run), encoding="utf-8")
        assert run_config(None, read_toml(path)) == run
    with pytest.raises(UsageError, match="is not UTF-8: rename it"):
        run_toml(run_config("base", {"from_model": os.fsdecode(b"\xff")}))


def test_the_toml_of_a_run_has_every_setting_with_its_help():
    lines = run_toml(run_config("base")).splitlines()
    for group in COMMAND_GROUPS["train"]:
        assert f"[{group.section}]" in lines
        for item in dataclasses.fields(group):
            [line] = [
                line for line in lines if line.removeprefix("# ").startswith(f"{item.name} =")
            ]
            assert line.endswith(f"# {item.metadata['help']}")


@pytest.mark.parametrize("content", [b"[model", b"a = 1\na = 2", b"\xff\xfe"])
def test_an_invalid_toml_file_is_named_in_one_line(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"run\.toml is not a TOML file: ") as caught:
        read_toml(path)
    assert "\n" not in str(caught.value).replace(DETAIL, "")
    with pytest.raises(UsageError, match=f"^{tmp_path} cannot be read"):
        read_toml(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = " + b"[" * 100_000, "nests too deeply"),
        (b"a = " + b"9" * 5_000, "is not a TOML file"),
        (b"a." * 50_000 + b"b = 1", "more than 100 dots"),
        (b'p = "C:\\Users"', "write paths with /"),
        ("a = 1".encode("utf-16"), "save it as UTF-8"),
        (b"#" * (1 << 20) + b"\n", "larger than"),
    ],
    ids=["brackets", "digits", "dots", "paths", "encoding", "size"],
)
def test_a_file_that_would_exhaust_time_or_stack_is_refused(tmp_path, content, message):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"run\.toml .*{message}"):
        read_toml(path)


@pytest.mark.parametrize("name", ["max_steps", "checkpoint_minutes", "precision"])
def test_a_number_of_any_size_gives_a_short_message(name):
    message = problem("base", {"training": {name: 1 << 40_000}})
    assert name in message
    assert len(message) < 300


def test_a_value_of_any_size_and_depth_is_shortened_in_messages():
    nested: object = "x" * 100_000
    for _ in range(10_000):
        nested = [nested]
    assert len(problem("base", {"training": {"max_steps": nested, "x" * 100_000: 1}})) < 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A record with a field of each type."""

    name: typing.Annotated[str, re.compile("[a-z]+")]
    size: int
    sizes: tuple[int, int] = (0, 0)
    steps: tuple[int, ...] = ()
    figures: typing.Mapping[str, float] = dataclasses.field(default_factory=dict)
    best: float | None = None
    loss: Measured = 0.0
    inner: "Record | None" = None


def test_a_record_is_built_from_the_types_of_json():
    inner = {"name": "b", "size": 2**63 - 1, "best": None}
    values = {"name": "a", "size": 0, "sizes": [1, 2], "steps": [3], "figures": {"x": 1}}
    assert math.isnan(from_table(Record, {**values, "loss": math.nan}).loss)
    assert from_table(Record, {**values, "inner": inner}) == Record(
        name="a",
        size=0,
        sizes=(1, 2),
        steps=(3,),
        figures={"x": 1.0},
        inner=Record(name="b", size=2**63 - 1),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "A"}, "name is 'A', but must be of the form [a-z]+"),
        ({"name": 3}, "name is 3, but must be of the form [a-z]+"),
        ({"size": -1}, f"size is -1, but must be from 0 to {2**63 - 1}"),
        ({"size": 2.0}, "size is 2.0, but must be a whole number"),
        ({"size": True}, "size is True, but must be a whole number"),
        ({"size": None}, "size is None, but must be a whole number"),
        ({"sizes": [1]}, "sizes is [1], but must be a list of 2"),
        ({"steps": [1, "2"]}, "steps[1] is '2', but must be a whole number"),
        ({"steps": 3}, "steps is 3, but must be a list"),
        ({"figures": []}, "figures is [], but must be a table"),
        ({"figures": {"x": "high"}}, "figures['x'] is 'high', but must be a number"),
        ({"figures": {"x": math.nan}}, "figures['x'] is nan, but must be a finite number"),
        ({"best": -math.inf}, "best is -inf, but must be a finite number"),
        ({"best": 10**400}, "best is 1000"),
        ({"loss": "nan"}, "loss is 'nan', but must be a number"),
        ({"inner": {"name": "b"}}, "inner: size is missing"),
        ({"inner": 3}, "inner is 3, but must be a table"),
        ({"sise": 3, "best": "no"}, "unknown key 'sise': did you mean size?; best is 'no', but"),
    ],
    ids=str,
)
def test_a_wrong_value_of_a_record_is_named_with_what_it_must_be(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_table(Record, {"name": "a", "size": 1} | change)
