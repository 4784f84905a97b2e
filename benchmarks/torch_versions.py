"""Train in two processes with several versions of torch: do both keep the same weights?

    python benchmarks/torch_versions.py 2.11.0 2.12.1 --envs build/torch

Each version is installed into a new environment, of up to 6 GB, which is deleted afterwards; the
other packages are those of this Python. Three steps of six microbatches are computed by one process
and by two, with replicated and with sharded weights. A row of the table is a version.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from runs import markdown  # noqa: E402
from token_dataset import write_token_dataset  # noqa: E402

VOCAB_SIZE, NUM_MICROBATCHES, NUM_STEPS = 500, 6, 3
SETTINGS = {
    "model": {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 2,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "norm": "pre",
    },
    # A large ε: Adam makes steps of full size from rounding errors of gradients.
    "optimizer": {"warmup_steps": 4, "adam_epsilon": 1e-3},
    "batching": {
        "batch_tokens": 900,
        "bucket_tokens": 300,
        "num_dropout_shards": NUM_MICROBATCHES,
    },
}
MAX_DIFFERENCE = 1e-5  # relative, of losses: sums have another order


def train(data_dir: Path, *, shard: bool) -> dict[str, Any]:
    """Train as one process of a group; return losses, norms of gradients and hashes of weights."""
    import torch

    from tfm.config import run_config
    from tfm.dataset.parallel import ParallelDataset
    from tfm.machine.compute import Compute
    from tfm.machine.group import joined
    from tfm.machine.world import World
    from tfm.model.build import new_model
    from tfm.model.cost import model_cost
    from tfm.training.trainer import Trainer

    run = run_config("base", SETTINGS, {"training": {"seed": 1, "shard": shard}})
    sizes = VOCAB_SIZE, VOCAB_SIZE
    data = ParallelDataset(data_dir / "bin", "train", vocab_sizes=(VOCAB_SIZE, VOCAB_SIZE))
    device = torch.device("cpu")
    torch.manual_seed(1)
    with joined(World.from_environment(), device, timeout=timedelta(seconds=60)) as group:
        cost = model_cost(run.model, sizes)
        compute = Compute(device, torch.float32)
        made = Trainer(new_model(run.model, sizes), data, run, compute, cost=cost, group=group)
        reports, hashes = [], []
        for batch in islice(made.batches(), NUM_STEPS):
            assert len(batch.microbatches) == NUM_MICROBATCHES, len(batch.microbatches)
            step, _ = made.step(batch)
            assert step is not None
            reports.append(step.report())
            weights = made.weights().values()
            content = b"".join(each.detach().numpy().tobytes() for each in weights)
            hashes.append(hashlib.sha256(content).hexdigest())
    return {
        "losses": [report.loss for report in reports],
        "norms": [report.gradient_norm for report in reports],
        "hashes": hashes,
    }


def start(python: Path, data_dir: Path, *, size: int, shard: bool) -> list[dict[str, Any]]:
    """Train in several processes; return what each has found, by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-W", "ignore", __file__, "--rank", data_dir, *["--shard"] * shard]
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "OMP_NUM_THREADS": 1}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = []
    for rank in range(size):
        variables = common | {"RANK": rank, "LOCAL_RANK": rank} if size > 1 else {}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    found = [process.communicate(timeout=900)[0] for process in processes]
    if codes := [each.returncode for each in processes if each.returncode]:
        raise RuntimeError(f"exit codes {codes}")
    return [json.loads(text) for text in found]


def compare(python: Path, data_dir: Path) -> list[str]:
    """Return cells of the table: whether two processes agree, and train like one."""
    [single] = start(python, data_dir, size=1, shard=False)
    cells = []
    for shard in (False, True):
        try:
            first, second = start(python, data_dir, size=2, shard=shard)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            cells += [str(error), ""]
            continue
        pairs = [
            pair
            for key in ("losses", "norms")
            for pair in zip(first[key], single[key], strict=True)
        ]
        difference = max(abs(x / y - 1) for x, y in pairs)
        cells.append("equal" if first["hashes"] == second["hashes"] else "DIFFERENT")
        cells.append(f"{difference:.1e}" + " TOO LARGE" * (difference > MAX_DIFFERENCE))
    return cells


def install(version: str, folder: Path) -> Path:
    """Install a version of torch into a new environment, and return its Python."""
    import numpy as np

    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    # A .pth path is searched last, so the environment's own packages take precedence.
    others = Path(np.__file__).parents[1]
    (site_packages / "other-packages.pth").write_text(f"{others}\n")
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, f"torch=={version}"], check=True)
    return folder / "bin/python"


def main() -> int:
    """Print a table of versions, or train as one process."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("versions", nargs="*", help="of torch, such as 2.11.0")
    parser.add_argument("--envs", type=Path, default=Path("build/torch"))
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        print(json.dumps(train(options.rank, shard=options.shard)))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        write_token_dataset(data_dir, num_pairs=500, vocab_size=VOCAB_SIZE)
        for version in options.versions:
            environment = options.envs / version
            try:
                cells = compare(install(version, environment), data_dir)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                cells = [str(error)]
            if not options.keep:
                shutil.rmtree(environment, ignore_errors=True)
            rows.append([version, *cells, *[""] * (4 - len(cells))])
            print(rows[-1], file=sys.stderr, flush=True)
    titles = ["torch", "weights, replicated", "difference", "weights, sharded", "difference"]
    print(markdown(titles, rows))
    return (
        0 if all(row[1:4:2] == ["equal"] * 2 and "TOO" not in "".join(row) for row in rows) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
