"""tfm export --format onnx: ONNX Runtime computes the same model."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tfm.config import SearchConfig
from tfm.data.synthetic.corpus import generate_pairs
from tfm.errors import UsageError
from tfm.inference.engine import load_vocabulary
from tfm.inference.translator import Translator
from tfm.stages.export import check
from tfm.stages.export.folder import export
from tfm.stages.export.programs import load_program
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import checkpoints

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

GUIDE = Path(__file__).parents[1] / "docs" / "how-to" / "export.md"
LINES = [source for source, _ in generate_pairs("test", num_pairs=12, seed=1)]


@pytest.fixture(scope="module")
def exported(trained_norms, tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("exported") / "onnx"
    return export(trained_norms["pre"], format_="onnx", out_dir=out_dir).out_dir


def test_the_loop_of_the_guide_finds_the_translations_of_greedy_search(exported, trained_norms):
    [example] = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)
        if "onnxruntime" in block
    ]
    names = {}
    exec(re.sub(r'folder = ".*"', f"folder = {str(exported)!r}", example), names)
    config = SearchConfig(beam_size=1, length_penalty=0.0)
    model = Translator.load(trained_norms["pre"], device="cpu", precision="fp32")
    expected = model.translate(LINES, config)
    assert [names["translate"](line) for line in LINES] == expected
    assert len(set(expected)) > 4


def test_the_check_finds_a_sound_export_identical(exported, trained_norms):
    model = checkpoints(trained_norms["pre"])[-1]
    agreement = check.compare(model, exported, ["", *LINES], "onnx")
    assert (agreement.num_lines, agreement.differences) == (12, [])
    assert (agreement.program, agreement.beam_size) == ("ONNX Runtime", 1)
    assert 0 < agreement.max_error < 1e-4


def test_padding_does_not_change_a_sentence(exported):
    encoder, decoder = (
        onnxruntime.InferenceSession(str(exported / f"{name}.onnx"))
        for name in ("encoder", "decoder")
    )

    def logits(source, lengths, tokens):
        keys, values = encoder.run(None, {"source": source, "lengths": lengths})
        past = {"past_keys": keys[:, :, :, :2], "past_values": values[:, :, :, :2]}
        memory = {"source_keys": keys, "source_values": values}
        return decoder.run(None, {"tokens": tokens, "lengths": lengths, **memory, **past})[0]

    source, lengths = np.array([[9, 8, 7, 2, 99, 99], [5, 6, 7, 8, 9, 2]]), np.array([4, 6])
    [padded, _] = logits(source, lengths, np.array([10, 11]))
    [alone] = logits(source[:1, :4], lengths[:1], np.array([10]))
    assert padded == pytest.approx(alone, abs=1e-4)


def test_both_compute_the_same_token_probabilities_of_an_unusual_model(make_model):
    path = make_model(
        num_encoder_layers=1,
        num_decoder_layers=1,
        activation="silu",
        learned_positions=40,
        d_k=3,
        d_v=7,
        tied_embeddings="none",
    )
    vocabulary = load_vocabulary(path, load_info(path))
    lines, targets = ["seven cars", "7"], ["sieben Autos", ""]
    program = load_program(export(path, format_="onnx").out_dir, "onnx", vocabulary, SearchConfig())
    theirs = program.log_probs(lines, vocabulary.target.encode(targets))
    ours = Translator.load(path, device="cpu", precision="fp32").score_targets(lines, targets)
    for our, their in zip(ours, theirs, strict=True):
        assert their == pytest.approx(our.piece_log_probs, abs=1e-4)


@pytest.mark.parametrize("shape", [{"attention_window": 3}, {"attention": "additive"}])
def test_what_cannot_be_expressed_is_refused(make_model, tmp_path, shape):
    model = make_model(**shape)
    with pytest.raises(UsageError, match=f"ONNX files cannot express {next(iter(shape))}"):
        export(model, format_="onnx")
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_what_to_install(make_model, monkeypatch, package):
    model = make_model()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf'{package} is not installed.*"tfm-mt\[onnx\]"'):
        export(model, format_="onnx")
