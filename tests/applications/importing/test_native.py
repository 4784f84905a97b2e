"""A model in Marian's own files gives targets the same probability, and its mistakes one line."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from foreign_models import PAIRS, scores_of
from native_models import new_native, settings_of, write_npz

from tfm.commands.import_model import import_model
from tfm.commands.translator import Translator
from tfm.errors import CheckpointError, DataError, TfmError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.vocabulary.subword import Vocabulary

pytest.importorskip("transformers")

LINES, TARGETS = map(list, zip(*PAIRS[:12], strict=True))


def scores_of_both(folder, model, ids):
    ours = Translator.load(folder, device="cpu", precision="fp32")
    vocabulary = Vocabulary.load(folder)
    is_words = not any(piece.startswith("▁") for piece in ids)
    both = [
        [[ids[piece[is_words:]] for piece in side.pieces(each)] for each in side.encode(texts)]
        for side, texts in ((vocabulary.source, LINES), (vocabulary.target, TARGETS))
    ]
    return [each.log_prob for each in ours.score_targets(LINES, TARGETS)], scores_of(model, *both)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("vocabulary", ["spm", "opus", "words"])
def test_an_imported_model_gives_targets_the_same_probability(tmp_path, norm, vocabulary):
    model, ids = new_native(tmp_path / "marian", norm=norm, vocabulary=vocabulary)
    result = import_model(tmp_path / "marian", out=tmp_path / "ours")
    assert (result.languages, result.takes_tokens) == (("en", "de"), vocabulary == "words")
    found, expected = scores_of_both(tmp_path / "ours", model, ids)
    assert found == pytest.approx(expected, abs=2e-3)
    assert len(set(found)) == len(found)


def test_separate_embeddings_are_read_under_older_names_too(tmp_path):
    model, ids = new_native(tmp_path / "marian", tied=False)
    import_model(tmp_path / "marian", out=tmp_path / "ours")
    found, expected = scores_of_both(tmp_path / "ours", model, ids)
    assert found == pytest.approx(expected, abs=2e-3)
    with np.load(tmp_path / "marian" / "model.npz") as arrays:
        # In the byte order of another machine, too.
        weights = {name: arrays[name].astype(">f4") for name in arrays if "special" not in name}
    weights["decoder_ff_logit_out_W"] = weights.pop("decoder_ff_logit_out_Wt").T
    write_npz(tmp_path / "marian" / "model.npz", weights, settings_of())
    import_model(tmp_path / "marian", out=tmp_path / "older")
    contents = [(tmp_path / each / "model.safetensors").read_bytes() for each in ("ours", "older")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("inside", ["", "en-de/", "../../", "C:\\"])
def test_a_zip_archive_is_read_whatever_its_folders(tmp_path, monkeypatch, inside):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "marian"
    new_native(folder, vocabulary="opus")
    archive = tmp_path / "opus-2020-02-26.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in folder.iterdir():
            file.write(path, f"{inside}{path.name}")
        file.writestr("preprocess.sh", "exit 1")
    before = sorted(tmp_path.rglob("*"))
    out = import_model(archive).out_dir
    assert out == Path("models/opus-2020-02-26")
    assert [path for path in sorted(tmp_path.rglob("*")) if "models" not in path.parts] == before
    [ancestor] = ModelFolder(out).info.ancestors
    assert ancestor.path == str(archive)
    import_model(folder, out=tmp_path / "other")
    weights = [(each / "model.safetensors").read_bytes() for each in (out, tmp_path / "other")]
    assert weights[0] == weights[1]


def test_mistakes_in_an_archive_name_the_archive(tmp_path):
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.npz", "no weights")
    with pytest.raises(CheckpointError, match=f"^{archive}/a.npz is damaged"):
        import_model(archive)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("b.txt", "")
    with pytest.raises(UsageError, match=f"^{archive} has neither"):
        import_model(archive)
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("en-de/a.npz", "__MACOSX/en-de/._a.npz", "en-fr/a.npz"):
            file.writestr(name, "")
    with pytest.raises(DataError, match=f"^{archive} has several files a.npz"):
        import_model(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "s2s"}, "tfm has no type s2s"),
        (
            {"transformer-decoder-autoreg": "rnn"},
            "no transformer-decoder-autoreg rnn or dec-cell ssru",
        ),
        ({"transformer-train-position-embeddings": "true"}, "train-position-embeddings true"),
        ({"transformer-tied-layers": "[1, 1]"}, "no transformer-tied-layers 1, 1"),
        ({"transformer-ffn-activation": "gelu"}, "no transformer-ffn-activation gelu"),
        ({"transformer-decoder-dim-ffn": 48}, "transformer-decoder-dim-ffn other than"),
        ({"transformer-postprocess": "dhn"}, "postprocess-top /hn/"),
        ({"dim-emb": "many"}, "d_model"),
        ({"enc-depth": 3}, r"no weight encoder.layers.2.self_attn.q_proj.weight"),
        ({"enc-depth": 1}, "weights without a counterpart in tfm, such as encoder.layers.1"),
        ({"dec-depth": "{"}, "damaged settings .line 2 is not YAML"),
    ],
)
def test_settings_that_tfm_lacks_are_refused_by_name(tmp_path, settings, message):
    new_native(tmp_path / "marian", settings=settings)
    with pytest.raises(TfmError, match=message) as refused:
        import_model(tmp_path / "marian", out=tmp_path / "ours")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "weights",
    [
        {"Wemb": np.zeros((3, 16))},
        {"encoder_l1_self_Wq": np.zeros(16)},
        {"encoder_l1_self_Wq": np.zeros((16, 8))},
        {"encoder_l1_self_Wq": np.full((16, 16), np.nan)},
        {"encoder_l1_self_Wq": np.zeros((16, 16), dtype=np.int8)},
        {"encoder_l1_self_Wq": np.array([["x"]], dtype=object)},
        {"Wpos": np.zeros((64, 16))},
        {"decoder_ff_logit_out_b": np.zeros((1, 3))},
    ],
    ids=str,
)
def test_weights_of_other_kinds_are_refused(tmp_path, weights):
    new_native(tmp_path / "marian", **weights)
    with pytest.raises((CheckpointError, DataError, UsageError)) as refused:
        import_model(tmp_path / "marian", out=tmp_path / "ours")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("</s>: 0\n<unk>: 1\na: 0\n", r"the id of 'a' is '0'"),
        ("</s>: 0\n<unk>: -1\n", r"the id of '<unk>' is '-1'"),
        ("a: 0\nb: 1\n", r"it names 2 of \d+ pieces"),
        ("</s>: 0\n<unk>: 1\n- a\n", "line 3 is not YAML"),
        ("</s>: 0\n</s>: 1\n", "line 2 has a key again"),
        ('</s>: 0\n<unk>: 1\n"\\uD800": 2\n', "line 3 is not YAML"),
    ],
)
def test_a_damaged_vocabulary_is_refused(tmp_path, content, message):
    new_native(tmp_path / "marian", vocabulary="opus")
    (tmp_path / "marian" / "opus.vocab.yml").write_text(content)
    with pytest.raises(DataError, match=rf"opus\.vocab\.yml is no vocabulary .*{message}"):
        import_model(tmp_path / "marian", out=tmp_path / "ours")


def test_a_missing_vocabulary_and_several_models_are_named(tmp_path):
    folder = tmp_path / "marian"
    new_native(folder)
    (folder / "vocab.spm").rename(folder / "x.spm")
    with pytest.raises(DataError, match=r"vocab\.spm is missing"):
        import_model(folder)
    (folder / "decoder.yml").unlink()
    (folder / "README.md").unlink()
    with pytest.raises(UsageError, match="give --source and --target"):
        import_model(folder)
    import_model(folder, out=tmp_path / "out", source="en", target="de")  # the only vocabulary
    (folder / "other.npz").write_bytes(b"")
    with pytest.raises(UsageError, match=r"model\.npz, other\.npz"):
        import_model(folder)
