"""Tables of the exit codes, in which a number has one meaning, and of the commands with their help."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from typing import NamedTuple, cast


class Exit(IntEnum):
    """Exit codes. 0, 2, 3, and 99 are perf_analyzer's; 0 and 1 are Model Analyzer's and Triton's."""

    OK = 0
    FAILED = 1
    UNSTABLE = 2
    NO_VALID_REQUEST = 3
    OBJECTIVE_MISSED = 4
    REGRESSION = 5
    OVER_ERROR_BUDGET = 6
    INCONCLUSIVE = 7
    PERF_FAILED = 99
    INTERRUPTED = 130


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "success",
    Exit.FAILED: "wrong options, no measurement, or another failure; the message says which",
    Exit.UNSTABLE: "the only level was unstable (with --require-stable: any level)",
    Exit.NO_VALID_REQUEST: "a window had no valid request",
    Exit.OBJECTIVE_MISSED: "an objective (--slo) or a constraint (--require satisfied) is missed",
    Exit.REGRESSION: "compare or --ab found a regression; --ab-client a difference in either direction",
    Exit.OVER_ERROR_BUDGET: "more errors than --max-errors",
    Exit.INCONCLUSIVE: "undecided: compare, --ab and --ab-client, unless --undecided pass; with --require "
    "conclusive",
    Exit.PERF_FAILED: "as 1; perf_analyzer's code, used by tpx perf",
    Exit.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; reports are written; --allow-partial accepts them",
}

DONE = (Exit.OK, Exit.FAILED)
PERF = tuple(code for code in Exit if code is not Exit.FAILED)
PERF_COMPARE = (Exit.OK, Exit.REGRESSION, Exit.INCONCLUSIVE, Exit.PERF_FAILED)
COMPARE = (*DONE, Exit.REGRESSION, Exit.INCONCLUSIVE)
ANALYZE = (*DONE, Exit.OBJECTIVE_MISSED, Exit.INCONCLUSIVE, Exit.INTERRUPTED)


Path = tuple[str, ...]
"""Words of a command: ("analyze", "profile")."""


class Command(NamedTuple):
    """A command or a group of commands; modules are named here and imported on use."""

    summary: str
    run: str = ""
    """`module:function`, which takes the remaining arguments and returns the exit code; empty for a group."""
    config: str = ""
    """`module:class` of the options; empty for a group."""
    details: str = ""
    examples: tuple[str, ...] = ()
    exits: tuple[Exit, ...] = DONE

    def function(self) -> Callable[[Sequence[str]], int]:
        """Import and return the function."""
        module, _, name = self.run.partition(":")
        return cast("Callable[[Sequence[str]], int]", getattr(import_module(module), name))


