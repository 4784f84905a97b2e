"""Every setting, once: its name, type, default, unit, limits and help.

Command-line flags, TOML keys and the record in a checkpoint all come from the dataclasses below.
The defaults are the paper's base model and its training (Vaswani et al. 2017, §3 and §5).
"""

import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from tfm.errors import UsageError

if typing.TYPE_CHECKING:
    import tomllib
else:
    try:
        import tomllib
    except ModuleNotFoundError:
        import tomli as tomllib

T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound="Settings")

Table = Mapping[str, Any]

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]


def setting(
    default: T,
    help_text: str,
    *,
    flag: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> T:
    """Declare one setting.

    Args:
        default: The value where nobody says otherwise.
        help_text: One line for the help; the unit in it.
        flag: The command-line flag, where it is not the name with dashes.
        at_least: Smallest value allowed.
        at_most: Largest value allowed.
    """
    metadata = {"help": help_text, "flag": flag, "at_least": at_least, "at_most": at_most}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all groups of settings share: checking their values."""

    section: ClassVar[str] = ""

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        for item in fields(self):
            value = getattr(self, item.name)
            low, high = item.metadata["at_least"], item.metadata["at_most"]
            if value is None or isinstance(value, str):
                continue
            if low is not None and value < low:
                yield f"{item.name} is {value}, but must be at least {low}"
            if high is not None and value > high:
                yield f"{item.name} is {value}, but must be at most {high}"


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Settings):
    """The model (§3)."""

    section: ClassVar[str] = "model"

    num_encoder_layers: int = setting(6, "Layers of the encoder.", at_least=1)
    num_decoder_layers: int = setting(6, "Layers of the decoder.", at_least=1)
    d_model: int = setting(512, "Width of embeddings and layer outputs.", at_least=2)
    d_ff: int = setting(2048, "Inner width of the feed-forward sub-layers.", at_least=1)
    num_heads: int = setting(8, "Attention heads.", at_least=1)
    d_k: int | None = setting(
        None, "Width of a head's queries and keys; d_model / num_heads if unset.", at_least=1
    )
    d_v: int | None = setting(
        None, "Width of a head's values; d_model / num_heads if unset.", at_least=1
    )
    dropout: float = setting(0.1, "Dropout on each sub-layer's output.", at_least=0, at_most=0.9)
    embedding_dropout: float = setting(
        0.1, "Dropout on sums of embedding and position.", at_least=0, at_most=0.9
    )
    attention_dropout: float = setting(
        0.1, "Dropout on attention weights.", at_least=0, at_most=0.9
    )
    relu_dropout: float = setting(0.0, "Dropout after the ReLU.", at_least=0, at_most=0.9)
    norm: Literal["post", "pre"] = setting(
        "post", "Layer normalisation after the residual sum (post, the paper's) or before."
    )
    tied_embeddings: Literal["three-way", "two-way", "none"] = setting(
        "three-way",
        "Share source, target and output embeddings; only target and output; or none.",
    )

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        yield from super().problems()
        if self.d_model % 2:
            yield f"d_model is {self.d_model}, but sinusoids need an even width"
        if self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            yield (
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}: "
                "set d_k and d_v, or another number of heads"
            )

    @property
    def key_width(self) -> int:
        """d_k: width of one head's queries and keys."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v: width of one head's values."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """Adam, its schedule (§5.3) and the loss (§5.4)."""

    section: ClassVar[str] = "optimizer"

    learning_rate: float | None = setting(
        None, "Peak learning rate; (d_model · warmup_steps)^-0.5 (§5.3) if unset.", at_least=0
    )
    warmup_steps: int = setting(4000, "Steps of linear warm-up.", at_least=1)
    adam_beta1: float = setting(0.9, "Adam's β1.", at_least=0, at_most=0.9999)
    adam_beta2: float = setting(0.98, "Adam's β2.", at_least=0, at_most=0.99999)
    adam_epsilon: float = setting(1e-9, "Adam's ε.", at_least=0)
    label_smoothing: float = setting(
        0.1, "Probability given to all other classes together.", at_least=0, at_most=0.9
    )
    clip_norm: float = setting(
        0.0, "Largest gradient norm; 0 never clips, as in the paper.", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class BatchingConfig(Settings):
    """Batches by approximate length (§5.1)."""

    section: ClassVar[str] = "batching"

    batch_tokens: int = setting(
        25_000, "Target tokens of one step, over all devices and accumulation.", at_least=1
    )
    bucket_tokens: int = setting(
        3_125, "Target tokens of similar length that go into a batch together.", at_least=1
    )
    max_tokens: int = setting(
        8_192, "Tokens a side, with padding, that a device takes at once.", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """When to stop, validate and save, and on what to run."""

    section: ClassVar[str] = "training"

    max_steps: int = setting(100_000, "Stop after so many steps.", at_least=1)
    max_epochs: int | None = setting(None, "Stop after so many passes.", at_least=1)
    max_minutes: float | None = setting(None, "Stop after so many minutes of training.", at_least=0)
    patience: int | None = setting(
        None, "Stop after so many validations without a better best_metric.", at_least=1
    )
    seed: int = setting(1, "Seed of weights, data order and dropout.", at_least=0)
    checkpoint_minutes: float = setting(
        10.0, "Validate and save at this interval, in minutes.", at_least=0.01
    )
    checkpoint_steps: int | None = setting(
        None, "Validate and save at this interval, in steps, instead of minutes.", at_least=1
    )
    keep_last: int = setting(20, "Newest checkpoints to keep.", at_least=1)
    keep_best: int = setting(1, "Best checkpoints to keep beside them.", at_least=0)
    best_metric: Literal["loss", "bleu"] = setting("bleu", "What makes a checkpoint the best.")
    average_last: int = setting(
        5, "Checkpoints that `tfm average` takes if not told otherwise.", at_least=1
    )
    validation_beam: int = setting(
        1, "Beam for BLEU in validation; 0 leaves BLEU out.", at_least=0, at_most=64
    )
    log_steps: int = setting(50, "Steps between two lines of metrics.jsonl.", at_least=1)
    device: DeviceName = setting("auto", "Where to compute.")
    precision: Precision = setting(
        "auto", "Arithmetic of matrix products; auto is bf16 on GPUs that have it, else fp32."
    )

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        yield from super().problems()
        if self.best_metric == "bleu" and not self.validation_beam:
            yield "best_metric is bleu, but validation_beam 0 leaves BLEU out: set one of them"
        if self.average_last > self.keep_last:
            yield f"average_last {self.average_last} is more than keep_last {self.keep_last}"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of `tfm train`, in the sections of its TOML file."""

    arch: str = "base"
    model: TransformerConfig = TransformerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batching: BatchingConfig = BatchingConfig()
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Settings):
    """Beam search (§6.1)."""

    section: ClassVar[str] = "search"

    beam_size: int = setting(
        4, "Hypotheses kept at each step; 1 is greedy.", flag="--beam", at_least=1, at_most=1024
    )
    length_penalty: float = setting(
        0.6, "α of the GNMT length penalty; 0 compares plain log probabilities."
    )
    max_extra_length: int = setting(
        50, "Longest translation: source tokens and so many more.", at_least=1
    )
    n_best: int = setting(1, "Translations to print for each sentence.", at_least=1)
    max_source_length: int = setting(
        1024, "Source tokens beyond this are cut off, with a warning.", at_least=1
    )
    max_tokens: int = setting(
        4_096, "Source tokens, with padding, that are translated together.", at_least=1
    )

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        yield from super().problems()
        if self.n_best > self.beam_size:
            yield f"n_best {self.n_best} needs a beam of at least that size, not {self.beam_size}"


