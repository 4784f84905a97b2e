"""tfm export: CTranslate2 computes the same model."""

import math
import typing
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import number_pairs

from tfm.applications.export import Quantization, check
from tfm.commands.export import export
from tfm.commands.translator import Translator
from tfm.config import LATEST_NORMALIZATION
from tfm.errors import CheckpointError, DataError
from tfm.folders.model_folder import ModelFolder
from tfm.folders.run_folder import checkpoints
from tfm.folders.saving import save_checkpoint
from tfm.translation import ctranslate2_files
from tfm.vocabulary.subword import Vocabulary

ctranslate2 = pytest.importorskip("ctranslate2")

LINES = ["seven", "I am buying 3 red cars for $5.", "on Monday", "twelve past noon 🙂"]
SHAPES = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "narrow heads": {"d_k": 3, "d_v": 3},
    "narrow keys": {"d_k": 3, "d_v": 7},
    "narrow values": {"d_k": 9, "d_v": 2, "norm": "pre"},
    "two-way tied": {"tied_embeddings": "two-way", "norm": "pre"},
    "untied": {"tied_embeddings": "none"},
    "learned positions": {"learned_positions": 60},
    "odd sizes": {"d_model": 15, "d_ff": 7, "num_heads": 3, "learned_positions": 60},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu"},
    "output bias": {"output_bias": True},
    "deeper decoder": {"num_encoder_layers": 1, "num_decoder_layers": 3},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def pieces(subword_model, lines):
    return [subword_model.pieces(token_ids) for token_ids in subword_model.encode(lines)]


def translations(exported, lines, *, beam_size, max_extra_length=50):
    """Translate with CTranslate2 and the settings that the help names."""
    vocabulary = Vocabulary.load(exported)
    translator = ctranslate2.Translator(str(exported))
    ids = {p: i for i, p in enumerate(vocabulary.target.pieces(range(len(vocabulary.target))))}
    for source in pieces(vocabulary.source, lines):
        limit = len(source) + max_extra_length
        [result] = translator.translate_batch(
            [source],
            beam_size=beam_size,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=limit,
            return_scores=True,
        )
        found = [ids[piece] for piece in result.hypotheses[0]]
        yield vocabulary.target.decode([found])[0], result.scores[0], len(found) == limit


@EVERY_SHAPE
def test_both_compute_the_same_token_probabilities(make_model, shape):
    model = make_model(**shape)
    exported = export(model).out_dir
    vocabulary = Vocabulary.load(exported)
    targets = ["sieben", "acht Autos kosten viel Geld, 🙂", "am Montag", ""]
    ours = Translator.load(model, device="cpu", precision="fp32").score_targets(LINES, targets)
    theirs = ctranslate2.Translator(str(exported)).score_batch(
        pieces(vocabulary.source, LINES), pieces(vocabulary.target, targets)
    )
    for our, their in zip(ours, theirs, strict=True):
        assert tuple(their.tokens) == our.pieces
        assert their.log_probs == pytest.approx(our.piece_log_probs, abs=1e-4)


def test_the_longest_source_of_tfm_has_positions(make_model):
    model = make_model()
    exported = export(model).out_dir
    vocabulary = Vocabulary.load(exported)
    line = "🙂" * 255  # four bytes each
    [our] = Translator.load(model, device="cpu", precision="fp32").score_targets([line], [line])
    [their] = ctranslate2.Translator(str(exported)).score_batch(
        *[pieces(vocabulary.source, [line])] * 2, max_input_length=0
    )
    assert len(their.log_probs) > 1000
    assert their.log_probs == pytest.approx(our.piece_log_probs, abs=1e-3)


@pytest.mark.parametrize("quantization", typing.get_args(Quantization)[1:])
def test_quantized_weights_are_smaller_and_translate(make_model, tmp_path, quantization):
    model = make_model()
    whole = export(model, out=tmp_path / "whole").out_dir / "model.bin"
    exported = export(model, quantization=quantization).out_dir
    assert (exported / "model.bin").stat().st_size < 0.9 * whole.stat().st_size
    assert len(list(translations(exported, LINES[:1], beam_size=2, max_extra_length=5))) == 1


def test_exporting_warns_of_trees_and_of_the_limit_of_learned_positions(make_model, capsys):
    export(make_model(task="parsing"), force=True)
    assert "only tfm generate makes them trees" in capsys.readouterr().err
    exported = export(make_model(learned_positions=20), force=True).out_dir
    assert "stops with an error at longer sources, and without max_decoding_length=19" in (
        capsys.readouterr().err
    )
    assert len(list(translations(exported, ["7"], beam_size=1, max_extra_length=16))) == 1


