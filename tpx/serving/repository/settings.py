"""What model control takes from the server's options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpx.serving.repository.decisions import ControlMode
from tpx.serving.repository.layout import Place
from tpx.serving.repository.room import resident_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Where models are, and when they are loaded."""

    paths: Sequence[Place]
    mode: ControlMode = "none"
    startup: Sequence[str] = ()
    """--load-model: what explicit mode loads at startup."""
    exit_on_error: bool = True
    """A repository that cannot be read at startup is an error, and no gap to start with."""
    poll_s: float = 15
    """0 never polls."""
    load_threads: int = 4
    load_retries: int = 0
    config_name: str = ""
    lazy_wait_s: float = 60
    memory_limit_bytes: int = 0
    """What models may hold; 0 is without limit."""
    resident: Callable[[], int] = resident_bytes
    """What the process holds now."""
