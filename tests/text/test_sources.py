"""The texts of a recipe, as they are read."""

from helpers import write_tar

from tfm.text.corpus.recipe import Recipe
from tfm.text.corpus.texts import Archive, TextFiles
from tfm.text.sources import Downloads, TextSources


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
    write_tar(tmp_path / "a.tgz", {name: text.encode() for name, text in content.items()})
    files = {"archive": "a.tgz", "source": "d/train.tags.de-en.en"}
    files["target"] = "d/train.tags.de-en.de"
    train = TextFiles(**files, except_every=3)
    valid = TextFiles(**files, every=3)
    test = TextFiles(archive="a.tgz", source="d/dev.en.xml", target="d/dev.de.xml")
    texts = {"train": (train,), "valid": (valid,), "test": (test,)}
    archives = (Archive(url="http://unreachable.invalid/a.tgz"),)
    recipe = Recipe(name="x", source="en", target="de", archives=archives, **texts)
    downloads = Downloads(mirror=str(tmp_path))
    text_sources = TextSources(recipe, data_dir=tmp_path, downloads=downloads)
    text_sources.unpack(text_sources.fetch())
    read = {
        split: [source.decode() for source, _ in text_sources.pairs(each, split)]
        for split, (each,) in texts.items()
    }
    lines = ["A title", " <b> is text", *(line.rstrip("\n") for line in sentences)]
    assert read["valid"] == lines[2::3]
    assert read["train"] == [line for line in lines if line not in read["valid"]]
    assert read["test"] == ["One & two"]
