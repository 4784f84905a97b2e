"""The estimated size of a recipe's text before it is downloaded."""

import gzip
import io
import tarfile

import pytest

from tfm.data.corpus.loading import load_recipe
from tfm.data.corpus.recipe import Archive, Recipe, TextFiles
from tfm.data.sources import TextSources

TEXT = TextFiles(archive="a.tgz", source="a.en", target="a.de")


def sources(folder, *, mirror=None, **changes):
    settings = {
        "name": "x",
        "source": "en",
        "target": "de",
        "archives": (Archive(url="http://unreachable.invalid/a.tgz", size=1000),),
        "train": (TEXT,),
    }
    return TextSources(
        Recipe(**settings | changes),
        data_dir=folder,
        downloads_dir=folder / "downloads",
        mirror=mirror,
    )


def write(path, num_bytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * num_bytes)


def test_the_text_size_of_a_recipe_is_used(tmp_path):
    size = sources(tmp_path, text_size=700).size()
    assert (size.missing, size.unpacked, size.text, size.is_lower_bound) == (1000, 700, 700, False)


def test_existing_downloads_are_not_missing(tmp_path):
    write(tmp_path / "downloads" / "a.tgz.part", 400)
    assert sources(tmp_path).size().missing == 600
    write(tmp_path / "downloads" / "a.tgz", 1000)
    assert sources(tmp_path).size().missing == 0


def test_unpacked_text_needs_no_more_space(tmp_path):
    write(tmp_path / "raw" / "train-1.en", 300)
    size = sources(tmp_path, text_size=700).size()
    assert (size.unpacked, size.text) == (400, 700)


def test_archives_in_a_mirror_folder_are_not_copied_and_may_be_smaller(tmp_path):
    write(tmp_path / "mirror" / "a.tgz", 50)
    size = sources(tmp_path, mirror=str(tmp_path / "mirror"), text_size=700).size()
    assert size.missing == 0
    assert 50 < size.unpacked == size.text <= 250


@pytest.mark.parametrize(("known", "missing"), [({}, 0), ({"approximate_size": 80}, 80)])
def test_an_archive_of_unknown_size_makes_the_estimate_a_lower_bound(tmp_path, known, missing):
    archives = (Archive(url="http://unreachable.invalid/a.tgz", **known),)
    size = sources(tmp_path, archives=archives).size()
    assert (size.missing, size.is_lower_bound) == (missing, not known)


def test_local_files_are_read_in_place_or_unpacked_if_compressed(tmp_path):
    write(tmp_path / "t.en", 5000)
    (tmp_path / "t.de.gz").write_bytes(gzip.compress(b"word " * 1000))
    text = TextFiles(source=str(tmp_path / "t.en"), target=str(tmp_path / "t.de.gz"))
    size = sources(tmp_path, archives=(), train=(text,)).size()
    assert size.missing == 0
    assert size.text == 5000 + size.unpacked
    assert size.unpacked > (tmp_path / "t.de.gz").stat().st_size


def test_an_approximate_size_does_not_change_the_fingerprint(tmp_path):
    url = "http://unreachable.invalid/a.tgz"
    fingerprints = [
        sources(tmp_path, archives=(Archive(url=url, approximate_size=size),)).fingerprint()
        for size in (None, 7)
    ]
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize(("name", "gigabytes"), [("wmt14-en-de", 1.7), ("wmt14-en-fr", 6.7)])
def test_the_sizes_of_the_papers_corpora_are_known(tmp_path, name, gigabytes):
    text_sources = TextSources(load_recipe(name), data_dir=tmp_path, downloads_dir=tmp_path)
    size = text_sources.size()
    assert not size.is_lower_bound
    assert size.missing == pytest.approx(gigabytes * 1e9, rel=0.02)
    assert size.missing / 2 < size.unpacked < size.missing * 3


def test_the_tags_of_iwslt_are_dropped_and_each_nth_pair_is_held_out(tmp_path):
    about = "<url>http://x</url>\n<keywords>talks</keywords>\n<title>A title</title>\n"
    sentences = [f"Sentence {number} < 9\n" for number in range(2, 6)]
    text = about + " <b> is text\n" + "".join(sentences)
    segments = '<mteval>\n<seg id="1"> One &amp; two </seg>\n</mteval>\n'
    content = {
        "d/train.tags.de-en.en": text,
        "d/train.tags.de-en.de": f"<translator href='x'>who</translator>\n{text}",
        "d/dev.en.xml": segments,
        "d/dev.de.xml": segments,
    }
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        for name, member in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(member)
            tar.addfile(info, io.BytesIO(member.encode()))
    files = {"archive": "a.tgz", "source": "d/train.tags.de-en.en"}
    files["target"] = "d/train.tags.de-en.de"
    train = TextFiles(**files, except_every=3)
    valid = TextFiles(**files, every=3)
    test = TextFiles(archive="a.tgz", source="d/dev.en.xml", target="d/dev.de.xml")
    texts = {"train": (train,), "valid": (valid,), "test": (test,)}
    archives = (Archive(url="http://unreachable.invalid/a.tgz"),)
    text_sources = sources(tmp_path, mirror=str(tmp_path), archives=archives, **texts)
    text_sources.unpack(text_sources.fetch())
    read = {
        split: [source.decode() for source, _ in text_sources.pairs(each, split)]
        for split, (each,) in texts.items()
    }
    lines = ["A title", " <b> is text", *(line.rstrip("\n") for line in sentences)]
    assert read["valid"] == lines[2::3]
    assert read["train"] == [line for line in lines if line not in read["valid"]]
    assert read["test"] == ["One & two"]
