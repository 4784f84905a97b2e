"""Commands of text on a Python without names and modules of Linux, as on Windows."""

import json

from helpers import python

_WINDOWS = """
import ctypes, errno, fcntl, json, os, runpy, select, shutil, signal, subprocess, sys
import numpy, sacrebleu, sacremoses, sentencepiece, tqdm, typer  # they adapt to the real system
import rich.console
from filelock import FileLock, SoftFileLock

get_flags, sync, open_file = fcntl.fcntl, os.fsync, os.open
get_status = fcntl.F_GETFL

def remove(module, *names):
    for name in names:
        delattr(module, name)

def sync_file(descriptor):
    if not get_flags(descriptor, get_status) & (os.O_WRONLY | os.O_RDWR):
        raise OSError(errno.EBADF, "only a file that is open for writing can be flushed")
    sync(descriptor)

def open_no_folder(path, *arguments, **options):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder cannot be opened", path)
    return open_file(path, *arguments, **options)

def kill(process, number):
    os._exit(99)  # Windows would end that process, or send it Ctrl-C

os.fsync, os.open, os.kill = sync_file, open_no_folder, kill
remove(signal, "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGALRM", "SIGCHLD", "SIGQUIT",
       "SIGPIPE", "pthread_sigmask", "pthread_kill", "setitimer", "sigwait")
remove(os, "sched_getaffinity", "set_blocking", "fchown", "chown", "getuid", "geteuid", "killpg",
       "setsid", "fork", "mkfifo", "sysconf", "uname", "wait", "O_DIRECTORY")
signal.CTRL_C_EVENT, signal.CTRL_BREAK_EVENT = 0, 1
shutil._use_fd_functions = False
for name in "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix":
    sys.modules[name] = None
sys.platform = "win32"

for command in json.load(open("commands.json")):
    sys.argv = ["tfm", *command]
    try:
        runpy.run_module("tfm", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"tfm {command[0]} has ended with {ended.code}")
"""
_PREPARE = (
    "prepare --out data/a --vocab-size 290 --train a.en a.de --valid a.en a.de --test a.en a.de"
)
_COMMANDS = ["--help", _PREPARE, f"{_PREPARE} --force", "score --hypotheses a.en --reference a.de"]


def test_commands_of_text_need_no_names_of_linux(elsewhere):
    commands = [command.split() for command in _COMMANDS]
    (elsewhere / "commands.json").write_text(json.dumps(commands))
    for language, words in ("en", "one two three"), ("de", "eins zwei drei"):
        (elsewhere / f"a.{language}").write_text("".join(f"{words} {n}\n" for n in range(40)))
    (elsewhere / "data/a").mkdir(parents=True)
    (elsewhere / f"data/a/.manifest.json.{2**22 + 1}.partial").touch()  # of a killed process
    done = python("-c", _WINDOWS)
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
