"""All settings with their defaults, units, limits and help.

Command-line flags, TOML keys and the settings in checkpoints are generated from these dataclasses.
The defaults are the paper's base model and its training (Vaswani et al. 2017, §3 and §5).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal, get_args

from tfm.config.model import ModelConfig, RecurrentConfig, TransformerConfig
from tfm.config.schema import Settings, Table, setting, settings_from, shown
from tfm.errors import UsageError

Task = Literal["translation", "parsing"]
DeviceName = Literal["auto", "cpu", "cuda"]
InferenceDevice = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
Kernels = Literal["auto", "plain"]
ModelPart = Literal["encoder", "decoder", "embeddings"]

_SET_NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of a further validation set
BestMetric = Annotated[str, re.compile(rf"({_SET_NAME}:)?(loss|score)")]
AlsoValid = Annotated[str, re.compile(rf"{_SET_NAME}=.+")]

_THREADS = "Total number of CPU threads; if unset, OMP_NUM_THREADS or one per idle core."

# Every number has limits far beyond its useful values, so that a mistyped one is refused at once
# instead of exhausting memory or overflowing.
_MAX_COUNT = 1_000_000_000  # steps, epochs, tokens and the like
_MAX_LENGTH = 10_000  # tokens of a sentence; attention needs memory for its square
_MAX_MINUTES = 10 * 366 * 24 * 60  # ten years
_MAX_THREADS = 1024
_MAX_SEED = 2**63 - 1

_TAG = re.compile(r"<[A-Za-z0-9_-]{1,30}>")
_RESERVED_PIECES = re.compile(r"<(pad|s|unk|0x..)>")  # of SentencePiece


def tag_problem(tag: str) -> str | None:
    """Return why text cannot be a tag before source sentences, after its name; None if it can."""
    if not _TAG.fullmatch(tag):
        return f"is {shown(tag)}, but must be a name in angle brackets, such as <bt>"
    if _RESERVED_PIECES.fullmatch(tag):
        return f"is {tag}, but must not be a piece that every vocabulary has"
    return None


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings, section="optimizer"):
    """Adam, the learning rate schedule (§5.3), averaging of weights and the loss (§5.4)."""

    learning_rate: float | None = setting(
        None,
        "Peak learning rate; if unset, (d_model · warmup_steps)^-0.5 (§5.3).",
        ge=0,
        le=1000,
        common=True,
    )
    warmup_steps: int = setting(4000, "Number of linear warmup steps.", ge=1, le=_MAX_COUNT)
    lr_schedule: Literal["inverse-sqrt", "linear", "cosine", "constant"] = setting(
        "inverse-sqrt",
        "Learning rate after warmup; linear and cosine fall to 0 at max_steps, then fixed.",
    )
    algorithm: Literal["adam", "adamw"] = setting(
        "adam", "Adam (§5.3), or AdamW, which decays weights.", flag="--optimizer"
    )
    weight_decay: float | None = setting(
        None,
        "AdamW: decay of matrices, as a multiple of the learning rate; 0.01 if unset.",
        ge=0,
        le=10,
    )
    adam_beta1: float = setting(0.9, "Adam's β1.", ge=0, le=0.9999)
    adam_beta2: float = setting(0.98, "Adam's β2.", ge=0, le=0.99999)
    adam_epsilon: float = setting(1e-9, "Adam's ε.", ge=1e-20, le=1)
    label_smoothing: float = setting(
        0.1, "Probability spread over all tokens but the correct one.", ge=0, le=0.9
    )
    clip_norm: float = setting(
        0.0,
        "Clip gradients to this norm; 0 turns clipping off, as in the paper.",
        ge=0,
        le=1_000_000,
    )
    ema: float | None = setting(
        None,
        "Validate and save a moving average of the weights with this decay, such as 0.999.",
        ge=0,
        le=0.999999,
    )
    freeze: tuple[ModelPart, ...] = setting(
        (),
        "With --from: keep a part unchanged; embeddings include the output matrix; repeatable.",
        metavar="encoder|decoder|embeddings",
    )

    def _conflicts(self) -> Iterator[str]:
        if self.weight_decay is not None and self.algorithm == "adam":
            yield "weight_decay has no effect on adam: leave it out, or use adamw"
        if set(self.freeze) == set(get_args(ModelPart)):
            yield "freeze has all parts of the model, so that nothing is trained: leave one out"

    @property
    def depends_on_max_steps(self) -> bool:
        """Whether the learning rate falls to 0 at max_steps."""
        return self.lr_schedule in ("linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class BatchingConfig(Settings, section="batching"):
    """Batches of sentence pairs of similar length (§5.1)."""

    batch_tokens: int = setting(
        25_000,
        "Target tokens per step, summed over all devices and their microbatches.",
        ge=1,
        le=_MAX_COUNT,
        common=True,
    )
    bucket_tokens: int = setting(
        3_125,
        "Cut pairs sorted by length into buckets of N target tokens; a batch joins random buckets.",
        ge=1,
        le=_MAX_COUNT,
    )
    max_tokens: int | None = setting(
        None,
        "Most source or target tokens per microbatch; if unset, 8,192 on CPUs, more on GPUs.",
        ge=1,
        le=_MAX_COUNT,
    )
    num_dropout_shards: int = setting(
        1,
        "Draw the dropout masks of a run on N processes, to reproduce it on fewer.",
        ge=1,
        le=65_536,
    )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings, section="training"):
    """When to stop, validate and save; devices and arithmetic."""

    max_steps: int = setting(100_000, "Stop after N steps.", ge=1, le=_MAX_COUNT, common=True)
    max_epochs: int | None = setting(None, "Stop after N epochs.", ge=1, le=_MAX_COUNT)
    max_minutes: float | None = setting(
        None,
        "Stop after N minutes of wall time, validation included.",
        ge=0.01,
        le=_MAX_MINUTES,
        common=True,
    )
    patience: int | None = setting(
        None,
        "Stop after N validations in a row without improvement in best_metric.",
        ge=1,
        le=_MAX_COUNT,
    )
    seed: int = setting(
        1,
        "Random seed of initial weights, data order and dropout.",
        ge=0,
        le=_MAX_SEED,
        common=True,
    )
    checkpoint_minutes: float = setting(
        10.0,
        "Validate and save a checkpoint every N minutes; replaces checkpoint_steps of a preset.",
        ge=0.01,
        le=_MAX_MINUTES,
    )
    checkpoint_steps: int | None = setting(
        None, "Validate and save every N steps, instead of every N minutes.", ge=1, le=_MAX_COUNT
    )
    keep_last: int = setting(20, "Number of newest checkpoints to keep.", ge=1, le=_MAX_COUNT)
    keep_best: int = setting(
        1, "Number of best checkpoints to keep besides the newest.", ge=0, le=_MAX_COUNT
    )
    best_metric: BestMetric = setting(
        "score",
        "Rank checkpoints by validation loss or score (BLEU, bracket F1), or by NAME:score.",
        metavar="[NAME:]loss|score",
    )
    also_valid: tuple[AlsoValid, ...] = setting(
        (),
        "Also validate on another dataset, NAME=DATA, to see what is forgotten; repeatable.",
        metavar="NAME=DATA",
    )
    average_last: int = setting(
        5,
        "Average at most N of the newest checkpoints, of the last fifth of the steps.",
        ge=1,
        le=_MAX_COUNT,
    )
    average: bool = setting(
        True,
        "Average the newest checkpoints when training ends, as `tfm average` does; not with ema.",
    )
    validation_beam: int = setting(
        1, "Beam size for the validation score; 0 computes no score.", ge=0, le=64
    )
    log_steps: int = setting(
        50, "Write a line to metrics.jsonl every N steps.", ge=1, le=_MAX_COUNT
    )
    background_saving: bool = setting(
        False, "Write checkpoints in the background, from a copy in memory."
    )
    max_skipped_steps: int = setting(
        10,
        "Stop after N skipped steps in a row; a loss or gradient that is not finite skips a step.",
        ge=1,
        le=_MAX_COUNT,
    )
    stall_minutes: float = setting(
        10.0,
        "Abort if any process makes no progress for N minutes.",
        ge=0.01,
        le=_MAX_MINUTES,
    )
    shard: bool = setting(
        False,
        "Shard weights and optimizer state over processes (FSDP), for models too large for one.",
    )
    kernels: Kernels = setting(
        "auto",
        "Layers: auto for those that are fast on the device, or torch's own (plain).",
    )
    compile: bool = setting(
        True, "On a GPU with --kernels auto, compile the layers: slow first steps, faster others."
    )
    device: DeviceName = setting("auto", "Device to compute on; auto is a GPU if there is one.")
    precision: Precision = setting(
        "auto",
        "Matrix product precision; auto: bf16 if the device has it, fp16 on old GPUs, else fp32.",
    )
    threads: int | None = setting(None, _THREADS, ge=1, le=_MAX_THREADS)

    def _conflicts(self) -> Iterator[str]:
        if self.best_metric.endswith("score") and not self.validation_beam:
            yield (
                f"best_metric is {self.best_metric}, but validation_beam 0 computes none: "
                "raise validation_beam, or set best_metric to loss"
            )
        names = [each.partition("=")[0] for each in self.also_valid]
        yield from (
            f"also_valid has two sets of the name {name}: rename one"
            for name in sorted({name for name in names if names.count(name) > 1})
        )
        set_name, colon, _ = self.best_metric.rpartition(":")
        if colon and set_name not in names:
            yield (
                f"best_metric is {self.best_metric}, but also_valid has no set {set_name}: add "
                f"--also-valid {set_name}=DATA"
            )
        # The default minutes are no mistake: files of runs have a value for every setting.
        has_minutes = self.checkpoint_minutes != TrainingConfig.checkpoint_minutes
        if self.checkpoint_steps is not None and has_minutes:
            yield "checkpoint_minutes and checkpoint_steps exclude each other: give one"
        if self.average_last > self.keep_last:
            yield (
                f"average_last is {self.average_last}, but only keep_last {self.keep_last} "
                "checkpoints are kept: raise keep_last"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of `tfm train`, one field per section of its TOML file."""

    arch: str = "base"
    from_model: str | None = None  # folder of the model that training starts from
    model: ModelConfig = field(default_factory=TransformerConfig)
    optimizer: OptimizerConfig = OptimizerConfig()
    batching: BatchingConfig = BatchingConfig()
    training: TrainingConfig = TrainingConfig()

    def problems(self) -> Iterator[str]:
        """Yield a message for each conflict between settings of different groups."""
        warmup_steps, max_steps = self.optimizer.warmup_steps, self.training.max_steps
        if self.optimizer.depends_on_max_steps and warmup_steps > max_steps:
            yield (
                f"warmup_steps is {warmup_steps}, but must be at most max_steps {max_steps}, at "
                f"which lr_schedule {self.optimizer.lr_schedule} ends"
            )