COMMANDS: dict[Path, Command] = {
    ("serve",): Command(
        run="tpx.cli.serve:main",
        config="tpx.serving.options:ServeWords",
        summary="Serve models over HTTP and gRPC as Triton does.",
        details="Without models and repositories: ./models if it exists, otherwise the example models.",
        examples=(
            "tpx serve model.onnx",
            "tpx serve --model-repository /models --http-port 9000",
            "tpx serve --model-repository s3://bucket/models --model-control-mode poll",
        ),
    ),
    ("perf",): Command(
        run="tpx.cli.perf:main",
        config="tpx.perf.options.words:PerfWords",
        summary="Measure throughput and latency of a served model.",
        details="Options, output and exit codes are those of perf_analyzer.",
        examples=(
            "tpx perf -m mnist                                   one request at a time",
            "tpx perf -m mnist --concurrency-range 1:64:x2       1, 2, 4, ... in flight",
            "tpx perf -m mnist -i grpc --request-rate-range 200  200 requests per second",
            "tpx perf -m mnist --slo 'p99<20ms'                  highest load meeting this",
            "tpx perf -m mnist --dry-run                         the plan and one request",
            "tpx perf -m mnist -f out.csv --json out.json --html out.html",
            "tpx perf compare before.json after.json             regressions",
        ),
        exits=PERF,
    ),
    ("perf", "compare"): Command(
        run="tpx.cli.perf_compare:main",
        config="tpx.cli.comparing:PerfCompareConfig",
        summary="Compare runs of `tpx perf --json`; exit 5 if anything regressed, 7 if undecided.",
        examples=(
            "tpx perf compare new.json --baseline 1.json 2.json 3.json",
            "tpx perf compare before.json after.json             the change, no verdict",
        ),
        exits=PERF_COMPARE,
    ),
    ("analyze",): Command(
        run="tpx.cli.analyze:main", summary="Find the configuration that serves a model best."
    ),
    ("analyze", "profile"): Command(
        run="tpx.cli.analyze:profile",
        config="tpx.analyzer.options:ProfileSpec",
        summary="Measure models under many configurations and report the best of them.",
        details="Options and YAML files are Model Analyzer's.",
        examples=(
            "tpx analyze profile -m models --profile-models mnist --budget 10m",
            "tpx analyze profile -f config.yml --dry-run",
        ),
        exits=ANALYZE,
    ),
    ("analyze", "plan"): Command(
        run="tpx.cli.analyze_plan:plan",
        config="tpx.analyzer.options:ProfileSpec",
        summary="Show what `profile` with these options would measure, and how long it would take.",
        examples=("tpx analyze plan -m models --profile-models mnist",),
    ),
    ("analyze", "doctor"): Command(
        run="tpx.cli.analyze_doctor:doctor",
        config="tpx.analyzer.options:ProfileSpec",
        summary="Check that `profile` with these options can run; serves every model once.",
        examples=("tpx analyze doctor --triton-launch-mode remote --profile-models mnist",),
    ),
    ("analyze", "report"): Command(
        run="tpx.cli.analyze_report:report",
        config="tpx.cli.analyze_options:ReportConfig",
        summary="Write the reports of a finished run again, for the run or for single configurations.",
        examples=("tpx analyze report -e results -n mnist_config_3 -o html,pdf",),
    ),
    ("analyze", "compare"): Command(
        run="tpx.cli.analyze_report:compare",
        config="tpx.cli.comparing:AnalyzeCompareConfig",
        summary="Compare runs; exit 5 if anything regressed, 7 if undecided.",
        examples=("tpx analyze compare branch --baseline main-1 main-2 main-3",),
        exits=COMPARE,
    ),
    ("analyze", "apply"): Command(
        run="tpx.cli.analyze_apply:apply",
        config="tpx.cli.analyze_options:ApplyConfig",
        summary="Write the recommended configuration into a model repository, with a backup.",
        examples=("tpx analyze apply -e results -m models --dry-run",),
    ),
    ("analyze", "rollback"): Command(
        run="tpx.cli.analyze_apply:rollback",
        config="tpx.cli.analyze_options:RollbackConfig",
        summary="Restore the configuration that `apply` replaced.",
        examples=("tpx analyze rollback mnist -m models",),
    ),
    ("analyze", "analyze"): Command(
        run="tpx.cli.analyze:analyze",
        config="tpx.analyzer.options:ProfileSpec",
        summary="The same as `profile`; Model Analyzer's former name for it.",
        exits=ANALYZE,
    ),
    ("cluster",): Command(summary="Run replicas of `tpx serve` on a Ray cluster, behind HAProxy."),
    ("cluster", "up"): Command(
        run="tpx.cli.cluster:up",
        config="tpx.cluster.spec:ClusterSpec",
        summary="Start a cluster; returns when its replicas are ready.",
        examples=("tpx cluster up --model-repository /models --replicas 3", "tpx cluster up -f cluster.yaml"),
    ),
    ("cluster", "status"): Command(
        run="tpx.cli.cluster:status",
        config="tpx.cli.cluster:StatusConfig",
        summary="Show replicas, nodes and loads.",
        examples=("tpx cluster status --watch",),
    ),
    ("cluster", "page"): Command(
        run="tpx.cli.cluster:page",
        config="tpx.cli.cluster:PageConfig",
        summary="Show replicas and their load over time on a page for your browser, until Ctrl-C.",
        examples=("tpx cluster page --port 8090",),
    ),
    ("cluster", "update"): Command(
        run="tpx.cli.cluster:update",
        config="tpx.cluster.spec:ClusterSpec",
        summary="Change options; replicas are replaced one by one, or rolled back.",
        details="Options that are not given stay as they are.",
        examples=("tpx cluster update --serve=--log-verbose=1", "tpx cluster update --version 2026-11-23"),
    ),
    ("cluster", "scale"): Command(
        run="tpx.cli.cluster:scale",
        config="tpx.cli.cluster:ScaleConfig",
        summary="Change the number of replicas.",
        examples=("tpx cluster scale 5",),
    ),
    ("cluster", "logs"): Command(
        run="tpx.cli.cluster:logs",
        config="tpx.cli.cluster:LogsConfig",
        summary="Print the end of a replica's log.",
        examples=("tpx cluster logs replica-1",),
    ),
    ("cluster", "config"): Command(
        run="tpx.cli.cluster:config",
        config="tpx.cli.cluster:ConfigConfig",
        summary="Print HAProxy's or Envoy's configuration for the replicas that are ready.",
        examples=("tpx cluster config --envoy > envoy.yaml",),
    ),
    ("cluster", "down"): Command(
        run="tpx.cli.cluster:down",
        config="tpx.cli.cluster:DownConfig",
        summary="Stop a cluster and all of its processes.",
        examples=("tpx cluster down",),
    ),
    ("quickstart",): Command(
        run="tpx.cli.quickstart:main",
        config="tpx.cli.quickstart:QuickstartConfig",
        summary="Write the example models as a model repository.",
        examples=("tpx quickstart models",),
    ),
    ("doctor",): Command(
        run="tpx.cli.doctor:main",
        config="tpx.cli.doctor:DoctorConfig",
        summary="Show which backends and features work here, and how to enable the rest.",
        examples=("tpx doctor --require onnxruntime,pytorch",),
    ),
    ("version",): Command(
        run="tpx.cli.main:version", summary="Print the version; so do -v, -V and --version."
    ),
}


def below(path: Path) -> list[str]:
    """Return the names of a group's commands; the top-level ones for an empty path."""
    return [words[-1] for words in COMMANDS if words[:-1] == path]


def command_of(argv: Sequence[str]) -> Path:
    """Return the longest command that these arguments begin with; empty if there is none."""
    return max((path for path in ((), *COMMANDS) if tuple(argv[: len(path)]) == path), key=len)
