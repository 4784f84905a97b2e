"""The settings of translating, serving, averaging and scoring: defaults, units, limits and help."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tfm.config.schema import (
    MAX_LENGTH,
    MAX_SEED,
    MAX_THREADS,
    THREADS_HELP,
    Problem,
    Settings,
    count,
    merged,
    setting,
)
from tfm.config.text import tag_problem
from tfm.config.training import Command, Kernels, TokenizerChoice
from tfm.config.values import Values
from tfm.errors import refuse

InferenceDevice = Literal["auto", "cpu", "cuda", "mps"]
InferenceEngine = Literal["auto", "torch", "ctranslate2"]
InferencePrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

_TRANSLATION = {"task": ("translation",)}  # not of a parser
# The searches that use some of the settings.
_BEAM, _SAMPLE = {"search": ("beam",)}, {"search": ("sample",)}
# The metrics on which some settings of scores have an effect.
_PAPER = {"metrics": ("paper-bleu",)}
_BOOTSTRAPPED = {"metrics": ("bleu", "paper-bleu", "chrf", "ter", "command")}


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Settings, section="search"):
    """Decoding: beam search (§6.1), sampling or exact search."""

    # The settings with an effect on forced decoding.
    _FORCED_DECODING: ClassVar[tuple[str, ...]] = (
        "length_penalty",
        "tag",
        "max_source_length",
        "max_tokens",
    )

    search: Literal["beam", "sample", "exact"] = setting(
        "beam", "Beam search, random sampling, or exact search, provably the best.", common=True
    )
    beam_size: int = count(
        4,
        "Hypotheses kept at each step; 1 is greedy; exact search starts from the beam's result.",
        flag="--beam",
        most=1024,
        common=True,
        only={"search": ("beam", "exact")},
    )
    length_penalty: float = setting(
        0.6,
        "Exponent α of the GNMT length penalty; 0 ranks by log probability.",
        limits=(-5, 10),
        common=True,
    )
    max_extra_length: int = count(
        50, "Maximum length of a translation: N more tokens than the source.", most=MAX_LENGTH
    )
    min_length: int = setting(
        1,
        "Minimum number of tokens in the translation of a non-empty line; 0 allows empty output.",
        limits=(0, MAX_LENGTH),
    )
    no_repeat_ngram: int | None = count(
        None,
        "Do not repeat a sequence of N tokens within a translation; no limit if unset.",
        most=MAX_LENGTH,
        only=_TRANSLATION,
    )
    no_repetition: bool = setting(
        False,
        "Of the beam, prefer translations that do not repeat a part again and again.",
        excludes=("mbr",),
        only={"search": ("beam",), **_TRANSLATION},
    )
    ban: str | None = setting(
        None,
        "File of words and phrases, one per line, that no translation contains.",
        metavar="FILE",
        only=_TRANSLATION,
    )
    n_best: int = count(
        1, "Number of translations per sentence, best first.", most=1024, common=True
    )
    mbr: Literal["chrf", "bleu", "command"] | None = setting(
        None,
        "Minimum Bayes risk: of n_best candidates, choose the most similar to all by this metric.",
        needs=("n_best",),
        only={"search": ("beam", "sample"), **_TRANSLATION},
    )
    metric_command: Command | None = setting(
        None,
        "With --mbr command: a program, which reads source and two candidates "
        "(TSV) and prints a number.",
        metavar="COMMAND",
        only={"mbr": ("command",)},
    )
    mbr_tokenize: TokenizerChoice = setting(
        "auto",
        "With mbr bleu: the tokenizer of BLEU; auto depends on the target language.",
        only={"mbr": ("bleu",)},
    )
    num_groups: int = count(
        1,
        "Diverse beam search: number of groups that the beam is divided into.",
        most=1024,
        only=_BEAM,
    )
    diversity_strength: float = setting(
        0.5,
        "Diverse beam search: penalty in nats per earlier group that chose the same token.",
        limits=(0, 1000),
        needs=("num_groups",),
        only=_BEAM,
    )
    diversity_steps: int | None = count(
        None,
        "Diverse beam search: penalize only the first N tokens, after a prefix; all if unset.",
        most=MAX_LENGTH,
        needs=("num_groups",),
        only=_BEAM,
    )
    temperature: float = setting(
        1.0,
        "Sampling: divide logits by this; below 1 is less random.",
        limits=(0.01, 1000),
        only=_SAMPLE,
    )
    top_k: int | None = count(
        None, "Sampling: draw from the N most probable tokens; from all if unset.", only=_SAMPLE
    )
    top_p: float | None = setting(
        None,
        "Sampling: draw from the fewest tokens whose probabilities sum to X; from all if unset.",
        limits=(0, 1),
        only=_SAMPLE,
    )
    epsilon: float | None = setting(
        None,
        "Sampling: draw from tokens of at least probability X; from all if unset.",
        limits=(0, 1),
        only=_SAMPLE,
    )
    seed: int = setting(1, "Random seed of sampling.", limits=(0, MAX_SEED), only=_SAMPLE)
    node_limit: int = count(
        10_000,
        "Exact search: give up a sentence after extending N prefixes.",
        only={"search": ("exact",)},
    )
    tag: str | None = setting(
        None, "Put this tag of the vocabulary, such as <2fr>, before each line that is not empty."
    )
    max_source_length: int = count(
        1024, "Truncate longer sources to N tokens, with a warning.", most=MAX_LENGTH
    )
    max_tokens: int | None = count(
        None, "Source tokens per batch, padding included; if unset, it depends on model and GPU."
    )

    @property
    def num_outputs(self) -> int:
        """The number of translations per sentence that a search returns."""
        return 1 if self.mbr is not None else self.n_best

    @property
    def is_constrained(self) -> bool:
        """Whether some text is ruled out in outputs."""
        return self.ban is not None or self.no_repeat_ngram is not None

    @classmethod
    def for_model(cls, defaults: Values, given: Values) -> "SearchConfig":
        """Merge the user's settings over a model's own, both by name."""
        return merged(cls, defaults, given)

    @classmethod
    def for_targets(cls, defaults: Values, given: Values) -> "SearchConfig":
        """Merge the user's settings over a model's own, to compute the scores of given targets."""
        if unused := [name for name in given if name not in cls._FORCED_DECODING]:
            names = ", ".join(unused)
            text = f"no effect on the scores of given targets: leave out {names}"
            refuse([Problem(unused[0], text, others=unused)])
        return cls.for_model(defaults, given)

    def _contradictions(self) -> Iterator[Problem]:
        beam = f"the beam size {self.beam_size}"
        if self.search != "sample" and self.n_best > self.beam_size > 0:
            yield Problem("n_best", f"n_best is {self.n_best}, but must be at most {beam}")
        if self.num_groups > 0 and self.beam_size % self.num_groups:
            yield Problem("num_groups", f"num_groups is {self.num_groups}, but must divide {beam}")
        if self.mbr == "command" and self.metric_command is None:
            yield Problem("mbr", "mbr command needs a program: add metric_command")
        if self.tag is not None and (problem := tag_problem(self.tag)) is not None:
            yield Problem("tag", f"tag {problem}")


@dataclass(frozen=True, kw_only=True)
class InferenceConfig(Settings, section="inference"):
    """Device and arithmetic of a trained model."""

    device: InferenceDevice = setting(
        "auto",
        "Device to compute on; auto: a CUDA GPU if there is one; mps: an Apple GPU, untested.",
    )
    precision: InferencePrecision = setting(
        "auto",
        "Matrix product precision; auto: bf16 or fp16 on GPUs, fp32 on CPUs; int8: CPUs only.",
        common=True,
    )
    kernels: Kernels = setting(
        "auto", "Layers: auto for fast ones on CPUs, or torch's own (plain); GPUs use torch's own."
    )
    threads: int | None = count(None, THREADS_HELP, most=MAX_THREADS)
    engine: InferenceEngine = setting(
        "auto",
        "Library that computes: torch, or CTranslate2 on a CPU; auto: CTranslate2 for tfm serve, "
        "if it can.",
    )


@dataclass(frozen=True, kw_only=True)
class AverageConfig(Settings, section="average"):
    """Which checkpoints to average (§6.1), and what to do with the average."""

    last: int | None = count(
        None,
        "Average the N newest checkpoints, whatever their steps (default: the run's average_last).",
        excludes=("best",),
    )
    best: int | None = count(None, "Average the N best checkpoints by the run's best_metric.")
    calibrate: bool = setting(
        False, "Translate the validation text to calibrate the confidence of `tfm generate --json`."
    )


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(Settings, section="score"):
    """Settings of metrics; the defaults are sacreBLEU's and the paper's."""

    lowercase: bool = setting(
        False,
        "Ignore case; TER always ignores it.",
        only={"metrics": ("bleu", "paper-bleu", "chrf", "exact")},
    )
    tokenize: TokenizerChoice = setting(
        "auto",
        "Tokenizer of BLEU; auto is zh for Chinese, char for Japanese, Thai and the like, "
        "13a for others.",
        only={"metrics": ("bleu",)},
    )
    chrf_word_order: int = setting(
        0,
        "Longest word n-gram of chrF; 2 computes chrF++.",
        limits=(0, 4),
        only={"metrics": ("chrf",)},
    )
    metric_command: Command | None = setting(
        None,
        "Also score by a program, which reads source, translation, reference "
        "(TSV) and prints a number.",
        metavar="COMMAND",
    )
    normalize_punctuation: bool = setting(
        True,
        "With --paper: first replace typographic quotes and dashes, as Moses does.",
        only=_PAPER,
    )
    split_compounds: Literal["auto", "yes", "no"] = setting(
        "auto",
        "With --paper: split a-b into three tokens; auto does so for German only.",
        only=_PAPER,
    )
    bootstrap_samples: int = count(
        1000,
        "Number of bootstrap samples of the lines, for intervals and for the test with --baseline.",
        most=100_000,
        only=_BOOTSTRAPPED,
    )
    bootstrap_seed: int = count(
        12_345,
        "Random seed of the bootstrap samples.",
        most=2**32 - 1,
        only=_BOOTSTRAPPED,
    )