# The groups of settings of a run, with those of both kinds of models.
RUN_SETTINGS = (TransformerConfig, RecurrentConfig, OptimizerConfig, BatchingConfig, TrainingConfig)


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Settings, section="search"):
    """Decoding: beam search (§6.1), sampling or exact search."""

    # The searches that a setting has an effect on; settings that are not listed affect all.
    _SEARCHES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "beam_size": ("beam", "exact"),
        "num_groups": ("beam",),
        "diversity_strength": ("beam",),
        "temperature": ("sample",),
        "top_k": ("sample",),
        "top_p": ("sample",),
        "seed": ("sample",),
        "node_limit": ("exact",),
        "mbr": ("beam", "sample"),
    }
    # The settings with an effect on forced decoding.
    _FORCED_DECODING: ClassVar[tuple[str, ...]] = (
        "length_penalty",
        "tag",
        "max_source_length",
        "max_tokens",
    )

    search: Literal["beam", "sample", "exact"] = setting(
        "beam",
        "Beam search, random sampling, or exact search, which proves that it found the best.",
        common=True,
    )
    beam_size: int = setting(
        4,
        "Hypotheses kept at each step; 1 is greedy; exact search starts from the beam's result.",
        flag="--beam",
        ge=1,
        le=1024,
        common=True,
    )
    length_penalty: float = setting(
        0.6,
        "Exponent α of the GNMT length penalty; 0 ranks by plain log probability.",
        ge=-5,
        le=10,
        common=True,
    )
    max_extra_length: int = setting(
        50, "Longest translation: the number of source tokens plus N.", ge=1, le=_MAX_LENGTH
    )
    min_length: int = setting(
        1,
        "Fewest tokens in the translation of a non-empty line; 0 allows empty ones.",
        ge=0,
        le=_MAX_LENGTH,
    )
    no_repeat_ngram: int | None = setting(
        None,
        "No translation has the same N tokens in a row twice; any number if unset.",
        ge=1,
        le=_MAX_LENGTH,
    )
    ban: str | None = setting(
        None, "File of words and phrases, one per line, that no translation contains."
    )
    n_best: int = setting(
        1, "Number of translations per sentence, best first.", ge=1, le=1024, common=True
    )
    mbr: Literal["chrf", "bleu"] | None = setting(
        None,
        "Minimum Bayes risk: of n_best candidates, choose the most similar to all by chrF or BLEU.",
    )
    num_groups: int = setting(
        1, "Diverse beam search: number of groups that the beam is divided into.", ge=1, le=1024
    )
    diversity_strength: float = setting(
        0.5,
        "Diverse beam search: penalty in nats per earlier group that chose the same token.",
        ge=0,
        le=1000,
    )
    temperature: float = setting(
        1.0, "Sampling: divide logits by this; below 1 is less random.", ge=0.01, le=1000
    )
    top_k: int | None = setting(
        None,
        "Sampling: draw from the N most probable tokens; from all if unset.",
        ge=1,
        le=_MAX_COUNT,
    )
    top_p: float | None = setting(
        None,
        "Sampling: draw from the fewest tokens whose probabilities sum to p; from all if unset.",
        ge=0,
        le=1,
    )
    seed: int = setting(1, "Random seed of sampling.", ge=0, le=_MAX_SEED)
    node_limit: int = setting(
        10_000, "Exact search: give up a sentence after extending N prefixes.", ge=1, le=_MAX_COUNT
    )
    shortlist: bool = setting(
        False,
        "Only produce the target pieces that the model's shortlist has for the source: faster.",
    )
    tag: str | None = setting(
        None, "Put this tag of the vocabulary, such as <2fr>, before each line that is not empty."
    )
    max_source_length: int = setting(
        1024, "Truncate longer sources to N tokens, with a warning.", ge=1, le=_MAX_LENGTH
    )
    max_tokens: int | None = setting(
        None,
        "Source tokens per batch, padding included; if unset, it depends on model and GPU.",
        ge=1,
        le=_MAX_COUNT,
    )

    @property
    def num_outputs(self) -> int:
        """The number of translations per sentence that a search returns."""
        return 1 if self.mbr is not None else self.n_best

    @classmethod
    def for_model(cls, defaults: Table, given: Table) -> "SearchConfig":
        """Merge the user's settings over a model's own, both by name.

        Defaults without effect on the chosen search are dropped.

        Raises:
            UsageError: A setting is unknown, out of range, or without effect on the search.
        """
        search = given.get("search", defaults.get("search", cls.search))
        if problems := list(cls._without_effect(search, given)):
            raise UsageError("; ".join(problems))
        kept = {n: v for n, v in defaults.items() if search in cls._SEARCHES.get(n, (search,))}
        return settings_from(cls, {**kept, **given})

    @classmethod
    def for_targets(cls, defaults: Table, given: Table) -> "SearchConfig":
        """Merge the user's settings over a model's own, to compute the scores of given targets.

        Raises:
            UsageError: A setting is unknown, out of range, or without effect on forced decoding.
        """
        if unused := [name for name in given if name not in cls._FORCED_DECODING]:
            raise UsageError(
                f"no effect on the scores of given targets: {', '.join(unused)}; they only depend "
                f"on {', '.join(cls._FORCED_DECODING)}"
            )
        return cls.for_model(defaults, given)

    def _conflicts(self) -> Iterator[str]:
        changed = [item.name for item in fields(self) if getattr(self, item.name) != item.default]
        yield from self._without_effect(self.search, changed)
        if self.search != "sample" and self.n_best > self.beam_size > 0:
            yield f"n_best is {self.n_best}, but must be at most the beam size {self.beam_size}"
        if self.num_groups > 0 and self.beam_size % self.num_groups:
            yield f"num_groups is {self.num_groups}, but must divide the beam size {self.beam_size}"
        if self.mbr is not None and self.n_best == 1:
            yield f"mbr {self.mbr} needs several candidates: set n_best, such as --n-best 50"
        if self.num_groups == 1 and "diversity_strength" in changed:
            yield "diversity_strength has no effect on a single group: set num_groups, too"
        if self.tag is not None and (problem := tag_problem(self.tag)) is not None:
            yield f"tag in [search] {problem}"

    @classmethod
    def _without_effect(cls, search: str, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            searches = cls._SEARCHES.get(name, (search,))
            if search not in searches:
                yield f"{name} has no effect on search {search}, only on {' and '.join(searches)}"


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(Settings, section="inference"):
    """Device and arithmetic of a trained model."""

    device: InferenceDevice = setting(
        "auto",
        "Device to compute on; auto: a CUDA GPU if there is one; mps: an Apple GPU, never tried.",
    )
    precision: InferencePrecision = setting(
        "auto",
        "Matrix product precision; auto: bf16 or fp16 on GPUs, fp32 on CPUs; int8: CPUs only.",
        common=True,
    )
    kernels: Kernels = setting(
        "auto",
        "Layers: auto for fast ones on CPUs, or torch's own (plain); GPUs use torch's own.",
    )
    threads: int | None = setting(None, _THREADS, ge=1, le=_MAX_THREADS)


@dataclass(frozen=True, kw_only=True)
class CleaningConfig(Settings, section="cleaning"):
    """Rules for training text; validation and test text are never cleaned."""

    normalize_space: bool = setting(
        True,
        "Make runs of white space one space, drop control characters; also in text to translate.",
    )
    drop_empty: bool = setting(True, "Drop pairs with an empty side.")
    max_characters: int = setting(
        1_000,
        "Drop pairs with a side of more than N characters; 0 keeps all.",
        ge=0,
        le=_MAX_COUNT,
    )
    max_length_ratio: float = setting(
        4.0,
        "Drop pairs with a side over N times as long as the other (characters + 10); 0 keeps all.",
        ge=0,
        le=_MAX_COUNT,
    )
    drop_duplicates: bool = setting(True, "Keep only the first of identical pairs.")
    drop_copies: bool = setting(True, "Drop pairs whose two sides are the same text.")
    drop_mojibake: bool = setting(
        False, "Drop pairs with text decoded from the wrong encoding, such as fÃ¼r instead of für."
    )
    drop_other_script: bool = setting(
        False, "Drop pairs with a side that is mostly not in the script of its language."
    )
    drop_unequal_numbers: bool = setting(
        False, "Drop pairs whose sides differ in their numbers, as far as these are in digits."
    )
    drop_other_language: bool = setting(
        False, "Drop pairs with a side that py3langid, an extra, identifies as another language."
    )
    min_identified_characters: int = setting(
        40,
        "Do not identify the language of sides of fewer than N characters, which is unreliable.",
        ge=0,
        le=_MAX_COUNT,
    )
    max_length_deviations: float = setting(
        0.0,
        "Drop pairs whose length ratio is over N deviations from the text's mean; 0 keeps all.",
        ge=0,
        le=1000,
    )
    max_punctuation_deviations: float = setting(
        0.0,
        "Drop pairs whose punctuation ratio is over N deviations from its mean; 0 keeps all.",
        ge=0,
        le=1000,
    )
    score_model: str | None = setting(
        None, "Model or run folder that scores pairs for min_score; relative to the current folder."
    )
    min_score: float | None = setting(
        None,
        "Drop pairs with a mean log probability per target token below N, such as -5, in nats.",
        ge=-1000,
        le=0,
    )

    def _conflicts(self) -> Iterator[str]:
        has_default = self.min_identified_characters == CleaningConfig.min_identified_characters
        if not (has_default or self.drop_other_language):
            yield (
                "min_identified_characters has no effect on its own: set drop_other_language, too"
            )
        if (self.score_model is None) != (self.min_score is None):
            yield "score_model and min_score need each other: give both"


@dataclass(frozen=True, kw_only=True)
class SubwordConfig(Settings, section="subword"):
    """The subword model, trained by SentencePiece."""

    vocab_size: int | None = setting(
        None,
        "Number of pieces in the vocabulary; if unset, it depends on the size of the text.",
        ge=8,
        le=1_000_000,
        common=True,
    )
    model_type: Literal["bpe", "unigram"] = setting("bpe", "Subword algorithm.")
    separate: bool = setting(False, "Learn one vocabulary per language instead of a joint one.")
    target_words: bool = setting(
        False, "Make each target word one piece, as for symbols of trees; needs --separate."
    )
    character_coverage: float = setting(
        0.9999, "Fraction of the text's characters that the vocabulary covers.", ge=0.9, le=1
    )
    subwords: tuple[str, ...] = setting(
        (),
        "Folder or file of a subword model to use; given twice: of source and target.",
        common=True,
        metavar="PATH",
    )
    byte_fallback: bool = setting(
        True, "Spell uncovered characters in UTF-8 bytes instead of an unknown token."
    )
    symbols: str | None = setting(
        None, "Tags such as '<bt> <2fr>' to reserve a piece for, besides those of the recipe."
    )
    sample_sentences: int = setting(
        5_000_000,
        "Learn from a random sample of N lines; a million lines take about 0.6 GB of memory.",
        ge=101,
        le=_MAX_COUNT,
    )
    threads: int | None = setting(
        None,
        "Number of CPU threads; if unset, one per core; merging BPE pieces uses a single one.",
        ge=1,
        le=_MAX_THREADS,
    )

    def _conflicts(self) -> Iterator[str]:
        if self.target_words and not self.separate:
            yield "target_words has no effect on a joint vocabulary: set separate, too"
        if len(self.subwords) > 2:
            yield (
                f"subwords has {len(self.subwords)} models, but must have one, or one of the "
                "source and one of the target language"
            )
        if self.subwords:
            yield from (
                f"{item.name} has no effect on subwords, which are not learned: leave it out"
                for item in fields(self)
                if item.name not in ("subwords", "symbols", "threads")
                and getattr(self, item.name) != item.default
            )
        problems = map(tag_problem, (self.symbols or "").split())
        if problem := next(filter(None, problems), None):
            yield f"symbols in [subword] {problem}"


@dataclass(frozen=True, kw_only=True)
class BinarizeConfig(Settings, section="binarize"):
    """Conversion of text to token ids."""

    max_length: int = setting(
        250,
        "Drop training pairs with a side of more than N subword tokens.",
        ge=1,
        le=_MAX_LENGTH,
        common=True,
    )
    bpe_dropout: float = setting(
        0.0,
        "Store variants of the training pairs that each leave out BPE merges with probability p.",
        ge=0,
        le=0.9,
    )
    bpe_variants: int = setting(
        8, "Number of variants with BPE-dropout; epochs take them in turn.", ge=1, le=1000
    )
    upper_copies: float = setting(
        0.0, "Share of the training pairs to add a copy of in capitals.", ge=0, le=1
    )
    title_copies: float = setting(
        0.0, "Share of the training pairs to add a copy of in title case.", ge=0, le=1
    )
    unpunctuated_copies: float = setting(
        0.0, "Share of the training pairs to add a copy of without final punctuation.", ge=0, le=1
    )
    typo_copies: float = setting(
        0.0, "Share of the training pairs to add a copy of with typos in the source.", ge=0, le=1
    )
    seed: int = setting(1, "Random seed of BPE-dropout and of copies.", ge=0, le=_MAX_SEED)
    threads: int | None = setting(
        None, "Number of CPU threads; if unset, one per core.", ge=1, le=_MAX_THREADS
    )
    shortlist: bool = setting(
        False,
        "Also learn which target pieces each source piece can become, for generate --shortlist.",
    )
    shortlist_size: int = setting(
        50, "Shortlist: number of target pieces for each source piece.", ge=1, le=10_000
    )
    shortlist_frequent: int = setting(
        100,
        "Shortlist: number of most frequent target pieces that every sentence may use.",
        ge=0,
        le=1_000_000,
    )
    shortlist_pairs: int = setting(
        200_000,
        "Shortlist: learn from a random sample of N pairs.",
        ge=1,
        le=_MAX_COUNT,
    )

    @property
    def copies(self) -> dict[str, float]:
        """The share of training pairs by kind of copy."""
        return {
            "upper": self.upper_copies,
            "title": self.title_copies,
            "unpunctuated": self.unpunctuated_copies,
            "typo": self.typo_copies,
        }

    def _conflicts(self) -> Iterator[str]:
        for item in fields(self):
            is_changed = getattr(self, item.name) != item.default
            if item.name.startswith("shortlist_") and is_changed and not self.shortlist:
                yield f"{item.name} has no effect without shortlist: set it, too"
        if self.bpe_variants != BinarizeConfig.bpe_variants and not self.bpe_dropout:
            yield "bpe_variants has no effect without BPE-dropout: set bpe_dropout, too"
        if self.seed != BinarizeConfig.seed and not any((self.bpe_dropout, *self.copies.values())):
            yield "seed has no effect without bpe_dropout or copies: set one, too"


@dataclass(frozen=True, kw_only=True)
class AverageConfig(Settings, section="average"):
    """Which checkpoints to average (§6.1), and what to do with the average."""

    last: int | None = setting(
        None,
        "Average the N newest checkpoints, whatever their steps (default: see average_last).",
        ge=1,
        le=_MAX_COUNT,
    )
    best: int | None = setting(
        None, "Average the N best checkpoints by best_metric of the run.", ge=1, le=_MAX_COUNT
    )
    calibrate: bool = setting(
        False,
        "Translate the validation text to calibrate the confidence of `tfm generate --json`.",
    )

    def _conflicts(self) -> Iterator[str]:
        if self.last is not None and self.best is not None:
            yield "last and best exclude each other: give one"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(Settings, section="score"):
    """Settings of metrics; the defaults are sacreBLEU's and those of the paper's BLEU."""

    lowercase: bool = setting(False, "Ignore case; TER always ignores it.")
    tokenize: Literal["13a", "intl", "zh", "char", "none"] = setting(
        "13a", "Tokenizer of BLEU; most papers use 13a, or zh for Chinese."
    )
    chrf_word_order: int = setting(0, "Longest word n-gram of chrF; 2 computes chrF++.", ge=0, le=4)
    normalize_punctuation: bool = setting(
        True, "With --paper: first replace typographic quotes and dashes, as Moses does."
    )
    split_compounds: Literal["auto", "yes", "no"] = setting(
        "auto", "With --paper: split a-b into three tokens; auto does so for German only."
    )
    bootstrap_samples: int = setting(
        1000,
        "Number of samples of the paired bootstrap test with --baseline.",
        ge=1,
        le=100_000,
    )
    bootstrap_seed: int = setting(
        12_345, "Random seed of the paired bootstrap test.", ge=1, le=2**32 - 1
    )