# --- the check


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_both_find_the_same_translations_without_a_length_penalty(trained_norms, tmp_path, norm):
    result = export(trained_norms[norm], out=tmp_path / "out", check=12)
    agreement = result.agreement
    assert (agreement.num_lines, agreement.differences, agreement.beam_size) == (12, [], 4)
    assert 0 < agreement.max_error < 1e-4


def test_the_check_names_lines_that_differ(trained_norms, tmp_path):
    exported = export(trained_norms["pre"], out=tmp_path / "out").out_dir
    lines = ["", *[source for source, _ in number_pairs("test", num_pairs=8, seed=1)]]
    agreement = check.compare(ModelFolder(checkpoints(trained_norms["post"])[-1]), exported, lines)
    assert (agreement.num_lines, agreement.max_error > 0.1) == (8, True)
    numbers = [each.line_number for each in agreement.differences]
    assert len(numbers) > 2
    assert min(numbers) > 1
    texts = dict(zip(range(1, 10), translations(exported, lines, beam_size=4), strict=True))
    assert all(
        each.theirs == LATEST_NORMALIZATION.output(texts[each.line_number][0]) != each.ours
        for each in agreement.differences
    )


def test_the_check_gives_both_programs_normalized_text(trained_norms, tmp_path):
    exported = export(trained_norms["post"], out=tmp_path / "out").out_dir
    lines = ["on\tMonday", "\u200b", " I am\xa0buying 3 red cars for $5. "]
    agreement = check.compare(ModelFolder(checkpoints(trained_norms["post"])[-1]), exported, lines)
    assert (agreement.num_lines, agreement.differences) == (2, [])
    assert agreement.max_error < 1e-4


def test_an_export_with_other_probabilities_is_not_written(make_model, tmp_path, monkeypatch):
    model = make_model()
    encoding = ctranslate2_files._sinusoids
    monkeypatch.setattr(ctranslate2_files, "_sinusoids", lambda width: encoding(width)[1:])
    with pytest.raises(CheckpointError, match="is not written: log probabilities of CTranslate2"):
        export(model, check=3)
    assert list(tmp_path.iterdir()) == [model]


def test_nan_does_not_pass_the_check():
    agreement = check.Agreement(
        program="CTranslate2", num_lines=1, differences=[], max_error=math.nan, beam_size=4
    )
    with pytest.raises(CheckpointError, match="nan nats"):
        agreement.require_close(Path("out"))


def test_a_check_without_a_test_set_is_refused_before_anything_is_written(make_model, tmp_path):
    model = make_model()
    opened = ModelFolder(model)
    info = opened.info
    opened.info = replace(info, source="de", target="en")
    with pytest.raises(
        DataError, match=r"no test set from de in .*: give text with --check-input, or"
    ):
        check.lines_to_check(opened, 3)
    info = replace(info, data_dir=str(tmp_path / "gone"))
    files = Vocabulary.load(model).files()
    save_checkpoint(model, info, dict(ModelFolder(model).weights()), subword_files=files)
    with pytest.raises(
        DataError, match=r"no test set from en in .*gone.*: give text with --check-input"
    ):
        export(model, check=3)
    assert list(tmp_path.iterdir()) == [model]
    (tmp_path / "text").write_text(" \n\n")
    with pytest.raises(DataError, match=r"no test set from en in .*text: give"):
        export(model, check=2, check_input=tmp_path / "text")
    (tmp_path / "text").write_text("seven\non Monday\nI am\n")
    agreement = export(
        model, out=tmp_path / "out", check=2, check_input=tmp_path / "text"
    ).agreement
    assert (agreement.num_lines, agreement.differences) == (2, [])


# --- the command


def test_the_command_prints_the_folder_and_the_differences(make_model, tmp_path, run, monkeypatch):
    difference = check.Difference(line_number=7, ours="a", theirs="b", gain=0.5, is_cut=True)
    agreement = check.Agreement(
        program="CTranslate2", num_lines=9, differences=[difference] * 7, max_error=0.0, beam_size=4
    )
    monkeypatch.setattr(check, "compare", lambda *_: agreement)
    out_dir = tmp_path / "out"
    code, out, err = run("export", make_model(), "--out", out_dir, "--check", 9)
    assert (code, out) == (0, f"{out_dir}\n")
    assert "export: 2 of 9 translations are identical (beam 4, no length penalty)" in err
    assert err.count("line 7, CTranslate2: b\n    +0.5000 nats, cut off at the maximum") == 5
    assert "… and 2 more" in err
    assert "weights in fp32" in err
