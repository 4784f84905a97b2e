"""Where each process of a run stands, and which of them keep the others from coming on."""

from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_MOST_CALLS = 4
_PACKAGE_DIR = Path(__file__).parents[1]
STOPPED = "is stopped by a signal"
# What Linux calls the states of a process that explain why it does not come on.
_STATES = {
    "T": STOPPED,
    "t": "is stopped by a debugger",
    "D": "waits for a disk or file server",
    "Z": "is dead",
    "X": "is dead",
}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a process stands, as it posts it for the others.

    Attributes:
        rank: Which process of the run.
        host: Its machine.
        pid: Its number there.
        turn: How many times it has posted.
        beats: How many times its main thread has come on.
        phase: What its main thread is at.
        waits: Whether it waits for the others there.
        stack: The code that its main thread is in.
        left: Whether it has ended its part of the run in order.
    """

    rank: int
    host: str = ""
    pid: int = 0
    turn: int = 0
    beats: int = 0
    phase: str = ""
    waits: bool = False
    stack: str = ""
    left: bool = False


@dataclass
class Watched:
    """What is known of a process, in seconds of the observer's own clock.

    Attributes:
        standing: Its newest post.
        posted_at: When that was first seen.
        beaten_at: When its main thread was first seen to be where it is.
    """

    standing: Standing
    posted_at: float
    beaten_at: float

    def see(self, standing: Standing, now: float) -> None:
        """Take note of what it posts."""
        if standing.turn != self.standing.turn:
            self.posted_at = now
        if standing.beats != self.standing.beats:
            self.beaten_at = now
        self.standing = standing

    def in_words(self, *, now: float, timeout_seconds: float, here: str) -> str:
        """Who it is, since when it has not come on, where it stands, and why if that is known.

        Args:
            now: When it was last asked after.
            timeout_seconds: How long without a post make it silent.
            here: The observer's machine, of whose processes the state can be looked up.
        """
        standing = self.standing
        name = f"rank {standing.rank}"
        if not standing.turn:
            return f"{name} has not begun for {now - self.posted_at:.0f} s"
        name += f" (host {standing.host}, process {standing.pid})"
        if now - self.posted_at >= timeout_seconds:
            problem = f"has not been heard of for {now - self.posted_at:.0f} s"
        else:
            problem = f"has not come on for {now - self.beaten_at:.0f} s"
        state = process_state(standing.pid) if standing.host == here else None
        problem += f" and {state}" if state else ""
        stands = "waits for the others" if standing.waits else "stands"
        return f"{name} {problem}: it {stands} in {standing.phase}, at {standing.stack}"


def not_coming_on(processes: list[Watched], *, now: float, timeout_seconds: float) -> list[Watched]:
    """The processes that keep the others from coming on.

    Whoever waits for others is not to blame as long as one of those comes on. Where all wait, each
    for something else or cut off from each other, all are named.

    Args:
        processes: Those of the run.
        now: When they were last asked after.
        timeout_seconds: How long one may stay where it is.
    """
    present = [process for process in processes if not process.standing.left]
    silent = [p for p in present if now - p.posted_at >= timeout_seconds]
    if silent:
        return silent
    stuck = [p for p in present if now - p.beaten_at >= timeout_seconds]
    to_blame = [p for p in stuck if not p.standing.waits]
    return to_blame or (stuck if len(stuck) == len(present) else [])


def stack_of(frame: FrameType | None) -> str:
    """Where a thread is: its innermost call, and the calls of this package that led there."""
    calls: list[str] = []
    while frame is not None and len(calls) < _MOST_CALLS:
        path = Path(frame.f_code.co_filename)
        if not calls or _PACKAGE_DIR in path.parents:
            calls.append(f"{_short(path)}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " ← ".join(calls) or "its end"


def _short(path: Path) -> str:
    """A file of this package by its place in it, any other by its folder and name."""
    if _PACKAGE_DIR in path.parents:
        return str(path.relative_to(_PACKAGE_DIR.parent))
    return "/".join(path.parts[-2:])


def process_state(pid: int) -> str | None:
    """Why a process of this machine does not run, in words, where Linux can say it."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        # The name in brackets may hold anything, brackets too.
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "is gone"
    return _STATES.get(status.rpartition(")")[2].split()[0])
