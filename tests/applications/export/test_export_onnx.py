"""tfm export --format onnx: ONNX Runtime computes the same model."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import number_pairs

from tfm.applications.export import check
from tfm.commands.export import export
from tfm.commands.translator import Translator
from tfm.config import SearchConfig
from tfm.errors import UsageError
from tfm.folders.model_folder import ModelFolder

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "export.md"
LINES = ["", *[source for source, _ in number_pairs("test", num_pairs=6, seed=1)]]
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1}


def padded_and_alone(exported):
    """Return the logits of a sentence in a batch with a longer one, and of itself."""
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
    return padded, alone


def test_the_loop_of_the_guide_and_the_check_find_the_translations_of_greedy_search(make_model):
    shape = {"norm": "pre", "activation": "silu", "d_k": 3, "d_v": 7, "tied_embeddings": "none"}
    path = make_model(**SMALL, **shape, joint=True)
    exported = export(path, format="onnx").out_dir
    [example] = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)
        if "onnxruntime" in block
    ]
    names = {}
    exec(re.sub(r'folder = ".*"', f"folder = {str(exported)!r}", example), names)
    config = SearchConfig(beam_size=1, length_penalty=0.0)
    model = Translator.load(path, device="cpu", precision="fp32")
    expected = model.translate(LINES[1:], config)
    assert [names["translate"](line) for line in LINES[1:]] == expected
    assert len(set(expected)) > 4
    agreement = check.compare(ModelFolder(path), exported, LINES, "onnx")
    assert (agreement.num_lines, agreement.differences) == (6, [])
    assert (agreement.program, agreement.beam_size) == ("ONNX Runtime", 1)
    assert 0 < agreement.max_error < 1e-4
    padded, alone = padded_and_alone(exported)
    assert padded == pytest.approx(alone, abs=1e-4)


@pytest.mark.slow
def test_both_compute_a_model_with_learned_positions(make_model):
    path = make_model(**SMALL, learned_positions=200)
    exported = export(path, format="onnx").out_dir
    agreement = check.compare(ModelFolder(path), exported, ["7 cars", "9"], "onnx")
    assert agreement.differences == []
    assert 0 < agreement.max_error < 1e-4


@pytest.mark.parametrize("shape", [{"attention_window": 3}, {"attention": "additive"}])
def test_what_cannot_be_expressed_is_refused(make_model, tmp_path, shape):
    model = make_model(**shape)
    with pytest.raises(UsageError, match=f"ONNX files cannot express {next(iter(shape))}"):
        export(model, format="onnx")
    assert list(tmp_path.iterdir()) == [model]
