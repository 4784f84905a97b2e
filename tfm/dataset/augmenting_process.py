"""The process that augments the pairs of the next window while a run trains on this one.

Each machine has one, which imports no torch. Its standard input has a line of JSON for the
augmentation, and one for each window: epoch, number, and the folder that has the numbers of its
pairs, and gets their token ids. Each window is answered by a line: a JSON string, which is empty or
an error. The input ends when the process of the run has ended, in whatever way: then this process
removes the folder of all windows, and ends at once.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

import numpy as np

from tfm.config.values import from_table
from tfm.dataset.augmentation import NUMBERS, Augmentation, Augmenter, Numbers
from tfm.errors import DataError, TfmError, TrainingError, explain_os_error
from tfm.machine.interruption import StopRequests
from tfm.machine.search_path import same_search_path


class AugmentingProcess:
    """Augments windows of pairs in another process, in the order of the requests.

    Args:
        augmentation: The changes of the pairs.
        parent: Where to create the folder of the windows; by default, among temporary files.
    """

    def __init__(self, augmentation: Augmentation, parent: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tfm-augmented-", dir=parent))
        with same_search_path():
            self._process = subprocess.Popen(  # noqa: S603 - it is this Python
                [sys.executable, "-m", __name__, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that Ctrl-C in a terminal is not sent to it
            )
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)
        self._send(asdict(augmentation))

    def request(self, epoch: int, window: int, numbers: Numbers) -> None:
        """Ask for pairs [N] by their numbers, which get sorted, without waiting for them."""
        folder = self._folder / f"{epoch}-{window}"
        folder.mkdir()
        np.save(folder / NUMBERS, np.sort(numbers))
        self._send([epoch, window, str(folder)])

    def wait(self, epoch: int, window: int) -> Path:
        """Wait for a window, the first one requested that was not waited for; return its folder."""
        if not (reply := self._output.readline()):
            code = self._process.wait()
            reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise TrainingError(
                f"the process that augments training pairs {reason}: if memory ran out, end other "
                "programs; then run the same command to resume"
            )
        if problem := json.loads(reply):
            raise DataError(problem)
        return self._folder / f"{epoch}-{window}"

    def close(self) -> None:
        """End the process, and remove the windows."""
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes its pipes, and waits for it
            pass
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, value: Any) -> None:
        with suppress(BrokenPipeError):  # `wait` says why
            self._input.write(json.dumps(value) + "\n")
            self._input.flush()


def main() -> None:
    """Augment the windows that the standard input names."""
    # The process of the run handles signals; its end ends this one.
    for number in StopRequests.EXIT_CODES:
        signal.signal(number, signal.SIG_IGN)
    lines = SimpleQueue[str]()
    threading.Thread(target=_read_input, args=(lines, Path(sys.argv[1])), daemon=True).start()
    augmentation = from_table(Augmentation, json.loads(lines.get()))
    augmenter = None
    while True:
        epoch, window, folder = json.loads(lines.get())
        problem = ""
        try:
            augmenter = augmenter or Augmenter(augmentation)
            augmenter.write(Path(folder), epoch=epoch, window=window)
        except TfmError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or folder}: {explain_os_error(error)}"
        except Exception as error:  # the other process reports it
            problem = f"training pairs cannot be augmented: {type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(problem) + "\n")
        sys.stdout.flush()


def _read_input(lines: "SimpleQueue[str]", folder: Path) -> None:
    """Read lines until the input ends; then remove the folder of all windows, and end."""
    for line in sys.stdin:
        lines.put(line)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
