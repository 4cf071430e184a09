"""Backpressure: how far a model may run ahead of the client that reads its responses."""

import threading

AHEAD_BYTES = 1 << 20
"""Bytes of responses that may be waiting for delivery."""
RESPONSE_BYTES = 1 << 10
"""Bytes charged for a response in addition to its tensors."""


class ResponseBackpressure:
    """Pauses the thread that produces the responses of one request; the event loop resumes it."""

    __slots__ = ("_ahead", "_changed", "_ended", "stalled")

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._ahead = 0
        self.stalled = False
        """True while the client has stopped reading."""
        self._ended = False

    # called by the thread

    def advance(self, size: int) -> bool:
        """Wait until a response of `size` bytes may be sent. Return False once the request has ended."""
        with self._changed:
            while (self.stalled or self._ahead > AHEAD_BYTES) and not self._ended:
                self._changed.wait()
            self._ahead += size + RESPONSE_BYTES
            return not self._ended

    def wait(self, seconds: float) -> bool:
        """Sleep. Return False as soon as the request has ended."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._ended, seconds)

    # called on the event loop

    def delivered(self, size: int) -> None:
        """Note that a response of `size` bytes was handed to the frontend."""
        with self._changed:
            self._ahead -= size + RESPONSE_BYTES
            self._changed.notify()

    def stall(self, stalled: bool) -> None:
        """Pause or resume, depending on whether the client reads."""
        with self._changed:
            self.stalled = stalled
            self._changed.notify()

    def end(self) -> None:
        """End the request: no more responses are needed."""
        with self._changed:
            self._ended = True
            self._changed.notify()
