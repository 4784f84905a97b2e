"""Copies of training pairs in capitals, in title case, unpunctuated, with typos and masks."""

import re
import unicodedata

import pytest
import regex
from helpers import binarize, contents, decoded

from tfm.config import BinarizeConfig
from tfm.dataset.manifest import Manifest
from tfm.dataset.parallel import DatasetIndex, ParallelDataset
from tfm.errors import UsageError
from tfm.text.copies import COPIES, Copier

PAIRS = [(f"A dog sees {i} other dogs.", f"Ein Hund sieht {i} andere Hunde.") for i in range(400)]
HALF = BinarizeConfig(upper_copies=0.5, typo_copies=0.25)


def copy_of(kind, source, target, *, tags=(), languages=("en", "de")):
    copier = Copier({kind: 1.0}, languages=languages, tags=tags, seed=1)
    (sources, targets), numbers = copier.copy(([source.encode()], [target.encode()]), start=7)
    assert (sources[0].decode(), targets[0].decode()) == (source, target)
    assert numbers.tolist() == [7] * len(sources)
    return [(s.decode(), t.decode()) for s, t in zip(sources[1:], targets[1:], strict=True)]


@pytest.mark.parametrize(
    ("kind", "pair", "copy"),
    [
        ("upper", ("It's a dog.", "Großer Hund"), ("IT'S A DOG.", "GROSSER HUND")),
        ("title", ("it's a dog  now", "ein HUND"), ("It's A Dog  Now", "Ein HUND")),
        ("unpunctuated", ("Stop! Now?!", "Halt! Jetzt ?"), ("Stop! Now", "Halt! Jetzt")),
        ("unpunctuated", ("Now.", "现在。"), ("Now", "现在")),
        ("unpunctuated", ("Now.", "?"), ("Now", "?")),
    ],
)
def test_a_copy_changes_both_sides(kind, pair, copy):
    assert copy_of(kind, *pair) == [copy]


@pytest.mark.parametrize(
    ("language", "text", "capitals", "title"),
    [
        ("en", "i don't mind", "I DON'T MIND", "I Don't Mind"),
        ("tr", "istanbul ılık mı", "İSTANBUL ILIK MI", "İstanbul Ilık Mı"),
        ("azj_Latn", "iki qız", "İKİ QIZ", "İki Qız"),
        ("de", "süße maß", "SÜSSE MASS", "Süße Maß"),
        ("el", "ο οδυσσέας πρωί", "Ο ΟΔΥΣΣΕΑΣ ΠΡΩΙ", "Ο Οδυσσέας Πρωί"),
        ("el", "άυλος μαΐου", "ΑΥΛΟΣ ΜΑΪΟΥ", "Άυλος Μαΐου"),
        ("nl", "ijs in 't ijsland", "IJS IN 'T IJSLAND", "IJs In 't IJsland"),
        ("hr", "ǆep džep", "ǄEP DŽEP", "ǅep Džep"),
        ("hy", "և", "ԵՎ", "Եվ"),
        ("es", "¿qué dice “él”?", "¿QUÉ DICE “ÉL”?", "¿Qué Dice “Él”?"),
        ("fr", "l’été (très) «beau» 3e", "L’ÉTÉ (TRÈS) «BEAU» 3E", "L’été (Très) «Beau» 3e"),
        ("en", "it 's <b>bold</b> #tag", "IT 'S <B>BOLD</B> #TAG", "It 's <b>bold</b> #tag"),
    ],
)
def test_capitals_are_those_of_the_language(language, text, capitals, title):
    languages = language, language
    assert copy_of("upper", text, text, languages=languages) == [(capitals, capitals)]
    assert copy_of("title", text, text, languages=languages) == [(title, title)]


def test_capitals_are_those_of_the_language_that_a_tag_chooses():
    pair = "<2tr> inn", "in"
    found = copy_of("upper", *pair, tags=["<2tr>"], languages=("en", "de+tr"))
    assert found == [("<2tr> INN", "İN")]
    assert copy_of("upper", "inn", "in", languages=("en", "de+tr")) == [("INN", "IN")]


