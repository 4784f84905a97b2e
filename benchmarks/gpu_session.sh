#!/usr/bin/env bash
# Check and time tfm on this machine's GPU, in three stages of nine minutes: a (right?), b (training), c (decoding).
# The package runs from this checkout, without network; gpu_prepare.sh writes what the stages read:
#     benchmarks/gpu_session.sh a --prepared build/gpu-prepared
#     benchmarks/gpu_session.sh a --dry-run     (every step with tiny sizes on a CPU)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/benchmarks/gpu/session.py" "$@"
