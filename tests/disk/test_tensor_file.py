"""Tensors and nested values as safetensors files: they are read exactly as they were written."""

import errno
import json
import math
import os
import resource
import stat

import pytest
import safetensors
import safetensors.torch
import torch

from tfm.disk.files import sha256_of
from tfm.disk.tensor_file import read_state, write_state, write_tensors

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def various_tensors():
    torch.manual_seed(0)
    tensors = {str(dtype): (9 * torch.randn(3, 5)).to(dtype) for dtype in DTYPES}
    return tensors | {
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "transposed": torch.randn(3, 4).T,
        "strided": torch.randn(10)[::3],
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "ä/☃": torch.tensor([math.nan, math.inf, -0.0]),
        "large": torch.randn(1_300_000),
    }


def is_same_tensor(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)


def test_the_safetensors_library_reads_the_files(tmp_path):
    tensors = various_tensors()
    write_tensors(tmp_path / "x", tensors, metadata={"note": "ü"})
    loaded = safetensors.torch.load_file(tmp_path / "x")
    assert loaded.keys() == tensors.keys()
    assert all(is_same_tensor(loaded[name], tensors[name]) for name in tensors)
    with safetensors.safe_open(tmp_path / "x", "pt") as file:
        assert file.metadata() == {"note": "ü"}


def test_the_digest_is_the_sha256_of_the_file(tmp_path):
    for tensors in ({}, various_tensors()):
        assert write_tensors(tmp_path / "x", tensors) == sha256_of(tmp_path / "x")


def test_the_umask_decides_who_may_read_the_file(tmp_path):
    umask = os.umask(0o027)
    try:
        write_tensors(tmp_path / "x", {"a": torch.ones(1)})
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # as if the disk were full
    try:
        with pytest.raises(OSError, match=r"File too large.*/x") as caught:
            write_tensors(tmp_path / "x", {"a": torch.ones(1_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


def test_two_tensors_with_the_same_name_are_an_error(tmp_path):
    state = {1: torch.zeros(1), "1": torch.ones(1)}
    with pytest.raises(ValueError, match="two tensors would have the name 1"):
        write_state(tmp_path / "x", state)


def test_a_value_that_is_not_plain_is_an_error(tmp_path):
    with pytest.raises(TypeError):
        write_state(tmp_path / "x", {"path": tmp_path})


def test_a_state_that_was_read_does_not_depend_on_the_file(tmp_path):
    write_state(tmp_path / "x", {"a": torch.ones(100_000)})
    state = read_state(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"")
    assert torch.equal(state["a"], torch.ones(100_000))


def test_the_outline_of_a_state_is_json(tmp_path):
    write_state(tmp_path / "x", {"a": [torch.ones(1), 2]})
    with safetensors.safe_open(tmp_path / "x", "pt") as file:
        outline = json.loads(file.metadata()["state"])
    assert outline == {"mapping": [["a", {"list": [{"tensor": "a/0"}, 2]}]]}


def test_nested_values_are_read_as_they_were_written(tmp_path):
    state = {
        "plain": [1, 2.5, None, True, "ä", -(2**130), (math.inf, ())],
        3: {"": torch.tensor([1.0, math.nan]), "b": [torch.ones(2, dtype=torch.bool), {}]},
    }
    write_state(tmp_path / "x", state)
    assert repr(read_state(tmp_path / "x")) == repr(state)
