"""Command lines of `tpx perf` as perf_analyzer would read them: its abbreviations, its deprecated
options, and options that tpx lacks, which are refused with an alternative; aiperf's names, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpx.argv import given_in_argv
from tpx.errors import UsageError
from tpx.options import Options, build, group, option
from tpx.perf.inputs.base import length_warning
from tpx.perf.levels import KINDS, LevelRange
from tpx.perf.options import SessionSpec
from tpx.perf.options.aiperf import translate
from tpx.sources import SECTION, config_file, show_config

_DEPRECATED = "Deprecated"
_NEEDLESS = "the engine of --service-kind triton_c_api is part of tpx"

_NAMES = """
async binary-search bls-composing-models collect-metrics concurrency-range data-directory enable-mpi
endpoint fixed-schedule grpc-compression-algorithm grpc-method help input-data input-tensor-format
latency-threshold log-frequency max-threads max-trials measurement-interval measurement-mode
measurement-request-count metrics-interval metrics-url model-repository model-signature-name
num-of-sequences output-shared-memory-size output-tensor-format percentile periodic-concurrency-range
profile-export-file request-count request-distribution request-intervals request-parameter request-period
request-rate-range sequence-id-range sequence-length sequence-length-variation serial-sequences
service-kind session-concurrency shape shared-memory ssl-grpc-certificate-chain-file
ssl-grpc-private-key-file ssl-grpc-root-certifications-file ssl-grpc-use-ssl
ssl-https-ca-certificates-file ssl-https-client-certificate-file ssl-https-client-certificate-type
ssl-https-private-key-file ssl-https-private-key-type ssl-https-verify-host ssl-https-verify-peer
stability-percentage streaming string-data string-length sync trace-count trace-level trace-rate
triton-server-directory verbose-csv version warmup-request-count
"""
PERF_ANALYZER = frozenset(_NAMES.split())
"""perf_analyzer's long options: an unambiguous prefix of one means it, even if tpx has one like it."""

REFUSED: Mapping[str, str] = {
    "--enable-mpi": "use --models a:3,b:1 to load several models at once",
    "--proto": "give compiled files with --grpc-descriptor-set",
}
"""Options that tpx does not have, with the alternative to name in the error."""


class PerfWords(Options):
    """All options of a command line; deprecated ones are converted to the fields that replaced them."""

    session: SessionSpec = group(SessionSpec)
    config_file: Path | None = config_file(section=SECTION)  # perf_analyzer's -f is another
    show_config: bool = show_config(SECTION)
    version: bool = option(False, "show the version on stderr and exit", section="Output", setting=False)
    triton_server_directory: Path | None = option(
        None, _NEEDLESS, section="Service", metavar="DIR", inert=True
    )
    older_concurrency: int | None = option(
        None, "deprecated: use --concurrency-range", "-t", section=_DEPRECATED, setting=False, metavar="N"
    )
    older_growing: bool = option(
        False, "deprecated: use --concurrency-range START:END", "-d", section=_DEPRECATED, setting=False
    )
    older_most: int | None = option(
        None,
        "deprecated: use --concurrency-range START:END or --latency-threshold",
        "-c",
        section=_DEPRECATED,
        metavar="N",
    )
    older_zeros: bool = option(
        False, "deprecated: use --input-data zero", "-z", section=_DEPRECATED, setting=False
    )
    data_directory: Path | None = option(
        None, "deprecated: use --input-data DIR", section=_DEPRECATED, setting=False, metavar="DIR"
    )


_SUCCESSORS = {
    "older_concurrency": ("-t", "--concurrency-range"),
    "older_growing": ("-d", "--concurrency-range"),
    "older_most": ("-c", "--concurrency-range"),
    "older_zeros": ("-z", "--input-data=zero"),
    "data_directory": ("--data-directory", "--input-data"),
}
"""Flag and replacement of each deprecated field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedWords:
    """The run that a command line describes, and warnings for the user."""

    config: SessionSpec
    warnings: tuple[str, ...] = ()


def read_words(argv: Sequence[str]) -> ParsedWords:
    """Parse a command line into a run. Raises UsageError for an invalid one."""
    return interpret(given_in_argv(PerfWords, spelled_out(argv)))


def interpret(values: Mapping[str, Any]) -> ParsedWords:
    """Return the run that the values of options describe. Raises UsageError for an invalid one."""
    chosen = {name: value for name, value in values.items() if name not in _NO_SETTINGS}
    found: list[str] = []
    if chosen.pop("triton_server_directory", None) is not None:
        found.append(f"--triton-server-directory has no effect: {_NEEDLESS}")
    if chosen.get("session_concurrency") and chosen.get("request_count"):
        found.append("--request-count has no effect: --session-concurrency sends every turn of the data once")
    found += (
        f"{name} is deprecated and will be removed in an upcoming version. Use {successor} instead."
        for field, (name, successor) in _SUCCESSORS.items()
        if field in chosen
    )
    config = build(SessionSpec, _convert_deprecated(chosen))
    if config.sequences.sequence_length is not None:
        found += filter(None, [length_warning(config.sequences.sequence_length)])
    return ParsedWords(config=config, warnings=tuple(found))


def spelled_out(argv: Sequence[str]) -> list[str]:
    """Replace aiperf's names and expand perf_analyzer's abbreviations.

    Raises UsageError for options that tpx does not have.
    """
    return [_expand_abbreviation(word) if word.startswith("--") else word for word in translate(argv)]


def _expand_abbreviation(word: str) -> str:
    name, equals, text = word.partition("=")
    if name in REFUSED:
        raise UsageError(f"tpx perf has no {name}: {REFUSED[name]}")
    meant = [known for known in PERF_ANALYZER if known.startswith(name[2:])] if name != "--" else []
    if len(meant) != 1 or name in _OWN:
        return word
    full = f"--{meant[0]}"
    return _expand_abbreviation(full + equals + text) if full != name else word


_NO_SETTINGS = ("version", "show_config", "config_file")
_OWN = frozenset({"--stability", "--verbose"})
"""tpx's own options that are also a prefix of one of perf_analyzer's."""


def _convert_deprecated(chosen: dict[str, Any]) -> dict[str, Any]:
    """Convert deprecated options to the fields that replaced them."""
    older = {field: chosen.pop(field) for field in _SUCCESSORS if field in chosen}
    growing = older.get("older_growing", False)
    if "older_most" in older and not growing:
        raise UsageError(
            "-c ends the range that -d starts, and -d is missing; use --concurrency-range START:END instead"
        )
    if "older_concurrency" in older or growing:
        for kind in KINDS.values():
            if chosen.get(kind.option):
                raise UsageError(
                    f"Cannot use both {kind.rival} and DeprecatedConcurrency inference load modes."
                )
        end = older.get("older_most", 0) if growing else None
        chosen["concurrency_range"] = LevelRange(start=older.get("older_concurrency", 1), end=end)
    if older.get("older_zeros") and "data_directory" in older:
        raise UsageError("The -z flag cannot be set when --data-directory is provided.")
    if older.get("older_zeros"):
        chosen["input_data"] = ("zero", *chosen.get("input_data", ()))
    if "data_directory" in older:
        directory = older["data_directory"]
        if not directory.is_dir():
            raise UsageError(f"--data-directory {directory}: there is no such directory")
        chosen["input_data"] = (str(directory), *chosen.get("input_data", ()))
    return chosen