@pytest.mark.parametrize("mark", ".!?…؟۔।॥։።፧။។។。！？｡．‽")
def test_final_marks_of_all_scripts_are_left_out(mark):
    assert copy_of("unpunctuated", f"ab{mark}", f"cd {mark}") == [("ab", "cd")]
    assert copy_of("unpunctuated", "a.", "τι;", languages=("en", "el")) == [("a", "τι")]
    assert copy_of("unpunctuated", "a.", "b;") == [("a", "b;")]


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("upper", "IT'S 7"),
        ("title", "A Dog"),
        ("unpunctuated", "a dog"),
        ("unpunctuated", "?!"),
        ("typo", "a dog"),
        *((kind, "") for kind in COPIES),
    ],
)
def test_a_source_that_would_not_change_or_be_empty_has_no_copy(kind, source):
    assert copy_of(kind, source, "ein Hund.") == []


def test_a_typo_changes_letters_in_long_words_of_the_source_only():
    source = "A dog looks at 3000 other animals."
    seen = set()
    for seed in range(50):
        copier = Copier({"typo": 1.0}, languages=("en", "de"), tags=(), seed=seed)
        (sources, targets), _ = copier.copy(([source.encode()], [b"Ein Hund"]), start=0)
        assert set(targets) == {b"Ein Hund"}
        for copied in sources[1:]:
            words = copied.decode().split()
            differing = [(a, b) for a, b in zip(source.split(), words, strict=True) if a != b]
            assert len(differing) == 1
            [(before, after)] = differing
            assert before in ("looks", "other", "animals.")
            assert before[0] == after[0]
            assert abs(len(before) - len(after)) <= 1
            seen.add(after)
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("word", "letters"),
    [
        ("नमस्कार", regex.findall(r"\X", "नमस्कार")),
        ("ประเทศไทย", regex.findall(r"\X", "ประเทศไทย")),
        (unicodedata.normalize("NFD", "größten"), [*"gr", "o\u0308", *"ßten"]),
        ("مُدَرِّسَة", ["مُ", "دَ", "رِّ", "سَ", "ة"]),
    ],
)
def test_a_typo_keeps_letters_with_their_marks(word, letters):
    seen = set()
    for seed in range(30):
        copier = Copier({"typo": 1.0}, languages=("xx", "de"), tags=(), seed=seed)
        (sources, _), _ = copier.copy(([word.encode()], [b"x"]), start=0)
        seen.update(source.decode() for source in sources[1:])
    assert len(seen) > 3
    for each in seen:
        assert set(regex.findall(r"\X", each)) <= set(letters)
        assert each.startswith(letters[0])


