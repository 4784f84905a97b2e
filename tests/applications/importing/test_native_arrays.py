"""Arrays of Marian's files are read as NumPy wrote them, and damaged or hostile ones refused."""

import io
import warnings
import zipfile

import numpy as np
import pytest
import torch
from native_models import new_native

from tfm.applications.importing import native
from tfm.commands.import_model import import_model
from tfm.errors import CheckpointError
from tfm.folders.model_folder import ModelFolder


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_written(tmp_path, save):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(6, dtype=np.float16).reshape(2, 3).T,
        "special:model.yml": np.frombuffer(b"a: 1\0", dtype=np.int8),
        "empty": np.zeros((0, 3)),
    }
    save(tmp_path / "x.npz", **arrays)
    found = native._read_arrays(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    for name, each in arrays.items():
        assert found[name].dtype == each.dtype
        assert np.array_equal(found[name], each)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("order", "<>")
def test_numbers_of_any_size_and_byte_order_become_those_of_this_machine(tmp_path, kind, order):
    numbers = np.arange(6).reshape(2, 3).astype(order + kind)
    np.savez(tmp_path / "x.npz", a=numbers, b=numbers.T)
    found = native._read_arrays(tmp_path / "x.npz")
    assert all(each.dtype == np.dtype(kind) for each in found.values())
    assert torch.from_numpy(found["a"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.from_numpy(found["b"]).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_weights_of_another_machine_give_an_equal_model(tmp_path, kind):
    pytest.importorskip("transformers")
    new_native(tmp_path / "marian")
    path = tmp_path / "marian" / "model.npz"
    with np.load(path) as arrays:
        weights = {name: arrays[name] for name in arrays}
    digests = set()
    for order in "<>":
        changed = {
            k: each.astype(order + kind if each.dtype.kind == "f" else each.dtype)
            for k, each in weights.items()
        }
        np.savez(path, **changed)
        out = import_model(path, out=tmp_path / f"ours{len(digests)}").out_dir
        digests.add(ModelFolder(out).weights_digest)
    assert len(digests) == 1


def member(header, content=bytes(24)):
    text = f"{header}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x09\x00",
        member("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), }"),
        member("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 60,), }"),
        member(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({1 << 60},), }}"),
        member("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3), }"),
        member("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"),
        member("{'descr': '<f2', 'fortran_order': False, 'shape': (13,), }"),
        member("{'descr': '<f2', 'fortran_order': False, 'shape': (150,), }", bytes(600)),
        member("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", bytes(16)),
        member("{'descr': '|b1', 'fortran_order': False, 'shape': (24,), }"),
        member("{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }"),
        member("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }"),
        member("__import__('os').system('touch canary')"),
        member("-" * 5000 + "1"),
        member("(" * 100),
    ],
    ids=lambda content: repr(content[10:60]),
)
def test_members_that_are_no_arrays_of_numbers_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("x.npz", "w") as file:
        file.writestr("a.npy", content)
    with pytest.raises(
        CheckpointError, match=r"^x\.npz is damaged, or no file of NumPy"
    ) as refused:
        native._read_arrays(tmp_path.relative_to(tmp_path) / "x.npz")
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_a_pickle_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match="is damaged"):
        native._read_arrays(tmp_path / "x.npz")


def test_arrays_that_expand_too_much_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "ALWAYS_ALLOWED_BYTES", 1000)
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros((1000, 1000)))
    with pytest.raises(CheckpointError, match="is damaged"):
        native._read_arrays(tmp_path / "x.npz")


def test_each_changed_byte_is_refused_or_harmless(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.ones((2, 2), dtype=np.float32))
    original = buffer.getvalue()
    path = tmp_path / "x.npz"
    for place in range(0, len(original), 3):
        path.write_bytes(original[:place] + bytes([original[place] ^ 0x55]) + original[place + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                found = native._read_arrays(path)
            except CheckpointError:
                continue
        assert all(np.array_equal(each, np.ones((2, 2))) for each in found.values())
