"""An output file that is written line by line, and continued if its process was stopped."""

import contextlib
import errno
import hashlib
import io
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from tfm.disk.paths import PARTIAL
from tfm.errors import DataError, TfmError, UsageError
from tfm.translation.steps import Segment

FORMAT = 1
_BLOCK_BYTES = 1 << 20
_RECORD_SECONDS = 1.0  # between two records
_ADVICE = "delete it to begin again, or choose another name with --output"


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The content of FILE.partial.json.

    Attributes:
        sha256: The hash of all inputs that decide the output, with the text of the complete lines.
        num_lines: The number of these lines.
        num_bytes: The size of their output.
        output_sha256: The hash of their output.
        engine: What computes, and why.
    """

    sha256: str
    num_lines: int = 0
    num_bytes: int = 0
    output_sha256: str = ""
    engine: str = ""


class PartialOutput:
    """The output for the first lines of a text, which becomes a file when it is complete.

    The output is in FILE.partial, and its record in FILE.partial.json. A later call continues after
    the lines of the last record, which is at most `_RECORD_SECONDS` older than the output. As a
    context manager, it renames FILE.partial to FILE if the block ends without an error.

    Args:
        path: FILE.
        inputs: A hash of all that decides the output besides the text.
        engine: What computes, and why, for the record.

    Attributes:
        path: FILE.partial.
        stream: Where to write.
    """

    stream: io.TextIOWrapper
    _file: IO[bytes]

    def __init__(self, path: Path, inputs: str, *, engine: str = "") -> None:
        self._final_path = target = output_target(path)
        self.path, self._record_path = (target.with_name(target.name + end) for end in PARTIAL)
        self._digest = hashlib.sha256(inputs.encode())
        self._record = _Record(sha256=self._digest.hexdigest(), engine=engine)
        self._output_digest, self._num_hashed = hashlib.sha256(), 0  # bytes of the output
        self._recorded_at = 0.0

    @property
    def num_lines(self) -> int:
        """The number of lines of text whose output is complete."""
        return self._record.num_lines

    def __enter__(self) -> "PartialOutput":
        make_directory(self.path.parent)
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            raise self._refusal("it is not a regular file")
        with contextlib.ExitStack() as stack:
            self._file = file = stack.enter_context(self.path.open("a+b"))
            _lock(file.fileno(), self.path)
            if size_of(self.path) or self._record_path.exists():
                self._continue()
            file.truncate(self._record.num_bytes)
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
        """Yield the lines of the text; raise UsageError if the output is not of the first ones."""
        num_left, expected = self.num_lines, self._record.sha256
        for lines in chunks:
            if done := lines[:num_left]:
                self._digest.update(_encoded(done))
                num_left -= len(done)
                if not num_left and self._digest.hexdigest() != expected:
                    break
            yield lines
        else:
            if not num_left:
                return
        raise self._refusal(
            f"its {self.num_lines:,} lines are of other text, settings, models or files, or of "
            "another version or engine"
        )

    def commit(self, lines: Sequence[Segment]) -> None:
        """Count lines of text whose output has been written to the stream."""
        self.stream.flush()
        self._digest.update(_encoded(lines))
        num_bytes = os.fstat(self.stream.fileno()).st_size
        self._record = replace(
            self._record,
            sha256=self._digest.hexdigest(),
            num_lines=self.num_lines + len(lines),
            num_bytes=num_bytes,
            output_sha256=self._hash_of_output(num_bytes),
        )
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
        if record.num_lines and (size := size_of(self.path)):  # else the user may have removed it
            if record.num_bytes > size:
                raise self._refusal(f"it is shorter than {self._record_path} says")
            if record.output_sha256 != self._hash_of_output(record.num_bytes):
                raise self._refusal("its content has changed since it was written")
            self._record = record

    def _refusal(self, reason: str) -> UsageError:
        return UsageError(f"cannot continue {self.path}: {reason}; {_ADVICE}")

    def _stop(self, error: BaseException) -> None:
        """Keep what is complete, for a later call."""
        if isinstance(error, OSError):
            error.filename = error.filename or str(self.path)  # errors of `write` do not name it
        # On a full disk, an older record remains, and the end of the output may be missing.
        with contextlib.suppress(OSError):
            self.stream.close()
        with contextlib.suppress(OSError):
            if self.num_lines:
                self._write_record()
            else:
                self.path.unlink()
                self._record_path.unlink()

    def _hash_of_output(self, num_bytes: int) -> str:
        """Return the hash of the first bytes of the output, of which only new ones are read."""
        while size := min(_BLOCK_BYTES, num_bytes - self._num_hashed):
            # Opening the file again, and closing it, would unlock it.
            self._output_digest.update(os.pread(self._file.fileno(), size, self._num_hashed))
            self._num_hashed += size
        return self._output_digest.hexdigest()

    def _write_record(self) -> None:
        write_record(self._record_path, self._record, format_=FORMAT)
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
