"""metrics.jsonl: the metrics of a run, one JSON object per line; and TensorBoard's event file."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from tfm.disk.files import atomic_write
from tfm.errors import DataError
from tfm.folders.run_folder import METRICS
from tfm.reporting import say

MEASURED = ("train", "validation")  # the kinds of records with measured values
_NOT_MEASURED = (
    *("kind", "last_step", "signature", "ranked_by", "text_pairs", "text_losses", "samples"),
)
_MAX_NUMBER = 1e300

Record = dict[str, Any]
EndState = Literal["finished", "stopped", "diverged"]


class Metrics(NamedTuple):
    """The records of a run by kind, oldest first.

    Attributes:
        training: Means over some steps, as `tfm.training.progress` describes them.
        validation: Metrics of the validation sets.
        texts: A record for each training text, if there are several.
        end: How the process ended that wrote last; None while it runs, and if it was killed.
        limit: The flag of the limit that a finished run has reached.
    """

    training: list[Record]
    validation: list[Record]
    texts: list[Record]
    end: EndState | None = None
    limit: str | None = None


class MetricsLog:
    """Appends to a run's metrics.jsonl, after removing the lines of later steps and of the end.

    Args:
        run_dir: The run folder.
        step: The step of the run.
        logged_step: The last step of a full line of training. A stopped run ends with the line of
            fewer steps, which is removed, too; by default, there is none.
    """

    def __init__(self, run_dir: Path, *, step: int, logged_step: int | None = None) -> None:
        self._path = run_dir / METRICS
        self._unwritten: list[bytes] = []
        if self._path.exists() and not self._path.is_file():
            raise DataError(f"{self._path} is not a file: move it elsewhere")
        content = self._path.read_bytes() if self._path.exists() else b""
        train_step = step if logged_step is None else logged_step
        lines = content.split(b"\n")
        kept = b"".join(b"%b\n" % line for line in lines if _is_before(line, step, train_step))
        if kept != content:
            with atomic_write(self._path) as file:
                file.write(kept)
        self._size = len(kept)

    def append(self, record: Mapping[str, object]) -> None:
        """Write a line, which readers see at once; a number that is not finite becomes null.

        If the disk is full, the line stays in memory and is written together with the next one.
        """
        # JSON has neither NaN nor infinity.
        values = {name: _finite(value) for name, value in record.items()}
        self._unwritten.append(json.dumps(values, allow_nan=False).encode() + b"\n")
        try:
            self._write(b"".join(self._unwritten))
        except OSError as error:
            if len(self._unwritten) == 1:
                say(
                    f"warning: cannot write {self._path}: {error.strerror}; "
                    "its lines are kept in memory until writing works again"
                )
        else:
            self._unwritten.clear()

    def _write(self, lines: bytes) -> None:
        """Append all lines, or none if there is no room for all."""
        with self._path.open("ab", buffering=0) as file:
            size = min(file.seek(0, os.SEEK_END), self._size)
            file.truncate(size)  # removes the remains of a failed attempt
            num_written = 0
            try:
                while num_written < len(lines):  # a nearly full disk accepts some of the bytes
                    num_written += file.write(lines[num_written:])
            except OSError:
                file.truncate(size)
                raise
        self._size = size + len(lines)


def read_metrics(run_dir: Path, *, max_training: int | None = None) -> Metrics:
    """Read metrics.jsonl of a run; it is empty if there is none. Truncated lines are ignored.

    Args:
        run_dir: The run folder.
        max_training: About the number of training records to keep, with the last two.
    """
    lines = read_lines(run_dir)
    training = [line for line in lines if b'"train"' in line]
    if max_training is not None:
        stride = math.ceil(len(training) / max_training) or 1
        # The last line of a killed run may be truncated; the line before is complete.
        training = training[:-2:stride] + training[-2:]
    texts = [*parse_records(line for line in lines if b'"texts"' in line)]
    last = next(parse_records(lines[-1:]), {})
    limit = last.get("limit")
    return Metrics(
        training=[*parse_records(training)],
        validation=[*parse_records(line for line in lines if b'"validation"' in line)],
        texts=texts[-1].get("texts", []) if texts else [],
        end=last.get("state") if last.get("state") in get_args(EndState) else None,
        limit=limit if isinstance(limit, str) else None,
    )


def read_lines(run_dir: Path) -> list[bytes]:
    """Return the lines of a run's metrics.jsonl; none if there is no such file."""
    path = run_dir / METRICS
    return path.read_bytes().splitlines() if path.is_file() else []


