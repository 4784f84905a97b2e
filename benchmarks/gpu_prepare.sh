#!/usr/bin/env bash
# Prepare what gpu_session.sh reads, on a machine with a network: packages, a dataset, losses of a CPU.
#     benchmarks/gpu_prepare.sh build/gpu-prepared
#     benchmarks/gpu_prepare.sh build/gpu-prepared --data data/mine     (instead of Multi30k)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/benchmarks/gpu/prepare.py" "$@"
