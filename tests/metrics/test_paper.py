"""Paper BLEU: tokenization, compounds and arithmetic."""

import math

import pytest

from tfm.config import ScoreConfig
from tfm.errors import UsageError
from tfm.metrics.paper import PaperTokenizer, paper_bleu, split_compounds
from tfm.metrics.scores import corpus_scores

CONFIG = ScoreConfig()

# Text, and the output of Moses' normalize-punctuation.perl and tokenizer.perl.
GERMAN = {
    "Er sagte: „Das ist z. B. ein E-Mail-Konto – für 3,50 Euro“, und ging.": (
        "Er sagte : &quot; Das ist z. B. ein E-Mail-Konto - für 3,50 Euro &quot; , und ging ."
    ),
    "Die Band 'Wir & Du' kostete 1.000,5 Euro (am 3. Mai)...": (
        "Die Band &apos; Wir &amp; Du &apos; kostete 1.000,5 Euro ( am 3. Mai ) ..."
    ),
    "Er rief: ’Halt’ und ging’s an.": ("Er rief : &quot; Halt &quot; und ging &apos; s an ."),
    "„Bis bald.“": "&quot; Bis bald &quot; .",
    "Prof. Dr. Ö. Müller kam usw.": "Prof. Dr. Ö . Müller kam usw.",
    "Das „sogenannte ‚Wunder‘“, sagte sie…": (
        "Das &quot; sogenannte &quot; Wunder &quot; &quot; , sagte sie ..."
    ),
}
FRENCH = {
    "L'homme n'a pas dit « aujourd'hui » : il s’est tu !": (
        "L&apos; homme n&apos; a pas dit &quot; aujourd&apos; hui &quot; : il s&apos; est tu !"
    ),
    "C'est-à-dire 1 000 euros, M. Dupont ?": "C&apos; est-à-dire 1 000 euros , M. Dupont ?",
    "20\u00a0% de 1\u00a0000\u00a0; «\u00a0oui\u00a0»": "20 % de 1,000 ; &quot; oui &quot;",
}


def bleu(hypotheses, *references, language="fr", config=CONFIG):
    return paper_bleu(hypotheses, references, config, language=language).value


@pytest.mark.parametrize(("language", "words"), [("de", GERMAN), ("fr", FRENCH)])
def test_words_equal_those_of_moses(language, words):
    tokenizer = PaperTokenizer(language, ScoreConfig(split_compounds="no"))
    assert dict(zip(words, tokenizer.tokenize(words), strict=True)) == words


def test_normalization_of_punctuation_can_be_disabled():
    tokenizer = PaperTokenizer("de", ScoreConfig(normalize_punctuation=False))
    assert tokenizer.tokenize(["„Bis bald – Anna.“"]) == ["„ Bis bald – Anna . “"]


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("E-Mail-Konto", "E ##AT##-##AT## Mail ##AT##-##AT## Konto"),
        ("a-b-c-d", "a ##AT##-##AT## b-c ##AT##-##AT## d"),
        ("a-ö-c", "a ##AT##-##AT## ö ##AT##-##AT## c"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a - b -c d-", "a - b -c d-"),
    ],
)
def test_hyphens_between_characters_are_split_without_overlap(text, split):
    # As perl -pe 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' does.
    assert split_compounds(text) == split


def test_compounds_are_split_in_german_only_by_default():
    def splits(language, choice):
        return PaperTokenizer(language, ScoreConfig(split_compounds=choice)).splits_compounds

    assert [splits("de", choice) for choice in ("auto", "yes", "no")] == [True, True, False]
    assert [splits("fr", choice) for choice in ("auto", "yes", "no")] == [False, True, False]


def test_a_part_of_a_german_compound_can_match():
    # Without the split, only the last word differs; with it, only "Tor" does.
    hypothesis, reference = ["a b c d Haus-Tor"], ["a b c d Haus-Tür"]
    german = 100 * math.pow(6 / 7 * 5 / 6 * 4 / 5 * 3 / 4, 1 / 4)
    assert bleu(hypothesis, reference, language="de") == pytest.approx(german)
    french = 100 * math.pow(4 / 5 * 3 / 4 * 2 / 3 * 1 / 2, 1 / 4)
    assert bleu(hypothesis, reference, language="fr") == pytest.approx(french)


def test_without_matching_4_grams_it_is_zero_and_not_smoothed():
    hypotheses, references = ["a b c x d e f"], ["a b c y d e f"]
    assert bleu(hypotheses, references) == 0
    [smoothed] = corpus_scores(hypotheses, [references], ["bleu"], CONFIG)
    assert smoothed.value > 10
    assert bleu(["a b c"], ["a b c"]) == 0
    assert bleu([""], ["a b c d"]) == 0


def test_case_counts_by_default():
    hypotheses, references = ["Ach wie schön ist es"], ["ach wie Schön ist es"]
    assert bleu(hypotheses, references) == 0
    assert bleu(hypotheses, references, config=ScoreConfig(lowercase=True)) == pytest.approx(100)


def test_the_signature_has_all_settings():
    result = paper_bleu(["ja"], [["ja"], ["doch"]], CONFIG, language="de")
    start = "nrefs:2|case:mixed|norm:moses|tok:moses-de|compounds:atat|arithmetic:multi-bleu|"
    assert result.signature.startswith(start + "sacremoses:")
    changed = ScoreConfig(
        lowercase=True,
        normalize_punctuation=False,
        split_compounds="no",
        bootstrap_samples=20,
        bootstrap_seed=3,
    )
    result = paper_bleu(["ja"], [["ja"]], changed, language="de", baseline=["nein"])
    start = "nrefs:1|bs:20|seed:3|case:lc|norm:none|tok:moses-de|compounds:whole|"
    assert result.signature.startswith(start)


def test_the_difference_to_a_baseline_is_tested():
    reference = ["Heute ist der dritte Mai .", "Wir treffen uns um halb vier Uhr ."] * 5
    worse = [line.replace("ist der", "der ist").replace("um halb", "halb um") for line in reference]
    config = ScoreConfig(bootstrap_samples=50)
    result = paper_bleu(reference, [reference], config, language="de", baseline=worse)
    assert result.value == pytest.approx(100)
    assert result.comparison.baseline == bleu(worse, reference, language="de")
    assert result.comparison.p_value < 0.05


def test_a_language_may_have_any_of_its_codes_and_must_be_supported():
    result = paper_bleu(["E-Mail"], [["E-Mail"]], CONFIG, language="deu_Latn")
    assert "|tok:moses-de|compounds:atat|" in result.signature
    with pytest.raises(UsageError, match=r'supports, not "txt": give one with --language \(.*de, '):
        paper_bleu(["ja"], [["ja"]], CONFIG, language="txt")