def parse_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of all lines that are complete.

    Values of training and validation that are not finite numbers become None.
    """
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(
                line, parse_float=_number, parse_int=_number, parse_constant=lambda _: None
            )
            step = record.get("step") if isinstance(record, dict) else None
            if type(step) is int and step >= 0:
                yield _with_numbers(record)


def _number(text: str) -> int | float | None:
    """Return a number of JSON; None if it is out of range."""
    value = float(text)
    if not abs(value) < _MAX_NUMBER:
        return None
    return int(text) if text.lstrip("-").isdecimal() else value


def _with_numbers(record: Record) -> Record:
    """Return a record in which all measured values are numbers or None."""
    if record.get("kind") not in MEASURED:
        return record
    return {
        name: value if name in _NOT_MEASURED or type(value) in (int, float) else None
        for name, value in record.items()
    }


def _is_before(line: bytes, step: int, train_step: int) -> bool:
    """Return whether a line belongs to a step up to `step`, or to `train_step` if of training.

    A line that a crash has cut short does not count, nor does the end of a run that now continues.
    """
    try:
        record = json.loads(line)
        if record.get("kind") == "end":
            return False
        limit = train_step if record.get("kind") == "train" else step
        return float(record["step"]) <= limit
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return False


def _finite(value: object) -> object:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_NO_CURVES = ("step", "epoch", "minutes")


class EventFile:
    """Writes the records of a run to an event file in its folder.

    It begins with all lines of metrics.jsonl and replaces the event files of earlier processes: the
    curves of a resumed run continue at its step. Their wall time is the time of training, without
    the time between two processes.

    If the file cannot be written, as on a full disk, it ends there until the run resumes.
    """

    def __init__(self, run_dir: Path) -> None:
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import Event

        for older in run_dir.glob("events.out.tfevents.*.tfm"):
            older.unlink()
        records = [*parse_records(read_lines(run_dir))]
        minutes = max((record.get("minutes") or 0.0 for record in records), default=0.0)
        self._started = time.time() - 60 * minutes
        self._run_dir = run_dir
        self._writer = RecordWriter(str(run_dir / f"events.out.tfevents.{time.time():.0f}.tfm"))
        self._is_open = True
        start = Event(wall_time=self._started, file_version="brain.Event:2")
        self._writer.write(start.SerializeToString())
        self.append(*records)

    def append(self, *records: Record) -> None:
        """Write the finite numbers of records about training and validation, and flush them."""
        if not self._is_open:
            return
        try:
            for record in records:
                if record.get("kind") in MEASURED:
                    self._write(record)
            self._writer.flush()
        except OSError as error:
            say(
                f"warning: cannot write event files in {self._run_dir}: {error.strerror}; "
                "TensorBoard shows later steps when the run resumes"
            )
            self.close()

    def close(self) -> None:
        """Close the file; records that follow are dropped."""
        self._is_open = False
        with contextlib.suppress(OSError):
            self._writer.close()

    def _write(self, record: Record) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import text

        values = [
            # TensorBoard groups curves by the first word.
            Summary.Value(tag=f"{record['kind']}/{name.replace(':', '/')}", simple_value=value)
            for name, value in record.items()
            if name not in _NO_CURVES and isinstance(value, int | float) and math.isfinite(value)
        ]
        for sample in record.get("samples", ()):
            # TensorBoard shows Markdown: four spaces mark preformatted text.
            shown = "\n".join(f"    {sample[key]}" for key in ("source", "reference", "output"))
            values += text(f"{record['kind']}/sample {sample['line']}", shown).value
        event = Event(
            step=record["step"],
            wall_time=self._started + 60 * (record.get("minutes") or 0.0),
            summary=Summary(value=values),
        )
        self._writer.write(event.SerializeToString())
