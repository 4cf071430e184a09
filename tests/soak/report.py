"""What a soak found, in a few lines."""

from collections.abc import Mapping, Sequence

from tests.soak.looks import MEGABYTE, Bounds, Look, growth_per_minute


def summary(
    counts: Mapping[str, int],
    deaths: Mapping[str, int],
    looks: Sequence[Look],
    before: Look,
    after: Look,
    bounds: Bounds,
    problems: Sequence[str],
) -> str:
    """Answers and deaths by kind, memory, descriptors and threads, and what is wrong."""
    seconds = looks[-1].at_s - looks[0].at_s if looks else 0
    lines = [f"soak: {sum(counts.values()):,} answers checked, {seconds:.0f} s after the warm-up"]
    lines += [f"  {name:<24} {count:>10,}" for name, count in sorted(counts.items()) if name not in deaths]
    lines += [f"  {name:<24} {count:>10,} deaths" for name, count in sorted(deaths.items())]
    if looks:
        lines.append(
            f"  memory {_megabytes(looks[0])} -> {_megabytes(looks[-1])} MB, "
            f"{growth_per_minute(looks) / MEGABYTE:+.2f} MB/min "
            f"(at most {bounds.memory_per_minute / MEGABYTE:.1f})"
        )
    lines.append(
        f"  at rest: memory {_megabytes(before)} -> {_megabytes(after)} MB, "
        f"descriptors {before.descriptors} -> {after.descriptors}, "
        f"threads {before.threads} -> {after.threads}"
    )
    lines += [f"  WRONG: {problem}" for problem in problems]
    return "\n".join(lines) + "\n"


def _megabytes(look: Look) -> str:
    return f"{look.rss_bytes / MEGABYTE:.1f}"
