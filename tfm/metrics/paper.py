"""BLEU as the paper's Table 2 has it: of tokenized text, not comparable with sacreBLEU's.

The paper does not say how it was computed. tensor2tensor, which its authors published, does, in
get_ende_bleu.sh: tokenizer.perl of Moses on translation and reference, hyphenated compounds cut in
three, then multi-bleu.perl of Moses, on a reference with plain quotation marks in place of
typographic ones. Here, sacremoses takes the place of tokenizer.perl as it was in 2017, and of
normalize-punctuation.perl, which makes quotation marks and dashes plain on both sides.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import sacremoses
from sacrebleu.metrics.bleu import BLEU
from sacremoses.corpus import NonbreakingPrefixes

from tfm.config import ScoreConfig
from tfm.errors import UsageError
from tfm.metrics.metric import MetricScore
from tfm.metrics.sacre import measured

_COMPOUND_LANGUAGES = ("de",)
_HYPHEN = rb"##AT##-##AT##"

# Single quotation marks that are no apostrophe in a word. normalize-punctuation.perl makes them
# double ones; sacremoses does so with ’ only.
_SINGLE_QUOTES = re.compile(r"‚|(?<![a-zA-Z])‘|‘(?![a-zA-Z])")


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    *,
    language: str,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """Score detokenized text in a language, given as a two-letter code.

    Raises:
        UsageError: Moses does not know the language.
    """
    check_language(language)
    tokenizer = MosesWords(language, config)
    # multi-bleu.perl: the same counts and brevity penalty as sacreBLEU's, but nothing is smoothed.
    metric = BLEU(
        lowercase=config.lowercase,
        tokenize="none",
        smooth_method="none",
        force=True,  # no warning that the text is tokenized
        references=[tokenizer.tokenized(lines) for lines in references],
    )
    score = measured(
        metric,
        tokenizer.tokenized(hypotheses),
        config,
        name="paper-bleu",
        baseline=None if baseline is None else tokenizer.tokenized(baseline),
    )
    bootstrap = f"|bs:{config.bootstrap_samples}|seed:{config.bootstrap_seed}"
    signature = (  # in the order of sacreBLEU's
        f"nrefs:{len(references)}{'' if baseline is None else bootstrap}"
        f"|case:{'lc' if config.lowercase else 'mixed'}"
        f"|norm:{'moses' if tokenizer.normalizes else 'none'}|tok:moses-{language}"
        f"|compounds:{'atat' if tokenizer.splits_compounds else 'whole'}"
        f"|arithmetic:multi-bleu|sacremoses:{sacremoses.__version__}"
    )
    reasons = [f"words are cut by Moses, not by {config.tokenize}"]
    if tokenizer.normalizes:
        reasons.append("quotation marks and dashes are made plain")
    if tokenizer.splits_compounds:
        reasons.append("a hyphenated compound counts as three words")
    note = f"differs from BLEU: {'; '.join(reasons)}. Compare it with tokenized BLEU in papers only"
    return replace(score, label="paper BLEU", signature=signature, note=note)


def check_language(language: str) -> None:
    """Raise UsageError unless Moses knows a language."""
    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise UsageError(
            f'paper BLEU needs the target language, and Moses knows none called "{language}": '
            f"give one with --language ({', '.join(known)})"
        )


class MosesWords:
    """Text as words with space between them, as multi-bleu.perl reads it."""

    def __init__(self, language: str, config: ScoreConfig) -> None:
        self.splits_compounds = config.split_compounds == "yes" or (
            config.split_compounds == "auto" and language in _COMPOUND_LANGUAGES
        )
        self.normalizes = config.normalize_punctuation
        self._normalizer = sacremoses.MosesPunctNormalizer(language, perl_parity=True)
        self._tokenizer = sacremoses.MosesTokenizer(language)

    def tokenized(self, lines: Iterable[str]) -> list[str]:
        """The words of each line."""
        return [self._tokenized(line) for line in lines]

    def _tokenized(self, line: str) -> str:
        if self.normalizes:
            # The script sees the line's end, and moves a period before a last quotation mark.
            line = self._normalizer.normalize(_SINGLE_QUOTES.sub('"', line) + "\n")
        words: str = self._tokenizer.tokenize(line, return_str=True)
        return split_compounds(words) if self.splits_compounds else words


def split_compounds(text: str) -> str:
    """Make each hyphen between two characters a word of its own, `##AT##-##AT##`.

    Matches do not overlap: of a-b-c, only the first hyphen is cut off. The original works on bytes,
    where ä-ö-ü has enough of them for both; so does this.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 " + _HYPHEN + rb" \2", text.encode()).decode()