@dataclass(frozen=True, kw_only=True)
class CleaningConfig(Settings):
    """Rules for training text; validation and test text are never cleaned."""

    section: ClassVar[str] = "cleaning"

    normalize_space: bool = setting(
        True, "Make line separators, tabs and all kinds of space one space; drop controls."
    )
    drop_empty: bool = setting(True, "Drop pairs with an empty side.")
    max_characters: int = setting(
        1_000, "Drop pairs with a longer side, in characters; 0 keeps them.", at_least=0
    )
    max_length_ratio: float = setting(
        4.0,
        "Drop pairs with one side so many times longer, counting 10 characters extra; 0 keeps.",
        at_least=0,
    )
    drop_duplicates: bool = setting(True, "Drop all but the first of equal pairs.")
    drop_copies: bool = setting(True, "Drop pairs whose sides are the same text.")


@dataclass(frozen=True, kw_only=True)
class SubwordConfig(Settings):
    """The subword model, learnt by SentencePiece."""

    section: ClassVar[str] = "subword"

    vocab_size: int | None = setting(
        None, "Pieces of the vocabulary; chosen by the size of the text if unset.", at_least=8
    )
    model_type: Literal["bpe", "unigram"] = setting("bpe", "How pieces are chosen.")
    separate: bool = setting(False, "One vocabulary a language instead of a joint one.")
    character_coverage: float = setting(
        0.9999, "Share of the text's characters with a piece of their own.", at_least=0.9, at_most=1
    )
    byte_fallback: bool = setting(
        True, "Spell other characters in bytes, so that nothing is ever unknown."
    )
    sample_sentences: int = setting(
        10_000_000, "Learn from a random sample of so many lines.", at_least=1
    )
    num_threads: int = setting(0, "Threads to learn with; 0 takes all cores.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class BinarizeConfig(Settings):
    """Text to token ids."""

    section: ClassVar[str] = "binarize"

    max_length: int = setting(
        250, "Drop training pairs with a longer side, in subword tokens.", at_least=1
    )
    jobs: int = setting(0, "Processes; 0 takes all cores.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class AverageConfig(Settings):
    """Which checkpoints to average (§6.1)."""

    section: ClassVar[str] = "average"

    last: int | None = setting(
        None, "Average the newest N; the run's average_last if unset.", at_least=1
    )
    best: int | None = setting(None, "Average the N best by the run's metric.", at_least=1)

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        yield from super().problems()
        if self.last is not None and self.best is not None:
            yield "last and best exclude each other: give one"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(Settings):
    """Metrics, computed by sacreBLEU; the defaults are its own."""

    section: ClassVar[str] = "score"

    lowercase: bool = setting(False, "Ignore case; TER always does.")
    tokenize: Literal["13a", "intl", "zh", "char", "none"] = setting(
        "13a", "BLEU's tokenizer; other than 13a, or zh for Chinese, compares with few papers."
    )
    chrf_word_order: int = setting(
        0, "Longest word n-gram of chrF; 2 is chrF++.", at_least=0, at_most=4
    )
    bootstrap_samples: int = setting(
        1000, "Samples of the paired bootstrap test against a baseline.", at_least=1
    )
    bootstrap_seed: int = setting(12_345, "Seed of the paired bootstrap test.", at_least=1)


PRESETS: Mapping[str, Mapping[str, Table]] = {
    "base": {},
    "big": {
        "model": {
            "d_model": 1024,
            "d_ff": 4096,
            "num_heads": 16,
            "dropout": 0.3,
            "embedding_dropout": 0.3,
        },
        "training": {"max_steps": 300_000, "average_last": 20},
    },
    "tiny": {
        "model": {
            "num_encoder_layers": 3,
            "num_decoder_layers": 3,
            "d_model": 256,
            "d_ff": 512,
            "num_heads": 4,
            "attention_dropout": 0.0,
        },
        "optimizer": {"learning_rate": 1.5e-3, "warmup_steps": 400},
        "batching": {"batch_tokens": 1_024, "bucket_tokens": 1_024},
        "training": {"max_steps": 2_520, "checkpoint_steps": 210},
    },
    "quickstart": {
        "model": {
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "d_model": 128,
            "d_ff": 512,
            "num_heads": 4,
            "attention_dropout": 0.0,
        },
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 600},
        "batching": {"batch_tokens": 1_000, "bucket_tokens": 1_000},
        "training": {"max_steps": 2_400, "checkpoint_steps": 300},
    },
}


def run_config(arch: str | None, *tables: Table) -> RunConfig:
    """Lay tables of settings over a preset.

    Args:
        arch: Name of the preset; if None, that of the last table with an "arch" key, else base.
        tables: {section: {name: value}}, each laid over the ones before it.

    Raises:
        UsageError: Unknown names or impossible values, all of them in one message.
    """
    for table in tables:
        arch = arch if arch is not None else table.get("arch")
    arch = "base" if arch is None else arch
    if arch not in PRESETS:
        raise UsageError(f'there is no arch "{arch}": choose one of {", ".join(PRESETS)}')
    merged: dict[str, dict[str, Any]] = {}
    sections = {item.name: item for item in fields(RunConfig) if item.name != "arch"}
    for table in (PRESETS[arch], *tables):
        for name, values in table.items():
            if name == "arch":
                continue
            if name not in sections or not isinstance(values, Mapping):
                raise UsageError(f"unknown section [{name}]: sections are {', '.join(sections)}")
            merged.setdefault(name, {}).update(values)
    groups = {
        name: settings_from(typing.get_type_hints(RunConfig)[name], merged.get(name, {}))
        for name in sections
    }
    return RunConfig(arch=arch, **groups)


def settings_from(kind: type[ConfigT], table: Table) -> ConfigT:
    """Build one group of settings from a table.

    Raises:
        UsageError: Unknown names, values of another type or beyond their limits, all together.
    """
    hints = typing.get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    problems = [
        f"unknown setting {name!r} in [{kind.section}]: it has {', '.join(known)}"
        for name in table
        if name not in known
    ]
    values: dict[str, Any] = {}
    for name in known:
        if name not in table:
            continue
        try:
            values[name] = _converted(table[name], hints[name])
        except TypeError as error:
            problems.append(f"{kind.section}.{name} {error}")
    settings = kind(**values)
    problems.extend(settings.problems())
    if problems:
        raise UsageError("; ".join(problems))
    return settings


def settings_to(settings: Settings) -> dict[str, Any]:
    """The table from which `settings_from` builds the same settings; unset ones are left out."""
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def run_table(run: RunConfig) -> dict[str, Any]:
    """The table from which `run_config` builds the same run."""
    groups = ((item.name, getattr(run, item.name)) for item in fields(run))
    return {name: settings_to(g) if isinstance(g, Settings) else g for name, g in groups}


def run_toml(run: RunConfig) -> str:
    """All settings of a run as a TOML file, each with its help."""
    lines = [f'arch = "{run.arch}"']
    for item in fields(run):
        group = getattr(run, item.name)
        if isinstance(group, Settings):
            lines += ["", f"[{item.name}]", *(_toml_line(f, group) for f in fields(group))]
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UsageError: It is not there or not TOML; the message says where it breaks.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from error


def _toml_line(item: Field[Any], group: Settings) -> str:
    value = getattr(group, item.name)
    assignment = f"# {item.name} =" if value is None else f"{item.name} = {json.dumps(value)}"
    return f"{assignment:<36} # {item.metadata['help']}"


def _converted(value: Any, hint: Any) -> Any:
    """A TOML value as the type of its setting."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise TypeError(f"is {value!r}, but must be one of {', '.join(typing.get_args(hint))}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise TypeError(f"is {value!r}, but must be of type {hint.__name__}")
