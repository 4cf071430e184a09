"""Files that grow while a run goes on, and are there under their name only when they are complete."""

import contextlib
from pathlib import Path

from tpx.errors import MeasurementError

BUFFER_BYTES = 1 << 20


class TextFile:
    """Written beside its place; `close` puts it there. A device or a pipe is written to as it is.
    Raises MeasurementError where that fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._as_it_is = path.exists() and not path.is_file()
        self._beside = path if self._as_it_is else path.with_name(f".{path.name}.part")
        try:
            self._file = self._beside.open("wb", buffering=BUFFER_BYTES)
        except OSError as exc:
            raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as exc:
            raise MeasurementError(f"cannot write {self._path}: {exc.strerror}") from exc

    def close(self) -> None:
        """The file is complete."""
        try:
            self._file.close()
            if not self._as_it_is:
                self._beside.replace(self._path)
        except OSError as exc:
            raise MeasurementError(f"cannot write {self._path}: {exc.strerror}") from exc

    def abandon(self) -> None:
        """The run came to nothing, or the file did."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._as_it_is:
            self._beside.unlink(missing_ok=True)
