"""Word alignments from attention."""

import json
from dataclasses import replace

import pytest
import torch
from foreign_models import PAIRS, segmenter
from small_models import recurrent

from tfm.features.align import alignment
from tfm.features.align.alignment import grow_diagonal
from tfm.features.align.heads import AlignmentModel
from tfm.features.align.step import Align
from tfm.folders.model_folder import ModelFolder
from tfm.model.attention_weights import cross_attention
from tfm.text.units import units
from tfm.translation.steps import Output, Segment
from tfm.vocabulary.foreign import with_fixed_ids
from tfm.vocabulary.subword import BOS, EOS, SubwordModel, Vocabulary

SOURCES = ["I am buying a red hat", "", "seven", "on Monday the third of May", "seven"]
TARGETS = ["ich kaufe einen roten Hut", "nichts", "", "am Montag, dem dritten Mai", "sieben"]


@pytest.fixture
def aligner(trained_run):
    return AlignmentModel(ModelFolder.open(trained_run), "cpu").aligner


def test_links_are_the_greatest_weights_of_the_chosen_heads(aligner):
    [found] = replace(aligner, heads=[1]).align(SOURCES[:1], TARGETS[:1])
    vocabulary = aligner.vocabulary
    [source], [target] = (
        model.encode(texts[:1])
        for model, texts in ((vocabulary.source, SOURCES), (vocabulary.target, TARGETS))
    )
    weights = cross_attention(
        aligner.model,
        torch.tensor([[*source, EOS]]),
        torch.tensor([len(source) + 1]),
        torch.tensor([[BOS, *target]]),
    )[0, 0, 1]
    expected = set()
    for row in range(len(target)):
        at = int(weights[row].argmax())
        if at < len(source):
            pieces = vocabulary.source.pieces(source[: at + 1])
            target_pieces = vocabulary.target.pieces(target[: row + 1])
            word, target_word = (
                sum(piece.startswith("▁") for piece in each) - 1 for each in (pieces, target_pieces)
            )
            expected.add((word, target_word))
    assert set(found) == expected


def test_recurrent_models_align_too(aligner):
    model = recurrent(len(aligner.vocabulary.source))
    found = replace(aligner, model=model, heads=[0]).align(SOURCES, TARGETS)
    assert len(found) == len(SOURCES)
    assert {target for _, target in found[0]} <= {0, 1, 2, 3, 4}


def test_alignments_do_not_depend_on_the_batch(aligner, monkeypatch):
    expected = [aligner.align([s], [t])[0] for s, t in zip(SOURCES, TARGETS, strict=True)]
    assert aligner.align(SOURCES, TARGETS) == expected
    assert aligner.align(SOURCES[::-1], TARGETS[::-1]) == expected[::-1]
    monkeypatch.setattr(alignment, "_BATCH_POSITIONS", 1)
    assert aligner.align(SOURCES, TARGETS) == expected
    assert expected[1:3] == [(), ()]  # an empty side


def test_words_are_those_that_white_space_separates_in_the_text(aligner):
    spaced, invisible = "on \t Monday  ", "on \N{ZERO WIDTH SPACE} Mon\N{SOFT HYPHEN}day"
    [(plain, _), (other, _), (extra, _)] = aligner.encode(
        ["on Monday", spaced, invisible], ["am", "am", "am"]
    )
    assert plain == other
    assert extra.ids == plain.ids
    assert [*dict.fromkeys(plain.words)] == [(0,), (1,)]
    assert [*dict.fromkeys(extra.words)] == [(0,), (2,)]  # the second word is invisible


@pytest.mark.parametrize("by_units", [False, True])
def test_words_are_those_of_the_text_however_a_foreign_model_spells_them(
    aligner, tmp_path, by_units
):
    content = with_fixed_ids(segmenter(source for source, _ in PAIRS), origin=tmp_path)
    model = SubwordModel(content, origin=tmp_path)
    vocabulary = Vocabulary(model, model, tags=(">>fra<<",))
    text = ">>fra<<it´s \ufffd … ½ ﷺ seven"  # the model spells these with other spaces and letters
    [(side, _)] = replace(aligner, vocabulary=vocabulary, by_units=by_units).encode([text], ["x"])
    last = model.pieces(side.ids).index("▁seven")
    assert side.words[last] == (len(units(text) if by_units else text.split()) - 1,)


