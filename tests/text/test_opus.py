"""Corpora of OPUS by name, from a folder in its layout: text, checksums, one line for mistakes."""

import gzip
import hashlib
import json
import zipfile
from http.server import SimpleHTTPRequestHandler

import pytest

from tfm.commands.prepare import prepare_recipe as prepare
from tfm.errors import UsageError
from tfm.text.corpus.loading import load_recipe
from tfm.text.corpus.texts import TextFiles
from tfm.text.sources import Downloads

SOURCES = [f"line {number} of the text\n" for number in range(20)]
TARGETS = [f"Zeile {number} des Textes\n" for number in range(20)]
ZIP = "OPUS-Europarl/v8/moses/de-en.txt.zip"
RECIPE = """
name = "mine"
source = "en"
target = "de"

[[train]]
opus = "Europarl/v8"
"""


@pytest.fixture
def mirror(tmp_path):
    path = tmp_path / "mirror" / ZIP
    path.parent.mkdir(parents=True)
    write_corpus(path)
    return tmp_path / "mirror"


@pytest.fixture
def recipe_path(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def prepare_text(recipe_path, mirror, tmp_path):
    """Prepare from the folder; return the sources of the training text."""

    def run(*, force=False, **options):
        recipe, out = load_recipe(str(recipe_path)), tmp_path / "data"
        downloads = Downloads(**{"mirror": str(mirror), **options})
        prepare(recipe, out, downloads=downloads, text_only=True, force=force)
        return (out / "train.en").read_text()

    return run


@pytest.fixture
def fail(run, recipe_path, mirror, tmp_path):
    """Run tfm prepare, which fails; return its exit code and its last line."""

    def fail():
        out = ("--out", tmp_path / "data", "--mirror", mirror, "--text-only")
        code, _, err = run("prepare", recipe_path, *out)
        return code, err.splitlines()[-1]

    return fail


def write_corpus(path, *, name="Europarl.de-en", sources=SOURCES):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("README", "about")
        packed.writestr(f"{name}.de", "".join(TARGETS))
        packed.writestr(f"{name}.en", "".join(sources))


def checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_name_of_a_corpus_stands_for_an_archive_and_its_members(recipe_path):
    recipe_path.write_text(
        RECIPE + 'tag = "<ep>"\nweight = 2\nlines = 20\nsha256 = "%s"' % ("0" * 64)
    )
    recipe = load_recipe(str(recipe_path))
    assert recipe.train == (
        TextFiles(
            archive=ZIP,
            source="Europarl.de-en.en",
            target="Europarl.de-en.de",
            tag="<ep>",
            weight=2.0,
            lines=20,
        ),
    )
    (archive,) = recipe.downloads()
    assert archive.url == f"https://object.pouta.csc.fi/{ZIP}"
    assert (archive.name, archive.sha256) == (ZIP, "0" * 64)


def test_corpora_with_files_of_equal_names_and_other_languages_are_told_apart(recipe_path):
    text = RECIPE.replace('"de"', '"de+zh"').replace("v8", 'v8"\nlanguages = ["en", "de"]#')
    more = '[[train]]\nopus = "TED2020/v1"\nlanguages = ["en", "zh_CN"]\n'
    again = '[[valid]]\nopus = "Europarl/v8"\nlanguages = ["en", "de"]\n'
    recipe_path.write_text(text + more + again)
    recipe = load_recipe(str(recipe_path))
    names = [file.name for file in recipe.downloads()]
    assert names == [ZIP, "OPUS-TED2020/v1/moses/en-zh_CN.txt.zip"]
    assert recipe.train[1].target == "TED2020.en-zh_CN.zh_CN"


def test_members_of_older_releases_have_other_names(prepare_text, mirror):
    write_corpus(mirror / ZIP, name="Europarl8.de-en")
    assert prepare_text() == "".join(SOURCES)


def test_a_corpus_is_read_from_a_folder_or_a_server_in_the_layout_of_opus(
    prepare_text, mirror, serve, tmp_path, monkeypatch
):
    assert prepare_text() == "".join(SOURCES)
    monkeypatch.setenv("no_proxy", "*")
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    url = serve(lambda *args: handler(*args, directory=str(mirror)))
    assert prepare_text(mirror=url) == "".join(SOURCES)
    assert (tmp_path / "data" / "downloads" / ZIP).is_file()


def test_a_file_that_is_not_that_of_the_first_download_is_refused_also_with_force(
    prepare_text, mirror, tmp_path, fail
):
    prepare_text()
    first, record = checksum(mirror / ZIP), tmp_path / "data" / "checksums.json"
    url = f"https://object.pouta.csc.fi/{ZIP}"
    assert json.loads(record.read_text()) == {url: first}
    write_corpus(mirror / ZIP, sources=[line.upper() for line in SOURCES])
    code, line = fail()
    assert code == 1
    assert (
        f"{ZIP} does not match its first download, which checksums.json of the dataset records"
        in line
    )
    with pytest.raises(Exception, match=f"is {checksum(mirror / ZIP)}, not {first}"):
        prepare_text(force=True)
    assert "LINE" in prepare_text(verify=False)
    record.unlink()
    assert "LINE" in prepare_text()
    assert json.loads(record.read_text()) == {url: checksum(mirror / ZIP)}


def test_a_damaged_archive_or_another_content_is_one_line(fail, mirror):
    path = mirror / ZIP
    write_corpus(path, name="Europarl.en-de")
    (code, line), missing = fail(), "de-en.de and no de-en.en"
    assert (code, f"{ZIP} has no member {missing}; it holds README" in line) == (1, True)
    path.unlink()
    code, line = fail()
    assert (code, f"has no file {ZIP}: put it there" in line) == (1, True)


MONO = "OPUS-News-Commentary/v16/mono/de.txt.gz"


def test_monolingual_text_is_downloaded_by_name_and_cleaned(
    prepare_text, recipe_path, mirror, tmp_path
):
    (mirror / MONO).parent.mkdir(parents=True)
    (mirror / MONO).write_bytes(gzip.compress(b"Ein  Satz.\n\nEin Satz.\nUnd noch einer.\n\xff\n"))
    (tmp_path / "more.de").write_text("Und noch einer.\nDer letzte.\n")
    mono = '[[mono]]\nlanguage = "de"\n'
    recipe_path.write_text(f'{RECIPE}{mono}opus = "News-Commentary/v16"\n{mono}text = "more.de"\n')
    prepare_text()
    text = (tmp_path / "data" / "mono.de").read_text()
    assert text == "Ein Satz.\nUnd noch einer.\nDer letzte.\n"
    record = json.loads((tmp_path / "data" / "checksums.json").read_text())
    assert record[f"https://object.pouta.csc.fi/{MONO}"] == checksum(mirror / MONO)
    (tmp_path / "more.de").write_text("Ein anderer.\n")
    prepare_text()
    assert (tmp_path / "data" / "mono.de").read_text().endswith("Ein anderer.\n")


MISTAKES = [
    ("Europarl/v8", "Europarl", "opus is 'Europarl', but must be a corpus and its version"),
    ("Europarl/v8", "../v8", "opus is '../v8', but must be a corpus and its version"),
    ('"de"', '"de+fr"', "languages are en, de+fr, but must be two codes"),
    ('v8"', 'v8"\nlanguages = ["en", "../de"]', "languages are en, ../de, but must be two codes"),
    ('v8"', 'v8"\nsha256 = "12"', f"sha256 of {ZIP} must be 64 hexadecimal digits"),
    ('v8"', 'v8"\nsource = "a.en"', "unknown key 'source' in [[train]] 1"),
]
MISTAKES_IN_MONO = [
    ('language = "fr"\nopus = "Europarl/v8"', "[[mono]] 1 is in 'fr', no language to translate"),
    ('language = "de"\nopus = "Europarl/v8"\ntext = "a.de"', "it needs either opus or text"),
    ('language = "de"\nopus = "/v8"', "opus is '/v8', but must be a corpus and its version"),
    ('language = "de"\ntext = "a.de"\nsha256 = "1"', "sha256 is for downloads"),
    ('language = "de"\nopus = "Europarl/v8"\nsha256 = "1"', "must be 64 hexadecimal digits"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((RECIPE.replace(old, new, 1), message) for old, new, message in MISTAKES),
        *((f"{RECIPE}[[mono]]\n{entry}\n", message) for entry, message in MISTAKES_IN_MONO),
    ],
)
def test_a_mistake_in_a_corpus_by_name_is_explained(recipe_path, text, message):
    recipe_path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_recipe(str(recipe_path))
    assert message in str(error.value)
