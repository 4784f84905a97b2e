"""Arrays of Marian's files are read as NumPy wrote them, and damaged or hostile ones refused."""

import io
import warnings
import zipfile

import numpy as np
import pytest
import torch

from tfm.applications.importing import native
from tfm.errors import CheckpointError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", "<>")
def test_arrays_of_any_byte_order_become_those_of_this_machine(tmp_path, save, order):
    kinds = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
    expected = {kind: np.arange(6, dtype=kind).reshape(2, 3) for kind in kinds}
    expected |= {f"{kind}.T": each.T for kind, each in expected.items()} | {"": np.zeros((0, 3))}
    save(
        tmp_path / "x.npz",
        **{k: x.astype(x.dtype.newbyteorder(order)) for k, x in expected.items()},
    )
    found = native._read_arrays(tmp_path / "x.npz")
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert found[name].dtype == each.dtype
        assert torch.from_numpy(found[name]).tolist() == each.tolist()


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


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
        saved(np.array([{"a": 1}], dtype=object)),
        member("{'descr': '<f2', 'fortran_order': False, 'shape': (13,), }"),
        member("{'descr': '<f2', 'fortran_order': False, 'shape': (150,), }", bytes(600)),
        *(saved(np.ones(3, dtype=kind)) for kind in ("g", "?", "c8", "S3", "M8[s]")),
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
