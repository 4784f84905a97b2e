#!/usr/bin/env bash
# Train a model of "Attention Is All You Need" on WMT14 as a Slurm job.
#
#     tfm prepare wmt14-en-de                     # first, on a machine with network
#     sbatch examples/wmt14/slurm.sh base         # or big; then other options of tfm train
#
# Two minutes before its time limit, or when it is preempted, the job saves and is requeued. If it
# fails, it is requeued, too, at most MAX_FAILURES times in a row (3), but not after a mistake in its
# options (exit code 2). To stop it for good: scancel.
#SBATCH --job-name=wmt14
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
arch=${1:-base} options=("${@:2}")
# The paper's 10 minutes between checkpoints, at its 0.4 s per step of base and 1.0 s of big.
interval=1500
[ "$arch" != big ] || interval=600
# Since Slurm 22.05, srun does not take this from the job.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# A task for each GPU: tfm reads from Slurm's variables which one it is, and where they meet.
srun tfm train data/wmt14-en-de --arch "$arch" --run "runs/wmt14-en-de-$arch" \
    --checkpoint-steps $interval ${options[@]+"${options[@]}"} &
trap 'again=yes; kill -USR1 $!' USR1
again='' code=0
# The signal interrupts the first wait; the second one waits until the run has saved.
wait $! || code=$?
if [ -n "$again" ]; then
    code=0
    wait $! || code=$?
fi
# A byte for each failure of this job since it was last stopped by a signal, over all its requeues.
failures=slurm-$SLURM_JOB_ID.failures
if [ "$code" -eq 0 ]; then
    rm -f "$failures"
elif [ "$code" -ne 2 ]; then
    printf . >> "$failures"
    num_failures=$(wc -c < "$failures")
    if [ "$num_failures" -le "${MAX_FAILURES:-3}" ]; then
        echo "failure $num_failures of this job, exit code $code: it is requeued" >&2
        again=yes code=0
    fi
fi
if [ -n "$again" ] && [ "$code" -eq 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
