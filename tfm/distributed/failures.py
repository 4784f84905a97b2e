"""Report the failure of one of several processes to its launcher, which shows it to the user.

A process writes its failure to the file that torch's launcher has named, in the format of
`torch.distributed.elastic.multiprocessing.errors.record`, but without loading torch.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import NoReturn

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
RESUME = "run the same command again to resume from the last checkpoint"


def has_launcher() -> bool:
    """Return whether torchrun or tfm's own launcher started this process."""
    return bool(os.environ.get(_ERROR_FILE))


def report_failure(
    message: str, *, exit_code: int = 1, is_consequence: bool = False, trace: str = ""
) -> bool:
    """Report how this process ends to its launcher; only the first report counts.

    Return whether the launcher will print the message; if not, the caller has to. A failure is a
    consequence if another process has failed before; only a bug has a trace. A process that has
    saved and stopped for a signal reports an empty message.
    """
    if not has_launcher():
        return False
    facts = {
        "timestamp": str(int(time.time())),
        "exit_code": exit_code,
        "is_consequence": is_consequence,
        **({"py_callstack": trace} if trace else {}),  # torchrun prints it even if it is empty
    }
    path = Path(os.environ[_ERROR_FILE])
    partial = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
    try:
        if not path.exists():
            # This process may be killed at any moment, and must not leave half a file.
            text = json.dumps({"message": {"message": message, "extraInfo": facts}})
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    except OSError:  # the launcher has ended, or the disk is full
        return False
    return True


def end_process(message: str, *, exit_code: int = 1, is_consequence: bool = False) -> NoReturn:
    """End this process at once, even if its main thread is stuck.

    Without a launcher, only the process whose failure is no consequence prints its message.
    """
    is_reported = report_failure(message, exit_code=exit_code, is_consequence=is_consequence)
    if not is_reported and not is_consequence:
        # The main thread may hold the locks of Python's streams forever.
        with contextlib.suppress(OSError):
            os.write(2, f"tfm: {message}\n".encode(errors="replace"))
    os._exit(exit_code)
