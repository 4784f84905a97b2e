"""Stand-ins for Slurm: its commands, and the variables that it sets for jobs and tasks."""

import os
import sys

# As the real one, it forwards signals, and ends with the highest exit code of the tasks.
_SRUN = """
import os, signal, subprocess, sys
if "SRUN_CODE" in os.environ:
    sys.exit(int(os.environ["SRUN_CODE"]))
tasks = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [task.send_signal(number) for task in tasks])
step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": os.environ["SLURM_JOB_NODELIST"], "SLURM_LOCALID": "0"}
for rank in ("0", "1"):
    task = step | {"SLURM_PROCID": rank, "SLURM_NODEID": rank}
    tasks.append(subprocess.Popen(sys.argv[1:], env=os.environ | task))
sys.exit(max(task.wait() % 256 for task in tasks))
"""


def install_slurm(folder):
    """Install the commands in a folder; return the variables of a batch script in a job.

    `srun` starts two tasks here, as on two machines, and `scontrol requeue` writes its job into the
    file "requeues".
    """
    commands = {
        "srun": f"#!{sys.executable}\n{_SRUN}",
        "scontrol": f'#!/bin/sh\necho "$2" >> {folder}/requeues\n',
        "tfm": f'#!/bin/sh\nexec {sys.executable} -m tfm "$@"\n',
    }
    folder.mkdir()
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "127.0.0.[1-2]"}
    batch = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    return {"PATH": f"{folder}:{os.environ['PATH']}", **job, **batch}
