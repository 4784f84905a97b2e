"""An output file that is written line by line, and continued if its process was stopped."""

import contextlib
import errno
import hashlib
import io
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from tfm.disk.files import (
    make_directory,
    output_target,
    read_record,
    size_of,
    sync_directory,
    write_record,
)
from tfm.errors import DataError, TfmError, UsageError
from tfm.translation.steps import Segment

FORMAT = 2
_BLOCK_BYTES = 1 << 20
_RECORD_SECONDS = 1.0  # between two records
_ADVICE = "delete it to begin again, or choose another name with --output"


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The content of FILE.partial.

    Attributes:
        inputs: The hash of what decides the output besides the text.
        num_lines: Number of lines of text whose output is complete.
        num_bytes: Size of their output.
        sha256: Digest of these lines of text.
        output_sha256: Digest of their output.
    """

    inputs: str
    num_lines: int
    num_bytes: int
    sha256: str
    output_sha256: str


class PartialOutput:
    """The output for the first lines of a text, which becomes a file when it is complete.

    The output is in FILE.partial, and its record in FILE.partial.json. A later call continues after
    the lines of the last record, which is at most `_RECORD_SECONDS` older than the output. As a
    context manager, it renames FILE.partial to FILE if the block ends without an error.

    Args:
        path: FILE.
        inputs: A hash of what decides the output besides the text.

    Attributes:
        path: FILE.partial.
        stream: Where to write.
        num_lines: Number of lines of text whose output is complete.
    """

    stream: io.TextIOWrapper
    _file: IO[bytes]

    def __init__(self, path: Path, inputs: str) -> None:
        self._final_path = output_target(path)
        name = self._final_path.name
        self.path = self._final_path.with_name(f"{name}.partial")
        self._record_path = self._final_path.with_name(f"{name}.partial.json")
        self._inputs = inputs
        self._digest, self._output_digest = hashlib.sha256(), hashlib.sha256()
        self._num_hashed = 0  # bytes of the output
        self.num_lines = self._num_bytes = 0
        self._committed = self._digest.hexdigest()  # of the lines whose output is complete
        self._recorded_at = 0.0

    def __enter__(self) -> "PartialOutput":
        make_directory(self.path.parent)
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            raise self._refusal("it is not a regular file")
        with contextlib.ExitStack() as stack:
            self._file = file = stack.enter_context(self.path.open("a+b"))
            _lock(file.fileno(), self.path)
            if size_of(self.path) or self._record_path.exists():
                self._continue()
            file.truncate(self._num_bytes)
            file.seek(0, os.SEEK_END)
            self._write_record()
            self.stream = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
            stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stop(error)
            return
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        os.replace(self.path, self._final_path)
        self._record_path.unlink()
        sync_directory(self.path.parent)

    def verified(self, chunks: Iterable[list[Segment]]) -> Iterator[list[Segment]]:
        """Yield the lines of the text, after verifying the `num_lines` whose output is complete."""
        num_left, written = self.num_lines, self._committed
        for lines in chunks:
            if done := lines[:num_left]:
                self._digest.update(_encoded(done))
                num_left -= len(done)
                if not num_left and self._digest.hexdigest() != written:
                    raise self._mismatch("is other text")
            yield lines
        if num_left:
            raise self._mismatch("is shorter")

    def _mismatch(self, mistake: str) -> DataError:
        """Return the error that the text "is" not the one whose output has been written."""
        return DataError(
            f"the input {mistake} than the {self.num_lines:,} lines whose output is in "
            f"{self.path}: give the same input, delete {self.path}, or choose another name with "
            "--output"
        )

    def commit(self, lines: Sequence[Segment]) -> None:
        """Count lines of text whose output has been written to the stream."""
        self.stream.flush()
        self._digest.update(_encoded(lines))
        self._committed = self._digest.hexdigest()
        self.num_lines += len(lines)
        self._num_bytes = os.fstat(self.stream.fileno()).st_size
        if time.monotonic() - self._recorded_at >= _RECORD_SECONDS:
            os.fsync(self.stream.fileno())
            self._write_record()

    def _continue(self) -> None:
        """Read the record of a call that was stopped."""
        try:
            record = read_record(self._record_path, _Record, format_=FORMAT, advice=_ADVICE)
        except OSError as error:
            raise self._refusal(f"its record {self._record_path} is missing") from error
        except DataError as error:
            raise UsageError(f"cannot continue {self.path}: {error}") from error
        if not record.num_lines or not size_of(self.path):  # perhaps the user has removed it
            return
        if record.num_bytes > size_of(self.path):
            raise self._refusal(f"it is shorter than {self._record_path} says")
        if record.inputs != self._inputs:
            raise self._refusal(
                "it was written with other settings, models or files, or by another version"
            )
        self._hash_output(record.num_bytes)
        if record.output_sha256 != self._output_digest.hexdigest():
            raise self._refusal("its content has changed since it was written")
        self.num_lines, self._num_bytes = record.num_lines, record.num_bytes
        self._committed = record.sha256

    def _refusal(self, reason: str) -> UsageError:
        return UsageError(f"cannot continue {self.path}: {reason}; {_ADVICE}")

    def _stop(self, error: BaseException) -> None:
        """Keep what is complete, for a later call."""
        if isinstance(error, OSError):
            error.filename = error.filename or str(self.path)  # errors of `write` do not name it
        # On a full disk, an older record remains, and the end of the output may be missing.
        with contextlib.suppress(OSError):
            self._hash_output(self._num_bytes)
            self.stream.close()
        with contextlib.suppress(OSError):
            if self.num_lines:
                self._write_record()
            else:
                self.path.unlink()
                self._record_path.unlink()

    def _hash_output(self, num_bytes: int) -> None:
        """Add what is new in the first bytes of the output to its digest."""
        while size := min(_BLOCK_BYTES, num_bytes - self._num_hashed):
            # Opening the file again, and closing it, would unlock it.
            if not (block := os.pread(self._file.fileno(), size, self._num_hashed)):
                return
            self._output_digest.update(block)
            self._num_hashed += len(block)

    def _write_record(self) -> None:
        self._hash_output(self._num_bytes)
        record = _Record(
            inputs=self._inputs,
            num_lines=self.num_lines,
            num_bytes=self._num_bytes,
            sha256=self._committed,
            output_sha256=self._output_digest.hexdigest(),
        )
        write_record(self._record_path, record, format_=FORMAT)
        self._recorded_at = time.monotonic()


def _encoded(lines: Sequence[Segment]) -> bytes:
    texts = (text for line in lines for text in (line.source, line.given) if text is not None)
    return "".join(f"{text}\n" for text in texts).encode()


def _lock(descriptor: int, path: Path) -> None:
    """Refuse a file that another process is writing to, where the file system has such locks."""
    import fcntl  # not part of Python on Windows

    try:
        # Unlike the locks of `flock`, these locks are not inherited by forked processes.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise TfmError(
                f"{path} is being written to by another process: wait for it, or choose another "
                "name with --output"
            ) from None
