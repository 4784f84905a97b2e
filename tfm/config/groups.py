"""Every setting, once: its name, type, default, unit, limits and help.

Command-line flags, TOML keys and the record in a checkpoint all come from these dataclasses.
The defaults are the paper's base model and its training (Vaswani et al. 2017, §3 and §5).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tfm.config.schema import Settings, setting

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]


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
        "Embeddings that are one: source, target and output; target and output; or none.",
    )

    def problems(self) -> Iterator[str]:
        """Name each value that cannot be, and what would do."""
        yield from super().problems()
        if self.d_model % 2:
            yield f"d_model is {self.d_model}, but sinusoids need an even width"
        shares_width = self.d_k is None or self.d_v is None
        if shares_width and self.num_heads > 0 and self.d_model % self.num_heads:
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
        3_125,
        "Pairs of similar length go into a batch together by so many target tokens.",
        at_least=1,
    )
    max_tokens: int = setting(
        8_192,
        "A device takes a batch in parts of at most so many tokens a side, with padding.",
        at_least=1,
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
        None,
        "Pieces of the vocabulary; chosen by the size of the text if unset.",
        at_least=8,
        at_most=1_000_000,
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
        10_000_000,
        "Learn from a random sample of so many lines.",
        at_least=101,
        at_most=1_000_000_000,
    )
    num_threads: int = setting(16, "Threads to learn with.", at_least=1, at_most=1024)


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
