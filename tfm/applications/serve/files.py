"""The translated files of a server, until they are downloaded."""

import secrets
import time
from collections import OrderedDict
from urllib.parse import quote

from starlette.responses import Response

_KEPT_SECONDS = 600
_KEPT_BYTES = 50_000_000  # of all files
_OVERHEAD_BYTES = 500  # of Python's objects for a file


class TranslatedFiles:
    """Keeps files in memory for ten minutes; beyond 50 MB, the oldest ones go.

    Nobody can guess the key of a file.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[float, str, bytes]] = OrderedDict()
        self._num_bytes = 0  # of all files, with their names

    def add(self, name: str, content: str) -> str:
        """Keep a file with a name for its download; return its key."""
        key = secrets.token_urlsafe()
        self._files[key] = time.monotonic(), name, content.encode()
        self._num_bytes += self._size(key)
        while len(self._files) > 1 and self._num_bytes > _KEPT_BYTES:
            self._drop_oldest()
        self._drop_expired()
        return key

    def download(self, key: str) -> Response | None:
        """Return the answer with a file; None if there is none with this key, or no longer."""
        self._drop_expired()
        if key not in self._files:
            return None
        _, name, data = self._files[key]
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "X-Content-Type-Options": "nosniff",  # browsers save the file: its scripts never run
        }
        return Response(data, media_type="application/octet-stream", headers=headers)

    def _drop_expired(self) -> None:
        oldest = time.monotonic() - _KEPT_SECONDS
        while self._files and next(iter(self._files.values()))[0] < oldest:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = next(iter(self._files))
        self._num_bytes -= self._size(key)
        del self._files[key]

    def _size(self, key: str) -> int:
        _, name, data = self._files[key]
        return _OVERHEAD_BYTES + len(name.encode()) + len(data)
