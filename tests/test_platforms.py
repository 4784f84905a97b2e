"""Commands on a CPU without names and modules of Linux: Windows lacks all that macOS does."""

import json
import subprocess
import sys

# Libraries adapt to the real system, so they are loaded first.
_LOAD_LIBRARIES = """
import asyncio, ctypes, errno, os, runpy, select, shutil, signal, subprocess, sys
import matplotlib.pyplot, numpy, sacrebleu, sacremoses, sentencepiece, torch, tqdm, typer
import rich.console, torch._dynamo, torch.distributed.fsdp
from filelock import FileLock, SoftFileLock

def remove(module, *names):
    for name in names:
        delattr(module, name)
"""
_WINDOWS = """
import fcntl, resource
get_flags, sync, open_file = fcntl.fcntl, os.fsync, os.open
get_status = fcntl.F_GETFL
load_library = ctypes.CDLL

def sync_file(descriptor):
    if not get_flags(descriptor, get_status) & (os.O_WRONLY | os.O_RDWR):
        raise OSError(errno.EBADF, "only a file that is open for writing can be flushed")
    sync(descriptor)

def open_no_folder(path, *arguments, **options):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder cannot be opened", path)
    return open_file(path, *arguments, **options)

def select_sockets(*arguments):
    raise OSError(10038, "only sockets can be selected")

class Library(ctypes.CDLL):
    def __init__(self, name, *arguments, **options):
        if name is None:
            raise TypeError("a library needs a name")
        super().__init__(name, *arguments, **options)

def kill(process, number):
    os._exit(99)  # Windows would end that process, or send it Ctrl-C

os.fsync, os.open, os.kill, select.select, ctypes.CDLL = (
    sync_file, open_no_folder, kill, select_sockets, Library
)
remove(signal, "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGCONT", "SIGSTOP", "SIGALRM",
       "SIGCHLD", "SIGQUIT", "SIGPIPE", "pthread_sigmask", "pthread_kill", "setitimer", "sigwait")
remove(os, "sched_getaffinity", "sched_setaffinity", "set_blocking", "fchown", "chown", "getuid",
       "geteuid", "getgid", "getpgid", "killpg", "setsid", "fork", "forkpty", "mkfifo", "sysconf",
       "uname", "wait", "O_DIRECTORY", "O_SYNC")
signal.CTRL_C_EVENT, signal.CTRL_BREAK_EVENT = 0, 1
shutil._use_fd_functions = False
for name in "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix":
    sys.modules[name] = None
sys.platform = "win32"
"""
_RUN_COMMANDS = """
import json
for command in json.load(open("commands.json")):
    sys.argv = ["tfm", *command]
    try:
        runpy.run_module("tfm", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"tfm {command[0]} has ended with {ended.code}")
"""
_MODEL = "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --d-ff 32 --num-heads 2"
_PREPARE = (
    "prepare --out data/a --vocab-size 290 --train a.en a.de --valid a.en a.de --test a.en a.de"
)
_COMMANDS = [
    "--help",
    _PREPARE,
    f"{_PREPARE} --force",
    f"train --arch tiny {_MODEL} --max-steps 4 --checkpoint-steps 2 --validation-beam 1 --run run",
    "train --run run --max-steps 6",
    "average run --last 2",
    "generate run --input a.en --output out.de",
    "generate run",
    "score --hypotheses out.de --reference a.de",
]


def test_commands_on_a_cpu_need_no_names_of_linux(elsewhere):
    commands = [command.split() for command in _COMMANDS]
    (elsewhere / "commands.json").write_text(json.dumps(commands))
    for language, words in ("en", "one two three"), ("de", "eins zwei drei"):
        (elsewhere / f"a.{language}").write_text("".join(f"{words} {n}\n" for n in range(40)))
    (elsewhere / f".out.de.{2**22 + 1}.partial").touch()  # of a killed process
    program = _LOAD_LIBRARIES + _WINDOWS + _RUN_COMMANDS
    done = subprocess.run(
        [sys.executable, "-c", program], input="one\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len((elsewhere / "out.de").read_text().splitlines()) == 40
