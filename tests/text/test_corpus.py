"""Recipes: those that come with tfm, those of users, and error messages for mistakes."""

import pytest

from tfm.config import BinarizeConfig, CleaningConfig, SearchConfig, SubwordConfig, settings_from
from tfm.dataset.manifest import SPLITS
from tfm.errors import DETAIL, UsageError
from tfm.text.corpus.loading import (
    builtin_recipes,
    load_recipe,
    recipe_from_files,
    recipe_from_trees,
)
from tfm.text.corpus.texts import OpusArchive, TreeFile

MINIMAL = """
name = "tiny"
source = "en"
target = "de"

[[archives]]
url = "https://example.org/files/tiny.tgz"

[[train]]
archive = "tiny.tgz"
source = "a.en"
target = "a.de"
"""


def touched(folder, *names):
    for name in names:
        (folder / name).touch()
    return tuple(folder / name for name in names)


@pytest.fixture
def load(tmp_path):
    def load_text(text):
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return load_recipe(str(path))

    return load_text


@pytest.mark.parametrize("name", builtin_recipes())
def test_each_builtin_recipe_is_valid_and_named_like_its_file(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    if recipe.task == "translation":
        assert name.endswith(f"{recipe.source}-{recipe.target}")
    assert recipe.description
    assert all(recipe.texts(split) for split in SPLITS)
    assert not list(recipe.problems())
    for kind in (CleaningConfig, SubwordConfig, BinarizeConfig, SearchConfig):
        settings_from(kind, recipe.settings(kind.section))


@pytest.mark.parametrize("name", builtin_recipes())
def test_each_download_of_a_builtin_recipe_is_used_and_verified(name):
    recipe = load_recipe(name)
    used = {text.archive for text in recipe.text_files()}
    loose = {side for text in recipe.text_files() for side in text.sides}
    for file in recipe.downloads():
        assert file.name in used or file.url in loose
        # Otherwise nobody published a checksum: that of the first download is recorded.
        assert file.has_checksum or isinstance(file, OpusArchive) or name == "iwslt14-de-en"


@pytest.mark.parametrize(("name", "vocab_size"), [("wmt14-en-de", 37_000), ("wmt14-en-fr", 32_000)])
def test_wmt14_recipes_follow_the_paper(name, vocab_size):
    recipe = load_recipe(name)
    assert recipe.subword["vocab_size"] == vocab_size
    assert "newstest2013" in recipe.valid[0].source
    assert "test-full/newstest2014" in recipe.test[0].source
    assert recipe.test[0].lines == 3003


def test_the_error_for_an_unknown_name_lists_the_recipes():
    with pytest.raises(UsageError, match=r"'wmt15': .*wmt14-en-de"):
        load_recipe("wmt15")
    with pytest.raises(UsageError, match=r"'multi30k': did you mean multi30k-en-de\?"):
        load_recipe("multi30k")


def test_the_cleaning_of_a_text_completes_that_of_the_recipe(load):
    text = f"{MINIMAL}cleaning = {{ min_identified_characters = 0 }}\n"
    with pytest.raises(UsageError, match=r"min_identified_characters has no effect without drop"):
        load(text)
    recipe = load(f"{text}\n[cleaning]\ndrop_other_language = true\n")
    assert recipe.train[0].cleaning == {"min_identified_characters": 0}


def test_all_mistakes_in_a_recipe_are_reported_together(load):
    text = MINIMAL.replace('target = "de"', 'target = "d e"\ncolor = 1').replace(
        'target = "a.de"', 'targets = "a.de"'
    )
    text += """
[[valid]]
archive = "other.tgz"
source = "v.en"
target = "v.de"
lines = "many"

[cleaning]
max_chars = 3

[subword]
vocab_size = 1
"""
    with pytest.raises(UsageError) as caught:
        load(text)
    lines = {line: number for number, line in enumerate(text.splitlines(), 1)}
    title, *mistakes = str(caught.value).split("\n  ")
    assert title == f"{len(mistakes)} mistakes:"
    for line, part in [
        ("color = 1", "unknown key 'color' in the recipe: choose from"),
        ('targets = "a.de"', "unknown key 'targets' in [[train]] 1: did you mean target?"),
        ("[[train]]", "target is missing in [[train]] 1"),
        ('lines = "many"', "lines in [[valid]] 1 is 'many'"),
        (
            "max_chars = 3",
            "unknown setting 'max_chars' in [cleaning]: did you mean max_characters?",
        ),
        ("vocab_size = 1", "vocab_size is 1"),
    ]:
        assert any(f"recipe.toml:{lines[line]}: {part}" in each for each in mistakes), mistakes


def test_paths_in_a_recipe_are_relative_to_its_folder(load, tmp_path):
    touched(tmp_path, "my.en", "my.de.gz")
    recipe = load(
        'name = "x"\nsource = "en"\ntarget = "de"\n'
        '[[train]]\nsource = "my.en"\ntarget = "my.de.gz"\n'
    )
    assert recipe.local_paths() == [tmp_path / "my.en", tmp_path / "my.de.gz"]


def test_a_download_outside_archives_gets_its_checksum_from_the_archives_table(load):
    url = "https://example.org/a.en.gz"
    recipe = load(
        'name = "x"\nsource = "en"\ntarget = "de"\n'
        f'[[archives]]\nurl = "{url}"\nmd5 = "{"0" * 32}"\n'
        f'[[train]]\nsource = "{url}"\ntarget = "https://example.org/a.de.gz"\n'
    )
    assert [(file.name, file.has_checksum) for file in recipe.downloads()] == [
        ("a.en.gz", True),
        ("a.de.gz", False),
    ]


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (("news.en", "news.de"), ("en", "de")),
        (("news.en.gz", "news.pt_BR.xz"), ("en", "pt_BR")),
        (("src.txt", "tgt.txt"), ("source", "target")),
        (("one.en", "two.en"), ("source", "target")),
        (("text.tsv", "text.tsv"), ("source", "target")),
    ],
)
def test_languages_are_taken_from_file_names(tmp_path, names, languages, capsys):
    pair = touched(tmp_path, *names)
    recipe = recipe_from_files(name="mine", train=[pair])
    assert (recipe.source, recipe.target) == languages
    is_warned = "--languages en de" in capsys.readouterr().err
    assert is_warned == (languages == ("source", "target"))
    if names[0] == names[1]:
        recipe_from_files(name="mine", train=[pair], languages=("en", "de"))
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("train", "valid", "languages"),
    [
        (("t.de", "t.en"), ("v.en", "v.de"), None),
        (("t.de", "t.en"), ("v.src", "v.de"), None),
        (("t.deu", "t.eng_Latn"), ("v.eng", "v.deu"), None),
        (("t.en", "t.de"), ("v.en", "v.de"), ("de", "en")),
    ],
)
def test_names_that_contradict_each_other_about_languages_are_refused(
    tmp_path, train, valid, languages
):
    train, valid = ([touched(tmp_path, *names)] for names in (train, valid))
    with pytest.raises(UsageError, match=r"\.(eng?|fr|de) where text in (en|de) is expected"):
        recipe_from_files(name="x", train=train, valid=valid, languages=languages)


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (("v.en_GB", "v.de-AT"), None),
        (("v.eng_Latn", "v.deu"), None),
        (("v.tok", "v.tok2"), None),
        (("v.src", "v.tgt"), ("en", "de")),
    ],
)
def test_names_that_say_nothing_else_about_languages_are_taken(tmp_path, names, languages):
    train, valid = ([touched(tmp_path, *each)] for each in (("t.en", "t.de"), names))
    recipe = recipe_from_files(name="x", train=train, valid=valid, languages=languages)
    assert (recipe.source, recipe.target) == ("en", "de")


