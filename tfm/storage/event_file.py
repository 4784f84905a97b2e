"""TensorBoard's event file of a run: the numbers of metrics.jsonl as curves over steps."""

import contextlib
import math
import time
from pathlib import Path

from tfm.reporting import say
from tfm.storage.metrics_log import FIGURES, Record, parse_records, read_lines

_NO_CURVES = ("step", "epoch", "minutes")


class EventFile:
    """Writes the records of a run to an event file in its folder.

    It begins with all lines of metrics.jsonl and replaces the event files of earlier processes: the
    curves of a resumed run continue at its step. Their wall time is that of training, without the
    time between two processes.

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
                if record.get("kind") in FIGURES:
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

        values = [
            # TensorBoard groups curves by the first word.
            Summary.Value(tag=f"{record['kind']}/{name.replace(':', '/')}", simple_value=value)
            for name, value in record.items()
            if name not in _NO_CURVES and isinstance(value, int | float) and math.isfinite(value)
        ]
        event = Event(
            step=record["step"],
            wall_time=self._started + 60 * (record.get("minutes") or 0.0),
            summary=Summary(value=values),
        )
        self._writer.write(event.SerializeToString())
