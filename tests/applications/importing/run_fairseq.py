"""Run a command of fairseq 0.12.2 in a process: preprocess, train or generate, with its flags."""

import importlib
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from fairseq_features import restore_removed_features


def batches(indices, sizes, max_tokens, max_sentences, _multiple):
    """Cut indices into batches, as fairseq's extension in Cython does, which is not built."""
    found, batch = [], []
    for index, size in zip(indices, sizes, strict=True):
        longest = max([size, *(each for _, each in batch)])
        is_full = 0 < max_tokens < longest * (len(batch) + 1)
        if batch and (is_full or len(batch) == max_sentences):
            found.append(np.array([each for each, _ in batch]))
            batch = []
        batch.append((index, size))
    return [*found, np.array([each for each, _ in batch])]


def batches_of(indices, size_of, *limits):
    return batches(indices, [size_of(index) for index in indices], *limits)


def main():
    restore_removed_features()
    fast = SimpleNamespace(
        batch_by_size_vec=batches, batch_by_size_fn=batches_of, batch_fixed_shapes_fast=None
    )
    sys.modules["fairseq.data.data_utils_fast"] = fast
    torch.load = partial(torch.load, weights_only=False)
    torch.set_num_threads(1)
    del sys.argv[0]
    importlib.import_module(f"fairseq_cli.{sys.argv[0]}").cli_main()


main()