def test_a_tag_before_the_source_is_left_as_it_is():
    source = "<2fr> a <2fr> dog."
    assert copy_of("upper", source, "un chien.", tags=["<bt>", "<2fr>"]) == [
        ("<2fr> A <2FR> DOG.", "UN CHIEN.")
    ]
    assert copy_of("unpunctuated", "<2fr> ?", "?", tags=["<2fr>"]) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    """A dataset with copies, in several blocks of text; tests must leave it as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfm.text.lines._BLOCK_BYTES", 1000)
        splits = {"train": PAIRS, "valid": PAIRS[:9], "test": PAIRS[:9]}
        made = make_dataset(tmp_path_factory.mktemp("data") / "x", splits, vocab_size=400)
        binarize(made, HALF)
        yield made


def test_each_share_of_the_training_pairs_has_copies_and_no_other_split_has(folder):
    pairs = decoded(folder, "train")
    is_upper = [source.isupper() for source, _ in pairs]
    is_typo = [not upper and pair not in PAIRS for upper, pair in zip(is_upper, pairs, strict=True)]
    assert sum(is_upper) == pytest.approx(200, abs=40)
    assert sum(is_typo) == pytest.approx(100, abs=40)
    assert [pair for pair in pairs if pair in PAIRS] == PAIRS
    assert all(target.isupper() for source, target in pairs if source.isupper())
    assert decoded(folder, "valid") == decoded(folder, "test") == PAIRS[:9]
    counts = Manifest.load(folder).result("binarize")
    assert counts["train"]["copies"] == sum(is_upper) + sum(is_typo)
    assert counts["train"]["kept"] == len(pairs) == len(PAIRS) + counts["train"]["copies"]
    assert counts["test"]["copies"] == 0


def test_seed_and_text_determine_the_copies(folder):
    before = contents(folder / "bin")
    for threads in (1, 3):
        config = BinarizeConfig(upper_copies=0.5, typo_copies=0.25, threads=threads)
        binarize(folder, config, force=True)
        assert contents(folder / "bin") == before
    assert not binarize(folder, HALF)
    assert binarize(folder, BinarizeConfig(upper_copies=0.5, typo_copies=0.25, seed=2))
    assert contents(folder / "bin") != before
    binarize(folder, HALF)


def test_variants_of_bpe_dropout_have_the_same_copies(folder):
    pairs = decoded(folder, "train")
    binarize(
        folder, BinarizeConfig(upper_copies=0.5, typo_copies=0.25, bpe_dropout=0.1, bpe_variants=2)
    )
    assert decoded(folder, "train") == 3 * pairs
    binarize(folder, HALF)


def test_copies_count_for_the_text_of_their_pair_unless_they_are_too_long(tmp_path, make_dataset):
    folder = make_dataset(tmp_path / "x", {"train": PAIRS[:40]}, vocab_size=300)
    manifest = Manifest.load(folder)
    texts = [
        {"name": f"{number} x", "kept": kept, "read": kept, "dropped": {}}
        for number, kept in ((1, 30), (2, 10))
    ]
    manifest.record("clean", inputs={}, outputs=[], result={"train": {"texts": texts}})
    manifest.save()
    binarize(folder, BinarizeConfig(upper_copies=1))
    assert [each.kept for each in DatasetIndex.load(folder / "bin").texts] == [60, 20]
    # The pairs of a text stay together, though both texts are in one block.
    originals = [pair for pair in decoded(folder, "train") if not pair[0].isupper()]
    assert decoded(folder, "train")[::2] == originals == PAIRS[:40]
    target = ParallelDataset(folder / "bin", "train", vocab_sizes=(300, 300)).target
    limit = target.longest - 1  # some capitals are longer
    binarize(folder, BinarizeConfig(upper_copies=1, max_length=limit))
    index = DatasetIndex.load(folder / "bin")
    num_long = [each.dropped["max_length"] for each in index.texts]
    assert [each.kept for each in index.texts] == [60 - num_long[0], 20 - num_long[1]]
    assert (
        index.num_pairs["train"]
        == 80 - sum(num_long)
        == sum(len(ids) <= limit for ids in target)
        < 80
    )


def test_masked_copies_replace_a_word_and_its_translation(tmp_path, make_dataset):
    folder = make_dataset(tmp_path / "x", {"train": PAIRS}, vocab_size=400)
    binarize(folder, BinarizeConfig(masked_copies=0.5))
    pairs = decoded(folder, "train")
    copies = [pair for pair in pairs if pair not in PAIRS]
    assert [pair for pair in pairs if pair in PAIRS] == PAIRS
    assert len(copies) == pytest.approx(200, abs=40)
    for source, target in copies:
        assert sorted(re.findall(r"QX\d", source)) == sorted(re.findall(r"QX\d", target)) != []


def test_a_tag_is_never_masked():
    [(source, target)] = copy_of("masked", "<2fr> Ada", "Ada", tags=["<2fr>"])
    assert source == f"<2fr> {target}"
    assert re.fullmatch(r"(Ada )?QX\d( Ada)?", target)
    assert copy_of("masked", "<2fr> one", "2fr", tags=["<2fr>"]) == []


def test_copies_of_trees_are_refused(tmp_path, make_dataset):
    folder = make_dataset(tmp_path / "x", {"train": PAIRS[:40]}, vocab_size=300)
    path = folder / "manifest.json"
    content = path.read_text()
    assert '"task": "translation"' in content
    path.write_text(content.replace('"task": "translation"', '"task": "parsing"'))
    with pytest.raises(UsageError, match="copies need text on both sides"):
        binarize(folder, BinarizeConfig(title_copies=0.1))
