"""BLEU of tokenized text as in the paper's Table 2, not comparable with sacreBLEU's.

The paper does not define it, but get_ende_bleu.sh in tensor2tensor, which its authors published,
does: Moses' tokenizer.perl on translation and reference, hyphenated compounds split in three, then
Moses' multi-bleu.perl, with plain quotation marks in the reference. Here, sacremoses replaces
tokenizer.perl as of 2017 and normalize-punctuation.perl, which is applied to both sides.
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
from tfm.metrics.sacre import score_metric
from tfm.text.languages import base_language

_COMPOUND_LANGUAGES = ("de",)
_HYPHEN = rb"##AT##-##AT##"

# Single quotation marks, but no apostrophes: normalize-punctuation.perl makes them double
# quotation marks, sacremoses only ’.
_SINGLE_QUOTES = re.compile(r"‚|(?<![a-zA-Z])‘|‘(?![a-zA-Z])")


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    config: ScoreConfig,
    *,
    language: str,
    baseline: Sequence[str] | None = None,
) -> MetricScore:
    """Return the paper's BLEU of detokenized text, tokenized by the rules of a language."""
    language = check_language(language)
    tokenizer = PaperTokenizer(language, config)
    # multi-bleu.perl has the counts and brevity penalty of sacreBLEU, but no smoothing.
    metric = BLEU(
        lowercase=config.lowercase,
        tokenize="none",
        smooth_method="none",
        force=True,  # no warning that the text is tokenized
        references=[tokenizer.tokenize(lines) for lines in references],
    )
    score = score_metric(
        metric,
        tokenizer.tokenize(hypotheses),
        config,
        name="paper-bleu",
        baseline=None if baseline is None else tokenizer.tokenize(baseline),
    )
    bootstrap = f"|bs:{config.bootstrap_samples}|seed:{config.bootstrap_seed}"
    signature = (  # in the order of sacreBLEU's
        f"nrefs:{len(references)}{'' if baseline is None else bootstrap}"
        f"|case:{'lc' if config.lowercase else 'mixed'}"
        f"|norm:{'moses' if tokenizer.normalizes else 'none'}|tok:moses-{language}"
        f"|compounds:{'atat' if tokenizer.splits_compounds else 'whole'}"
        f"|arithmetic:multi-bleu|sacremoses:{sacremoses.__version__}"
    )
    reasons = [f"tokenized by Moses, not by {config.tokenize}"]
    if tokenizer.normalizes:
        reasons.append("quotation marks and dashes are normalized")
    if tokenizer.splits_compounds:
        reasons.append("a hyphenated compound counts as three words")
    note = f"differs from BLEU: {'; '.join(reasons)}. Compare only with tokenized BLEU in papers"
    return replace(score, label="paper BLEU", signature=signature, note=note)


def check_language(language: str) -> str:
    """Return Moses' code of a language; raise UsageError unless Moses supports it."""
    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    base = base_language(language)
    if base not in known:
        raise UsageError(
            f'paper BLEU needs a target language that Moses supports, not "{language}": '
            f"give one with --language ({', '.join(known)})"
        )
    return base


class PaperTokenizer:
    """Tokenizes text into words separated by spaces, for multi-bleu.perl."""

    def __init__(self, language: str, config: ScoreConfig) -> None:
        self.splits_compounds = config.split_compounds == "yes" or (
            config.split_compounds == "auto" and language in _COMPOUND_LANGUAGES
        )
        self.normalizes = config.normalize_punctuation
        self._normalizer = sacremoses.MosesPunctNormalizer(language, perl_parity=True)
        self._tokenizer = sacremoses.MosesTokenizer(language)

    def tokenize(self, lines: Iterable[str]) -> list[str]:
        """Return each line as words separated by spaces."""
        if self.normalizes:
            # Given the line end, the script moves a period before a final quotation mark.
            quoted = (_SINGLE_QUOTES.sub('"', line) for line in lines)
            lines = (self._normalizer.normalize(f"{line}\n") for line in quoted)
        tokenized = (self._tokenizer.tokenize(line, return_str=True) for line in lines)
        return [split_compounds(words) if self.splits_compounds else words for words in tokenized]


def split_compounds(text: str) -> str:
    """Replace each hyphen between two characters by the word `##AT##-##AT##`.

    Matches do not overlap: in a-b-c, only the first hyphen is replaced. Like the original, this
    works on bytes, so that both hyphens of ä-ö-ü are.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 " + _HYPHEN + rb" \2", text.encode()).decode()