def test_growing_adds_neighbors_that_align_new_words():
    one = {(0, 0), (1, 1), (2, 1), (5, 3)}
    other = {(0, 0), (1, 1), (1, 2), (4, 0)}
    # (2, 1) and (1, 2) are next to (1, 1); (5, 3) and (4, 0) are next to no link.
    assert grow_diagonal(one, other) == {(0, 0), (1, 1), (2, 1), (1, 2)}
    assert grow_diagonal(other, one) == grow_diagonal(one, other)
    assert grow_diagonal({(0, 1)}, {(1, 0)}) == set()


def test_a_column_or_field_has_the_alignment(run, trained_run, elsewhere):
    (elsewhere / "in.en").write_text("I am buying a red hat\n\nseven\n", encoding="utf-8")
    command = ("generate", trained_run, "--input", "in.en", "--device", "cpu")
    _, plain, _ = run(*command)
    code, aligned, _ = run(*command, "--align")
    assert code == 0
    columns = [line.split("\t") for line in aligned.split("\n")[:-1]]
    assert [text for text, _ in columns] == plain.split("\n")[:-1]
    assert columns[1] == ["", ""]
    _, listed, _ = run(*command, "--align", "--json")
    records = [json.loads(line)["translations"][0] for line in listed.splitlines()]
    for (_, column), record in zip(columns, records, strict=True):
        assert column == " ".join(f"{s}-{t}" for s, t in record["alignment"])
    _, unaligned, _ = run(*command, "--json")
    assert "alignment" not in unaligned


def test_given_targets_are_aligned(run, trained_run, elsewhere):
    (elsewhere / "in.en").write_text("\n".join(SOURCES) + "\n", encoding="utf-8")
    (elsewhere / "in.de").write_text("\n".join(TARGETS) + "\n", encoding="utf-8")
    command = ("generate", trained_run, "--input", "in.en", "--score-target", "in.de")
    code, out, _ = run(*command, "--device", "cpu", "--align")
    assert code == 0
    expected = AlignmentModel(ModelFolder.open(trained_run), "cpu").aligner.align(SOURCES, TARGETS)
    found = [line.split("\t")[-1] for line in out.split("\n")[:-1]]
    assert found == [" ".join(f"{s}-{t}" for s, t in links) for links in expected]


@pytest.mark.parametrize("flags", [["--align"], ["--mbr", "chrf", "--n-best", "2"]])
def test_parsers_have_no_texts_to_compare_or_align(run, make_model, elsewhere, flags):
    (elsewhere / "in.en").write_text("seven\n", encoding="utf-8")
    code, out, err = run("generate", make_model(task="parsing"), "--input", "in.en", *flags)
    assert (code, out) == (2, "")
    assert "pars" in err or "trees" in err


def test_the_tag_is_read_before_each_source_but_has_no_links(aligner, trained_run):
    step = Align([ModelFolder.open(trained_run)], "cpu", "<2x>")
    outputs = [[Output(text, score=0.0, log_prob=0.0)] for text in TARGETS]
    found = step.after([Segment(1, source) for source in SOURCES], outputs)
    expected = aligner.align([f"<2x> {source}" for source in SOURCES], TARGETS)
    assert [n_best[0].alignment for n_best in found] == [
        tuple((source - 1, target) for source, target in links if source) for links in expected
    ]


@pytest.mark.parametrize("tag", [None, "<2x>"])
def test_units_are_linked_by_their_spans(trained_run, tag):
    step = Align([ModelFolder.open(trained_run)], "cpu", tag)
    source, target = "I am (buying) 中文 hat", "ich kaufe\u00a0Hu\u0308te 👍🏽."
    links, empty = step.align_units([source, ""], [target, target])
    assert links
    assert empty == []
    assert {span for span, _ in links} <= {*units(source)}
    assert {span for _, span in links} <= {*units(target)}


def test_words_that_are_units_have_the_same_links(aligner):
    by_units = replace(aligner, by_units=True).align(SOURCES, [t.replace(",", "") for t in TARGETS])
    assert by_units == aligner.align(SOURCES, [t.replace(",", "") for t in TARGETS])
