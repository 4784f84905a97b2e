"""Every setting, once: its name, type, default, unit, limits and help.

Command-line flags, TOML keys and the record in a checkpoint all come from these dataclasses.
The defaults are the paper's base model and its training (Vaswani et al. 2017, §3 and §5).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from tfm.config.model import ModelConfig, TransformerConfig
from tfm.config.schema import Settings, Table, setting, settings_from
from tfm.errors import UsageError

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
Kernels = Literal["auto", "fast", "plain"]


def _threads() -> int | None:
    """Return the setting of threads, which all that computes shares."""
    return setting(
        None,
        "Threads on a CPU, of all processes; if unset OMP_NUM_THREADS, or one for each idle core.",
        at_least=1,
    )


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
        3_125,
        "Pairs of similar length go into a batch together by so many target tokens.",
        at_least=1,
    )
    max_tokens: int = setting(
        8_192,
        "A device takes a batch in microbatches of at most N tokens a side, with padding.",
        at_least=1,
    )
    num_dropout_shards: int = setting(
        1,
        "Make the number of microbatches a multiple of N, to reproduce the dropout of N processes.",
        at_least=1,
        at_most=65_536,
    )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """When to stop, validate and save, and on what to run."""

    section: ClassVar[str] = "training"

    max_steps: int = setting(100_000, "Stop after so many steps.", at_least=1)
    max_epochs: int | None = setting(None, "Stop after so many passes.", at_least=1)
    max_minutes: float | None = setting(
        None, "Stop after so many minutes of wall time, validation included.", at_least=0
    )
    patience: int | None = setting(
        None, "Stop after so many validations without a better best_metric.", at_least=1
    )
    seed: int = setting(
        1, "Seed of weights, data order and dropout.", at_least=0, at_most=2**63 - 1
    )
    checkpoint_minutes: float = setting(
        10.0, "Validate and save at this interval, in minutes.", at_least=0.01
    )
    checkpoint_steps: int | None = setting(
        None, "Validate and save at this interval, in steps, instead of minutes.", at_least=1
    )
    keep_last: int = setting(20, "Newest checkpoints to keep.", at_least=1)
    keep_best: int = setting(1, "Best checkpoints to keep beside them.", at_least=0)
    best_metric: Literal["loss", "score"] = setting(
        "score", "What makes a checkpoint the best: loss, or BLEU (bracket F1 of a parser)."
    )
    average_last: int = setting(
        5, "Checkpoints that `tfm average` takes if not told otherwise.", at_least=1
    )
    validation_beam: int = setting(
        1, "Beam for the score in validation; 0 leaves it out.", at_least=0, at_most=64
    )
    log_steps: int = setting(50, "Steps between two lines of metrics.jsonl.", at_least=1)
    background_saving: bool = setting(
        False, "Write checkpoints from a copy in memory while training goes on."
    )
    max_skipped_steps: int = setting(
        10,
        "Stop after so many steps in a row that were skipped, as loss or gradient was not finite.",
        at_least=1,
    )
    stall_minutes: float = setting(
        10.0, "Abort if any process makes no progress for N minutes.", at_least=0.01
    )
    shard: bool = setting(
        False,
        "Spread weights and optimizer state over processes (FSDP): for models too large for one.",
    )
    kernels: Kernels = setting(
        "auto",
        "Operations of the layers: fast ones, without padding, or plain; auto: fast on CPUs.",
    )
    device: DeviceName = setting("auto", "Where to compute.")
    precision: Precision = setting(
        "auto",
        "Of matrix products; auto is bf16 on GPUs and CPUs with AMX, fp16 on old GPUs, else fp32.",
    )
    threads: int | None = _threads()

    def _conflicts(self) -> Iterator[str]:
        if self.best_metric == "score" and not self.validation_beam:
            yield "best_metric is score, but validation_beam 0 leaves it out: set one of them"
        if self.average_last > self.keep_last:
            yield f"average_last {self.average_last} is more than keep_last {self.keep_last}"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of `tfm train`, in the sections of its TOML file."""

    arch: str = "base"
    model: ModelConfig = field(default_factory=TransformerConfig)
    optimizer: OptimizerConfig = OptimizerConfig()
    batching: BatchingConfig = BatchingConfig()
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Settings):
    """How outputs are searched for: beam search (§6.1), sampling or exact search."""

    section: ClassVar[str] = "search"
    # Settings that some searches have no use for, and those that have.
    _SEARCHES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "beam_size": ("beam", "exact"),
        "num_groups": ("beam",),
        "diversity_strength": ("beam",),
        "temperature": ("sample",),
        "top_k": ("sample",),
        "top_p": ("sample",),
        "seed": ("sample",),
        "node_limit": ("exact",),
    }

    search: Literal["beam", "sample", "exact"] = setting(
        "beam",
        "Keep the best at each step (beam), draw at random (sample), or prove the best (exact).",
    )
    beam_size: int = setting(
        4,
        "Hypotheses kept at each step; 1 is greedy. Exact search starts from what the beam finds.",
        flag="--beam",
        at_least=1,
        at_most=1024,
    )
    length_penalty: float = setting(
        0.6, "α of the GNMT length penalty; 0 compares plain log probabilities."
    )
    max_extra_length: int = setting(
        50, "Longest translation: source tokens and so many more.", at_least=1
    )
    n_best: int = setting(
        1, "Translations of each sentence, best first; of sampling, so many draws.", at_least=1
    )
    num_groups: int = setting(
        1, "Diverse beam search: groups of the beam that avoid each other's choices.", at_least=1
    )
    diversity_strength: float = setting(
        0.5,
        "Diverse beam search: nats that a token loses for each group that chose it before.",
        at_least=0,
    )
    temperature: float = setting(
        1.0, "Sampling: divides logits; below 1 likely tokens become likelier.", at_least=0.01
    )
    top_k: int | None = setting(
        None, "Sampling: draw from so many of the likeliest tokens; from all if unset.", at_least=1
    )
    top_p: float | None = setting(
        None,
        "Sampling: draw from the fewest tokens that have this probability together; from all if "
        "unset.",
        at_least=0,
        at_most=1,
    )
    seed: int = setting(1, "Seed of sampling.", at_least=0, at_most=2**63 - 1)
    node_limit: int = setting(
        10_000, "Exact search gives up after extending so many prefixes.", at_least=1
    )
    max_source_length: int = setting(
        1024, "Source tokens beyond this are cut off, with a warning.", at_least=1
    )
    max_tokens: int | None = setting(
        None,
        "Source tokens translated together, padding included; set by the width of the model if "
        "unset.",
        at_least=1,
    )

    @classmethod
    def for_model(cls, defaults: Table, given: Table) -> "SearchConfig":
        """Lay settings over a model's own defaults.

        Defaults that the given search has no use for are left out.

        Args:
            defaults: What suits the model, by name.
            given: What the user wants, by name.

        Raises:
            UsageError: A setting is unknown, impossible, or without effect on the search.
        """
        search = given.get("search", defaults.get("search", cls.search))
        if problems := list(cls._without_effect(search, given)):
            raise UsageError("; ".join(problems))
        useful = {n: v for n, v in defaults.items() if search in cls._SEARCHES.get(n, (search,))}
        return settings_from(cls, {**useful, **given})

    def _conflicts(self) -> Iterator[str]:
        changed = [item.name for item in fields(self) if getattr(self, item.name) != item.default]
        yield from self._without_effect(self.search, changed)
        if self.search != "sample" and self.n_best > self.beam_size:
            yield f"n_best {self.n_best} needs a beam of at least that size, not {self.beam_size}"
        if self.num_groups > 0 and self.beam_size % self.num_groups:
            yield f"num_groups {self.num_groups} does not divide a beam of {self.beam_size}"
        if self.num_groups == 1 and "diversity_strength" in changed:
            yield "diversity_strength has no effect on a single group: set num_groups too"

    @classmethod
    def _without_effect(cls, search: str, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            searches = cls._SEARCHES.get(name, (search,))
            if search not in searches:
                yield f"{name} has no effect on search {search}, only on {' and '.join(searches)}"


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(Settings):
    """Where a trained model is computed, and how."""

    section: ClassVar[str] = "inference"

    device: DeviceName = setting("auto", "Where to compute.")
    precision: InferencePrecision = setting(
        "auto",
        "Of matrix products; auto is bf16 or fp16 on GPUs, fp32 on CPUs; int8 is for CPUs, and "
        "depends on what is translated together.",
    )
    kernels: Kernels = setting(
        "auto",
        "Operations of the layers: fast ones, made for inference, or plain; auto: fast on CPUs.",
    )
    threads: int | None = _threads()


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
    """The subword model, learned by SentencePiece."""

    section: ClassVar[str] = "subword"

    vocab_size: int | None = setting(
        None,
        "Pieces of the vocabulary; chosen by the size of the text if unset.",
        at_least=8,
        at_most=1_000_000,
    )
    model_type: Literal["bpe", "unigram"] = setting("bpe", "How pieces are chosen.")
    separate: bool = setting(False, "One vocabulary a language instead of a joint one.")
    target_words: bool = setting(
        False, "Make each word of the target a piece, as suits symbols of trees; needs separate."
    )
    character_coverage: float = setting(
        0.9999, "Share of the text's characters with a piece of their own.", at_least=0.9, at_most=1
    )
    byte_fallback: bool = setting(
        True, "Spell other characters in bytes, so that nothing is ever unknown."
    )
    sample_sentences: int = setting(
        5_000_000,
        "Learn from a random sample of so many lines; a million takes about 0.6 GB of memory.",
        at_least=101,
        at_most=1_000_000_000,
    )
    num_threads: int | None = setting(
        None, "Threads to learn with; one for each core if unset.", at_least=1, at_most=1024
    )

    def _conflicts(self) -> Iterator[str]:
        if self.target_words and not self.separate:
            yield "target_words has no effect on a joint vocabulary: set separate too"


@dataclass(frozen=True, kw_only=True)
class BinarizeConfig(Settings):
    """Text to token ids."""

    section: ClassVar[str] = "binarize"

    max_length: int = setting(
        250, "Drop training pairs with a longer side, in subword tokens.", at_least=1
    )
    jobs: int = setting(0, "Threads to work with; 0 takes all cores.", at_least=0, at_most=1024)


@dataclass(frozen=True, kw_only=True)
class AverageConfig(Settings):
    """Which checkpoints to average (§6.1)."""

    section: ClassVar[str] = "average"

    last: int | None = setting(
        None, "Average the newest N; the run's average_last if unset.", at_least=1
    )
    best: int | None = setting(None, "Average the N best by the run's metric.", at_least=1)

    def _conflicts(self) -> Iterator[str]:
        if self.last is not None and self.best is not None:
            yield "last and best exclude each other: give one"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(Settings):
    """How metrics are computed; the defaults are those of sacreBLEU, and of the paper's BLEU."""

    section: ClassVar[str] = "score"

    lowercase: bool = setting(False, "Ignore case; TER always does.")
    tokenize: Literal["13a", "intl", "zh", "char", "none"] = setting(
        "13a", "BLEU's tokenizer; other than 13a, or zh for Chinese, compares with few papers."
    )
    chrf_word_order: int = setting(
        0, "Longest word n-gram of chrF; 2 is chrF++.", at_least=0, at_most=4
    )
    normalize_punctuation: bool = setting(
        True, "With --paper: make quotation marks and dashes plain first, as Moses does."
    )
    split_compounds: Literal["auto", "yes", "no"] = setting(
        "auto", "With --paper: count a-b as three words; auto does so for German."
    )
    bootstrap_samples: int = setting(
        1000, "Samples of the paired bootstrap test against a baseline.", at_least=1
    )
    bootstrap_seed: int = setting(12_345, "Seed of the paired bootstrap test.", at_least=1)