@pytest.mark.parametrize("names", [("a.txt", "a.txt"), ("a.tsv", "b.de"), ("b.de", "a.tsv.gz")])
def test_one_file_for_both_sides_must_be_tsv_and_alone(tmp_path, names):
    pair = touched(tmp_path, *names)
    with pytest.raises(UsageError, match=r"give (two files|it alone)"):
        recipe_from_files(name="x", train=[pair])


PARSING = """
name = "wsj"
source = "words"
target = "trees"
task = "parsing"

[[archives]]
url = "https://example.org/wsj.tgz"

[[train]]
archive = "wsj.tgz"
trees = "wsj/02.mrg"

[[valid]]
trees = "wsj/22.mrg"
archive = "wsj.tgz"
"""


def test_a_text_of_trees_has_one_file(load):
    recipe = load(PARSING)
    assert recipe.train == (TreeFile(archive="wsj.tgz", trees="wsj/02.mrg"),)
    assert recipe.train[0].sides == ("wsj/02.mrg",)
    assert recipe.task == "parsing"


def test_parsing_has_its_own_defaults_for_cleaning_and_search(load):
    recipe = load(PARSING)
    cleaning = settings_from(CleaningConfig, recipe.settings("cleaning"))
    assert not any((cleaning.max_length_ratio, cleaning.max_characters, cleaning.drop_duplicates))
    search = settings_from(SearchConfig, recipe.settings("search"))
    assert (search.beam_size, search.length_penalty, search.max_extra_length) == (21, 0.3, 300)
    assert load(MINIMAL).settings("search") == {}
    recipe = load(PARSING + "[search]\nbeam_size = 4\n[subword]\nvocab_size = 290\n")
    assert recipe.settings("search") == {
        "beam_size": 4, "length_penalty": 0.3, "max_extra_length": 300
    }  # fmt: skip
    assert recipe.settings("subword") == {"separate": True, "target_words": True, "vocab_size": 290}


