"""The errors that a user can fix: one clear line each, without a traceback."""

import errno
import shlex
from collections.abc import Iterable, Sequence

DISTRIBUTION = "tfm-mt"  # the name in the metadata of the package; no package index has it
# Separates details of a message, such as a list of settings: each is printed on its own line.
DETAIL = "\n  "


# What to do about failures of the operating system, by the names of their errno.
_REMEDIES = {
    "EACCES EPERM": "change its permissions, or choose another path",
    "ENOSPC EDQUOT": "free space, or choose a folder on another disk",
    "EROFS": "choose a folder on another disk",
    "EMFILE": "raise the limit with ulimit -n, and run the same command again",
    "ENFILE ENOMEM": "end other programs, and run the same command again",
    "ENAMETOOLONG": "choose a shorter name",
    "EISDIR": "name a file",
    "ENOTDIR": "a folder of this path is a file: check the path",
    "ENOENT": "check its name",
    "ELOOP": "its links lead to themselves: check them",
    "ESTALE": "another machine has replaced it: run the same command again",
    "EIO": "the disk or its connection fails: check it before you write more to it",
}


def explain_os_error(error: OSError) -> str:
    """Return why the operating system refused something, and what to do."""
    reason, name = error.strerror or str(error), errno.errorcode.get(error.errno or 0)
    remedies = (remedy for names, remedy in _REMEDIES.items() if name in names.split())
    return ": ".join([reason, *remedies])


def tfm_command(*words: object) -> str:
    """Return a command line for a message, with its paths quoted for a shell."""
    return shlex.join(["tfm", *map(str, words)])


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an optional part of tfm.

    It never has the name of tfm itself, which anybody might register in a package index. Packages
    that are there, but too old, get their version, without which pip would leave them as they are.
    """
    from importlib import metadata  # here, because few commands need it

    from packaging.requirements import Requirement

    try:
        declared = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:  # of a checkout that is not installed
        declared = []
    words = []
    for each in declared:
        if each.marker is None or not each.marker.evaluate({"extra": extra}):
            continue
        name = f"{each.name}[{','.join(sorted(each.extras))}]" if each.extras else each.name
        is_old = any(
            not each.specifier.contains(found.version, prereleases=True)
            for found in metadata.distributions(name=each.name)
        )
        words.append(f"{name}{each.specifier}" if is_old else name)
    return shlex.join(["pip", "install", *words]) if words else f'pip install ".[{extra}]"'


class TfmError(Exception):
    """A failure with a message for the user: what went wrong, where, and what to do."""

    exit_code = 1
    restart_helps = False  # whether the same command may succeed if it is run again

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(TfmError):
    """Flags or settings that are unknown or contradict each other.

    Attributes:
        problems: What the message consists of.
    """

    exit_code = 2

    def __init__(
        self, message: str, problems: Sequence[object] = (), *, exit_code: int | None = None
    ) -> None:
        super().__init__(message, exit_code=exit_code)
        self.problems = problems


def refuse(problems: Iterable[object]) -> None:
    """Raise UsageError with one message for one or more problems; several take a line each."""
    problems = list(problems)
    texts = list(map(str, problems))
    if len(texts) > 1:
        texts = [DETAIL.join([f"{len(texts)} mistakes:", *texts])]
    for text in texts:
        raise UsageError(text, problems)


class DataError(TfmError):
    """Text, archives or binarized data that are missing, damaged or do not match."""


class DownloadError(DataError):
    """An archive that could not be downloaded, or whose content is not the expected one."""


class CheckpointError(TfmError):
    """A model folder that is missing, damaged or does not fit the request."""


class TrainingError(TfmError):
    """A training run that cannot continue."""


class InterruptedRunError(TfmError):
    """A run that was stopped by a signal."""


class LostPeersError(TrainingError):
    """The other processes of the run cannot be reached; they or their launcher report why."""

    restart_helps = True


class UnequalRanksError(TrainingError):
    """Processes of a run that no longer hold the same weights."""

    restart_helps = True
