"""The one line that moves while a level is measured."""

from rich.text import Text

from tpx.perf.observer import Progress
from tpx.perf.report.figures import rate, usec


def live_line(progress: Progress) -> Text:
    """`concurrency 4  window 2/10  5123 infer/sec  p99 812 usec`, with failures in red."""
    line = Text.assemble(
        ("concurrency ", "dim"),
        (str(progress.level.value), "bold"),
        ("  window ", "dim"),
        f"{progress.window}/{progress.max_windows}",
        "  ",
        (rate(progress.throughput_infer_per_s), "bold green"),
        (" infer/sec  p99 ", "dim"),
        "-" if progress.p99_ns is None else f"{usec(progress.p99_ns)} usec",
    )
    if progress.failed:
        line.append(f"  {progress.failed} failed", "bold red")
    return line
