"""The settings of training: defaults, units, limits and help.

The defaults are the paper's base model and its training (Vaswani et al. 2017, §3 and §5).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from tfm.config.imported import NAMED
from tfm.config.model import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.config.schema import (
    MAX_COUNT,
    MAX_MINUTES,
    MAX_SEED,
    MAX_THREADS,
    THREADS_HELP,
    Problem,
    Settings,
    count,
    setting,
)
from tfm.errors import refuse

Task = Literal["translation", "parsing"]
DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Kernels = Literal["auto", "plain"]
ModelPart = Literal["encoder", "decoder", "embeddings"]
# Tokenizers of sacreBLEU; "auto" chooses one of the first three by the language.
BleuTokenizer = Literal[
    "13a", "zh", "char", "intl", "ja-mecab", "ko-mecab", "flores101", "flores200", "none"
]
TokenizerChoice = Literal["auto", BleuTokenizer]

_SET_NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of a further validation set
BestMetric = Annotated[
    str,
    re.compile(rf"({_SET_NAME}:)?(loss|score|command)"),
    "loss, score or command, or NAME:loss and the like",
]
Schedule = Annotated[
    str,
    re.compile(rf"inverse-sqrt|linear|cosine|constant|{NAMED.pattern}"),
    "inverse-sqrt, linear, cosine, constant or MODULE:NAME",
]
Loss = Annotated[str, re.compile(rf"cross-entropy|{NAMED.pattern}"), "cross-entropy or MODULE:NAME"]
Command = Annotated[
    str, re.compile(r"[^\n\0]*[^\s\0][^\n\0]*"), "a program with its arguments, on one line"
]
License = Annotated[
    str,
    re.compile(r"\w[\w.+:()/ -]{0,99}"),
    "1 to 100 letters, digits, spaces and +-_.:()/, such as CC-BY-4.0",
]
AlsoValid = Annotated[
    str,
    re.compile(rf"{_SET_NAME}=.+"),
    "NAME=DATA, such as general=data/general, with a NAME of letters, digits, _ and -",
]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings, section="optimizer"):
    """Adam, the learning rate schedule (§5.3), averaging of weights and the loss (§5.4)."""

    learning_rate: float | None = setting(
        None,
        "Peak learning rate; if unset, (d_model · warmup_steps)^-0.5 (§5.3).",
        limits=(0, 1000),
        common=True,
    )
    warmup_steps: int = count(4000, "Number of linear warmup steps.")
    lr_schedule: Schedule = setting(
        "inverse-sqrt",
        "Learning rate after warmup; linear and cosine end at 0; MODULE:NAME is your function.",
        metavar="inverse-sqrt|linear|cosine|constant|MODULE:NAME",
    )
    algorithm: Literal["adam", "adamw"] = setting(
        "adam", "Adam (§5.3), or AdamW, which decays weights.", flag="--optimizer"
    )
    weight_decay: float | None = setting(
        None,
        "AdamW: decay of matrices, as a multiple of the learning rate; 0.01 if unset.",
        limits=(0, 10),
        only={"algorithm": ("adamw",)},
    )
    adam_beta1: float = setting(0.9, "Adam's β1.", limits=(0, 0.9999))
    adam_beta2: float = setting(0.98, "Adam's β2.", limits=(0, 0.99999))
    adam_epsilon: float = setting(1e-9, "Adam's ε.", limits=(1e-20, 1))
    loss: Loss = setting(
        "cross-entropy",
        "Loss of a target token, with label smoothing (§5.4); MODULE:NAME is your function.",
        metavar="cross-entropy|MODULE:NAME",
    )
    label_smoothing: float = setting(
        0.1,
        "Probability spread over all tokens but the correct one.",
        limits=(0, 0.9),
        only={"loss": ("cross-entropy",)},
    )
    clip_norm: float = setting(
        0.0,
        "Clip gradients to this norm; 0 turns clipping off, as in the paper.",
        limits=(0, 1_000_000),
    )
    ema: float | None = setting(
        None,
        "Validate and save a moving average of the weights with this decay, such as 0.999.",
        limits=(0, 0.999999),
    )
    freeze: tuple[ModelPart, ...] = setting(
        (),
        "With --from: keep a part unchanged; embeddings include the output matrix; repeatable.",
        metavar="encoder|decoder|embeddings",
        needs=("--from",),
    )

    def _contradictions(self) -> Iterator[Problem]:
        if set(self.freeze) == set(get_args(ModelPart)):
            text = "freeze has all parts of the model, so that nothing is trained: leave one out"
            yield Problem("freeze", text)

    def named(self) -> dict[str, str]:
        """Return the settings that name code of the user."""
        settings = {"lr_schedule": self.lr_schedule, "loss": self.loss}
        return {setting: name for setting, name in settings.items() if ":" in name}

    @property
    def depends_on_max_steps(self) -> bool:
        """Whether the learning rate falls to 0 at the last step."""
        return self.lr_schedule in ("linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class BatchingConfig(Settings, section="batching"):
    """Batches of sentence pairs of similar length (§5.1)."""

    batch_tokens: int = count(
        25_000,
        "Target tokens per step, summed over all devices and their microbatches.",
        common=True,
    )
    bucket_tokens: int = count(
        3_125,
        "Cut pairs sorted by length into buckets of about N target tokens; batches join some.",
    )
    max_tokens: int | None = count(
        None,
        "Maximum tokens per side of a microbatch, with padding unless packed; by device if unset.",
    )
    num_dropout_shards: int = count(
        1, "Draw the dropout masks of a run on N processes, to reproduce it on fewer.", most=65_536
    )


def _share(help_text: str) -> float:
    """Declare the share of the pairs to change in some way, whose targets must be text."""
    only = {"task": ("translation",)}
    return setting(0.0, f"Share of the pairs to {help_text}", limits=(0, 1), only=only)


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig(Settings, section="augmentation"):
    """Random changes of the training pairs, drawn anew in each epoch, in this order."""

    unpunctuated_share: float = _share("write without final punctuation.")
    typo_share: float = _share("put typos into the source of.")
    title_share: float = _share("write in title case.")
    upper_share: float = _share("write in capitals.")
    bpe_dropout: float = setting(
        0.0,
        "Leave out each merge of BPE with this probability (Provilkov et al. 2020).",
        limits=(0, 0.9),
    )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings, section="training"):
    """When to stop, validate and save; devices and arithmetic."""

    max_steps: int = count(100_000, "Stop after N steps.", common=True)
    max_epochs: int | None = count(None, "Stop after N epochs.")
    max_minutes: float | None = setting(
        None,
        "Stop after X minutes of wall time, validation included.",
        limits=(0.01, MAX_MINUTES),
        common=True,
    )
    patience: int | None = count(
        None,
        "Stop after N validations in a row without improvement in best_metric.",
        needs=("validation text",),
    )
    seed: int = setting(
        1,
        "Random seed of initial weights, data order and dropout.",
        limits=(0, MAX_SEED),
        common=True,
    )
    checkpoint_minutes: float = setting(
        10.0,
        "Validate and save a checkpoint every X minutes; replaces a preset's checkpoint_steps.",
        limits=(0.01, MAX_MINUTES),
        excludes=("checkpoint_steps",),
    )
    checkpoint_steps: int | None = count(
        None, "Validate and save every N steps, instead of every N minutes."
    )
    keep_last: int = count(
        20, "Number of newest checkpoints to keep, of the validated ones if there are any."
    )
    keep_best: int = setting(
        1, "Number of best checkpoints to keep besides the newest.", limits=(0, MAX_COUNT)
    )
    best_metric: BestMetric = setting(
        "score",
        "Rank checkpoints by validation loss, score (BLEU, F1; once above 1), "
        "metric_command or NAME:score.",
        metavar="[NAME:]loss|score|command",
    )
    also_valid: tuple[AlsoValid, ...] = setting(
        (),
        "Also validate on another dataset, NAME=DATA, to see what is forgotten; repeatable.",
        metavar="NAME=DATA",
        needs=("validation text",),
    )
    average_last: int = count(
        5, "Average at most N of the newest checkpoints, all from the last fifth of the steps."
    )
    average: bool = setting(
        True,
        "Average the newest checkpoints when training ends, as `tfm average` does; not with ema.",
    )
    validation_beam: int = setting(
        1, "Beam size for the validation score; 0 computes no score.", limits=(0, 64)
    )
    validation_samples: int = setting(
        3,
        "Record the translations of N sentences at each validation, for report.html.",
        limits=(0, 100),
        needs=("validation_beam",),
    )
    validation_tokenize: TokenizerChoice = setting(
        "auto",
        "Tokenizer of BLEU in validation; auto depends on the target language.",
        needs=("validation_beam",),
        only={"task": ("translation",)},
    )
    metric_command: Command | None = setting(
        None,
        "Also validate by a program, which reads source, output, reference "
        "(TSV) and prints a number.",
        metavar="COMMAND",
        needs=("validation_beam",),
    )
    log_steps: int = count(50, "Write a line to metrics.jsonl every N steps.")
    tensorboard: bool = setting(
        False, "Write event files for TensorBoard into the run folder, too (tensorboardX)."
    )
    license: License | None = setting(
        None, "License of the model, such as CC-BY-4.0, to record in its folders.", metavar="NAME"
    )
    background_saving: bool = setting(
        False, "Write checkpoints in the background, from a copy in memory."
    )
    verify_data: bool = setting(
        False, "Verify all training data before the first step, also beyond 10 million pairs."
    )
    max_skipped_steps: int = count(
        10,
        "Stop after N skipped steps in a row; a loss or gradient that is not finite skips a step.",
    )
    stall_minutes: float = setting(
        10.0, "Abort if any process makes no progress for X minutes.", limits=(0.01, MAX_MINUTES)
    )
    shard: bool = setting(
        False,
        "Shard weights and optimizer state over processes (FSDP), for models too large for one.",
        needs=("several processes",),
    )
    kernels: Kernels = setting(
        "auto",
        "Implementation of layers: the fastest for the device (auto), or torch's own (plain).",
    )
    compile: bool = setting(
        True,
        "On a GPU with --kernels auto, compile the layers: slow first steps, faster later steps.",
    )
    device: DeviceName = setting("auto", "Device to compute on; auto is a GPU if there is one.")
    precision: Precision = setting(
        "auto",
        "Matrix product precision; auto: bf16 if the device has it, fp16 on old GPUs, else fp32.",
    )
    threads: int | None = count(None, THREADS_HELP, most=MAX_THREADS)

    def _contradictions(self) -> Iterator[Problem]:
        if self.best_metric.endswith(("score", "command")) and not self.validation_beam:
            yield Problem(
                "best_metric",
                f"best_metric is {self.best_metric}, but validation_beam 0 computes none: "
                "raise validation_beam, or set best_metric to loss",
            )
        if self.best_metric.endswith("command") and self.metric_command is None:
            yield Problem("best_metric", f"best_metric is {self.best_metric}: add --metric-command")
        names = [each.partition("=")[0] for each in self.also_valid]
        yield from (
            Problem("also_valid", f"also_valid has two sets of the name {name}: rename one")
            for name in sorted({name for name in names if names.count(name) > 1})
        )
        set_name, colon, _ = self.best_metric.rpartition(":")
        if colon and set_name not in names:
            yield Problem(
                "best_metric",
                f"best_metric is {self.best_metric}, but also_valid has no set {set_name}: add "
                f"--also-valid {set_name}=DATA",
            )
        if self.average_last > self.keep_last:
            yield Problem(
                "average_last",
                f"average_last is {self.average_last}, but only keep_last {self.keep_last} "
                "checkpoints are kept: raise keep_last",
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of `tfm train`, one field per section of its TOML file."""

    arch: str = "base"
    from_model: str | None = None  # folder of the model that training starts from
    model: ModelConfig = field(default_factory=TransformerConfig)
    optimizer: OptimizerConfig = OptimizerConfig()
    batching: BatchingConfig = BatchingConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    training: TrainingConfig = TrainingConfig()

    def problems(self, last_step: int | None = None) -> Iterator[str]:
        """Yield a message for each conflict between settings of different groups."""
        warmup_steps, last_step = self.optimizer.warmup_steps, last_step or self.training.max_steps
        if self.optimizer.depends_on_max_steps and warmup_steps > last_step:
            yield (
                f"warmup_steps is {warmup_steps}, but must be at most {last_step}, the last step, "
                f"at which lr_schedule {self.optimizer.lr_schedule} ends"
            )
        if ":" in self.optimizer.loss and getattr(self.model, "source_attention", "") == "hard":
            yield "loss is your function, but source_attention hard needs cross-entropy"

    def last_step(self, steps_per_epoch: int) -> int:
        """Return the step at which a run ends, unless time or patience ends it before.

        Raises UsageError if its schedule would end before its warmup.
        """
        max_steps, max_epochs = self.training.max_steps, self.training.max_epochs
        last = max_steps if max_epochs is None else min(max_steps, max_epochs * steps_per_epoch)
        refuse(self.problems(last))
        return last


# The groups of settings of a run, for both kinds of models.
RUN_SETTINGS = (
    *(TransformerConfig, RecurrentConfig),
    *(OptimizerConfig, BatchingConfig, AugmentationConfig, TrainingConfig),
)