def test_a_folder_stands_for_all_files_of_trees_in_it(tmp_path):
    for name in ("wsj/03/b.mrg", "wsj/02/c.mrg.gz", "wsj/02/a.txt", "wsj/README", "dev.trees"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    recipe = recipe_from_trees(
        name="x", train=[tmp_path / "wsj"], valid=[tmp_path / "dev.trees", tmp_path / "wsj" / "03"]
    )
    assert [text.trees.removeprefix(f"{tmp_path}/") for text in recipe.train] == [
        "wsj/02/a.txt",
        "wsj/02/c.mrg.gz",
        "wsj/03/b.mrg",
    ]
    assert len(recipe.valid) == 2
    assert recipe.task == "parsing"


def test_all_missing_trees_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"has no files of trees \(\.mrg.*a\.mrg does not exist"):
        recipe_from_trees(name="x", train=[tmp_path, tmp_path / "a.mrg"])


# --- mistakes

WEIGHTED = "archive = 'tiny.tgz'\nsource = 'a.en'\ntarget = 'a.de'\nweight = 1"
ADDED = [  # to a recipe
    ("weight = 0", "weight is 0, but must be from 0.000001"),
    ("weight = nan", "weight in [[train]] 1 is nan, but must be"),
    ("every = 1", "every is 1, but must be at least 2"),
    ('tag = "bt"', "tag is 'bt', but must be a name in angle brackets, such as <bt>"),
    ('tag = "<s>"', "tag is <s>, but must not be a piece that every vocabulary has"),
    ("cleaning = { max_chars = 1 }", "'max_chars' in [cleaning]: did you mean max_characters"),
    ("cleaning = { max_characters = -1 }", "max_characters is -1, but must be at least 0"),
    ("cleaning = { normalize_space = true }", "normalize_space holds for all texts"),
    ("cleaning = { normalize_unicode = true }", "normalize_unicode holds for all texts"),
    ("augmentation = { upper = 1 }", "'upper' in [augmentation]: did you mean upper_share"),
    ("augmentation = { typo_share = 2 }", "typo_share is 2.0, but must be at most 1"),
    ("[[train]]\n" + WEIGHTED, "1 has no weight, but"),
    ("[[valid]]\n" + WEIGHTED, "only [[train]] texts"),
    ('[search]\ntag = "<bt>"', "tag is no setting of [search] in a recipe"),
    ('[subword]\nsymbols = "<bt> bt"', "symbols in [subword] is 'bt', but must be a name"),
    ('[subword]\nsymbols = "<b> <a> <b>"', "symbols in [subword] have <b> twice"),
    ("[subword]\nvocab_size = 260", "vocab_size is 260, but must be more than 260"),
    ("[subword]\ncharacter_coverage = 0.97", "character_coverage is 0.97, but must be at lea"),
]
URL = "https://example.org/files/tiny.tgz"
NO_FILE = "is not an http or https URL of a file"
REPLACED = [
    ('archive = "tiny.tgz"', 'archive = "huge.tgz"', "huge.tgz"),
    ('target = "de"', 'target = "../de"', "language"),
    ('target = "de"', 'target = "en"', "both"),
    ('name = "tiny"', 'name = "../tiny"', "name"),
    ('tiny.tgz"\n', 'tiny.tgz"\nsha256 = "12"\n', "64"),
    ("[[train]]", "[train]", "[[train]]"),
    ("[[train]]", "[[test]]", "no [[train]]"),
    (
        "[[archives]]",
        "subword = 3\n[[archives]]",
        "subword in the recipe is 3, but must be a table",
    ),
    *((URL, url, NO_FILE) for url in ("http://[", "http://h/", "http://h/..", "file:///a.tgz")),
    *((URL, url, NO_FILE) for url in ("http://h/a%00b", "http://h/%2e%2e", "ftp://h/a")),
    *(
        ('tiny.tgz"\n\n', f'tiny.tgz"\nsize = {number}\n\n', "size in [[archives]] 1 is ")
        for number in ("-1", "9223372036854775808", "0x" + "f" * 5_000)
    ),
]
REPLACED_IN_PARSING = [
    ('task = "parsing"', "", '[[train]] 1 needs task = "parsing", not "translation"'),
    ('trees = "wsj/02.mrg"', 'source = "a"\ntarget = "b"', 'needs task = "translation"'),
    ('"parsing"', '"tagging"', "task in the recipe is 'tagging', but must be one of"),
    ('"wsj/22.mrg"', '"wsj/22.mrg"\nevery = 2', "every and except_every are for translation"),
    ('trees = "wsj/02.mrg"', 'trees = "a"\nsource = "b"', "unknown key 'source'"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((MINIMAL + text, message) for text, message in ADDED),
        *((MINIMAL.replace(old, new, 1), message) for old, new, message in REPLACED),
        *((PARSING.replace(old, new, 1), message) for old, new, message in REPLACED_IN_PARSING),
    ],
    ids=[*(str(each)[:50] for each in ADDED + REPLACED + REPLACED_IN_PARSING)],
)
def test_a_mistake_in_a_recipe_is_explained_in_short(load, text, message):
    with pytest.raises(UsageError) as error:
        load(text)
    assert message in str(error.value)
    assert len(str(error.value)) < 800
    if text.startswith(MINIMAL):  # the other changes make several mistakes
        assert DETAIL not in str(error.value)
