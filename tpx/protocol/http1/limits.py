"""Limits of an HTTP server's connections."""

from dataclasses import dataclass

from tpx.protocol.http1.head import HttpError


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of one connection; times in seconds."""

    max_body_bytes: int = 64 << 20
    head_timeout_s: int = 10
    """Time from the first byte of a head to its end."""
    body_timeout_s: int = 60
    """Time without a byte of an announced body; also the time before `min_receive_rate` applies."""
    min_receive_rate: int = 240
    """Minimum average rate of a body in bytes per second; 0 = no minimum."""
    max_receive_s: int = 3600
    """Time from the end of a head to the end of its body."""
    idle_timeout_s: int = 120
    """Time between requests."""
    write_timeout_s: int = 60
    """Time without the client accepting a byte of its response."""

    def check_head(self, elapsed_s: int) -> None:
        """Raise HttpError for a head that takes too long."""
        if elapsed_s > self.head_timeout_s:
            raise HttpError(408, f"no complete request head within {self.head_timeout_s} s")

    def check_body(self, silent_s: int, elapsed_s: int, received_bytes: int) -> None:
        """Raise HttpError for a body that has stalled, is too slow, or takes too long."""
        if silent_s > self.body_timeout_s:
            raise HttpError(408, f"no byte of the announced body for {self.body_timeout_s} s")
        if elapsed_s > self.max_receive_s:
            raise HttpError(408, f"the body was not complete within {self.max_receive_s} s")
        if elapsed_s > self.body_timeout_s and received_bytes < self.min_receive_rate * elapsed_s:
            raise HttpError(408, f"the body came at less than {self.min_receive_rate} bytes per second")
