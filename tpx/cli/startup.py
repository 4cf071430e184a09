"""Startup output of a server, in Triton's tables."""

import json
import logging
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from tpx import __version__
from tpx.cli.messages import terminal_width
from tpx.report.strangers import harmless
from tpx.serving.backends.table import locate_code
from tpx.serving.dataplane import RepositoryEntry
from tpx.serving.options import ServeConfig
from tpx.serving.repository.agents.ownership import locate_code as where_agent_is
from tpx.serving.server import InferenceServer

log = logging.getLogger(__name__)

Row = tuple[str, ...]
CELL_LEAST = 20
"""Minimum width of a wrapped column, in characters."""


def log_models(server: InferenceServer, config: ServeConfig) -> None:
    """Log the tables of repository agents, backends and models, after loading, even if that failed."""
    configs = [model.config for model in server.plane.served()]
    agents = sorted({each.name for one in configs for each in one.model_repository_agents.agents})
    options = config.repository
    _log_table(
        ("Repository Agent", "Path"),
        [(name, where_agent_is(name, options.repoagent_directory)) for name in agents],
    )
    backends: list[Row] = []
    for name in sorted({one.backend for one in configs} - {""}):  # ensembles have none
        told = [flag.rpartition(",") for flag in options.backend_config]
        settings = dict(pair.split("=", 1) for backend, _, pair in told if backend in ("", name))
        place = locate_code(name, options.backend_directory)
        backends.append((name, place, json.dumps({"cmdline": settings}, separators=(",", ":"))))
    _log_table(("Backend", "Path", "Config"), backends)
    models = server.status()
    _log_table(("Model", "Version", "Status"), model_rows(models))
    if not models:
        log.info("no models found")


def log_options(server: InferenceServer, config: ServeConfig) -> None:
    """Log the table of options."""
    _log_table(("Option", "Value"), option_rows(config, server.plane.server_metadata().extensions))


def table(headers: Row, rows: Iterable[Row], width: int | None = None) -> str:
    """Return a table in ASCII, ended by a newline as Triton's are.

    The widest column is wrapped if the table would be wider than `width`.
    """
    lines = [headers, *(tuple(map(_escape_control_characters, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    excess = sum(widths) + 3 * len(widths) + 1 - width if width else 0
    if excess > 0:
        widest = widths.index(max(widths))
        widths[widest] = max(widths[widest] - excess, CELL_LEAST)
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    texts = ["\n".join(_layout_row(line, widths)) for line in lines]
    return "\n".join([rule, texts[0], rule, *texts[1:], rule, ""])


def _layout_row(row: Row, widths: Sequence[int]) -> Iterator[str]:
    """Return the lines of a row; cells wider than their column are wrapped."""
    cells = [
        textwrap.wrap(cell, width, break_on_hyphens=False) if len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    for line in zip_longest(*cells, fillvalue=""):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"


def model_rows(entries: Sequence[RepositoryEntry]) -> list[Row]:
    """Return a row per version with its state, or the reason why it is not ready."""
    return [
        (entry.model, entry.version or "-", f"{entry.state}: {entry.reason}" if entry.reason else entry.state)
        for entry in entries
    ]


def option_rows(config: ServeConfig, extensions: Sequence[str]) -> list[Row]:
    """Return the options that Triton lists, in its order."""
    paths = [*config.repository.model_repository, *config.repository.models]
    return [
        ("server_id", config.server.id),
        ("server_version", __version__),
        ("server_extensions", " ".join(extensions)),
        *((f"model_repository_path[{index}]", str(path)) for index, path in enumerate(paths)),
        ("model_control_mode", f"MODE_{config.repository.model_control_mode.upper()}"),
        *((f"startup_models_{index}", name) for index, name in enumerate(config.repository.load_model)),
        ("strict_model_config", str(int(not config.repository.auto_complete))),
        ("model_config_name", config.repository.model_config_name),
        ("rate_limit", "OFF" if config.repository.rate_limit == "off" else "EXEC_COUNT"),
        *(
            (f"rate_limit_resource[{index}]", flag)
            for index, flag in enumerate(config.repository.rate_limit_resource)
        ),
        ("pinned_memory_pool_byte_size", str(config.compatibility.pinned_memory_pool_byte_size)),
        ("min_supported_compute_capability", str(config.compatibility.min_supported_compute_capability)),
        ("strict_readiness", str(int(config.repository.strict_readiness))),
        ("exit_timeout", str(config.server.exit_timeout_secs)),
        (
            "cache_enabled",
            str(int(bool(config.repository.cache_config or config.repository.response_cache_byte_size))),
        ),
    ]


def _escape_control_characters(cell: str) -> str:
    return harmless(cell).replace("\n", r"\n").replace("\t", r"\t")


def _log_table(headers: Row, rows: Sequence[Row]) -> None:
    """Log a table if it has rows, fitted to the terminal if there is one."""
    if rows:
        log.info("", extra={"block": table(headers, rows, terminal_width())})
