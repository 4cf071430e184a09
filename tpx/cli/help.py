"""`--help` and shell completion: typer commands made from the config dataclasses.

Typer shows and completes; the words of a command line are read by tpx.options, with getopt's rules.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

import tpx
from tpx.cli.exits import ANALYZE, COMPARE, DONE, MEANINGS, PERF, PERF_COMPARE, Exit
from tpx.options import Field, fields_of


@dataclass(frozen=True, slots=True)
class _Page:
    """A command's help: its config dataclass, imported only when it is shown, and what it does."""

    config: str
    summary: str
    exits: tuple[Exit, ...] = DONE


_COMPARE = ("perf", "compare")
_ANALYZE = "Find the configuration that serves a model best."
_PAGES = {
    ("serve",): _Page(
        "tpx.serving.options:ServeConfig",
        "Serve models over HTTP and gRPC as Triton does.\n\n"
        "Without models and repositories: ./models, or the example models where there is none.\n\n"
        "Examples:  tpx serve model.onnx   |   tpx serve --model-repository /models --http-port 9000",
    ),
    ("perf",): _Page(
        "tpx.perf.options.words:PerfWords",
        "Measure throughput and latency of a served model.\n\n"
        "Options, output and exit codes are those of perf_analyzer.\n\n"
        "\b\nExamples:\n"
        "  tpx perf -m mnist                                  one request at a time\n"
        "  tpx perf -m mnist --concurrency-range 1:64:x2      1, 2, 4, ... in flight\n"
        "  tpx perf -m mnist -i grpc --request-rate-range 200 200 requests a second\n"
        "  tpx perf -m mnist --slo 'p99<20ms'                 the most that meets this\n"
        "  tpx perf -m mnist --dry-run                        the plan and one request\n"
        "  tpx perf -m mnist -f out.csv --json out.json --html out.html\n"
        "  tpx perf compare before.json after.json            what became worse",
        PERF,
    ),
    _COMPARE: _Page(
        "tpx.cli.perf_compare:CompareConfig",
        "Tell what changed from one run of `tpx perf --json` to another; exit with 5 where something became "
        "worse.\n\nExample:  tpx perf compare before.json after.json",
        PERF_COMPARE,
    ),
    ("analyze", "profile"): _Page(
        "tpx.analyzer.options:ProfileSpec",
        "Measure models under many configurations and report the best of them.\n\n"
        "Options and YAML files are Model Analyzer's.\n\n"
        "Examples:  tpx analyze profile --model-repository models --profile-models mnist --budget 10m   |   "
        "tpx analyze profile -f config.yml --dry-run",
        ANALYZE,
    ),
    ("analyze", "plan"): _Page(
        "tpx.analyzer.options:ProfileSpec",
        "Tell what `profile` with these options would measure, how much of it, and for how long.\n\n"
        "Example:  tpx analyze plan --model-repository models --profile-models mnist",
    ),
    ("analyze", "doctor"): _Page(
        "tpx.analyzer.options:ProfileSpec",
        "Tell whether `profile` with these options can be made; every model is served once.\n\n"
        "Example:  tpx analyze doctor --triton-launch-mode remote --profile-models mnist",
    ),
    ("analyze", "report"): _Page(
        "tpx.cli.analyze_report:ReportConfig",
        "Write the reports of a finished run again, of all of it or of single configurations.\n\n"
        "Example:  tpx analyze report -e results -n mnist_config_3,mnist_config_default -o html,pdf",
    ),
    ("analyze", "compare"): _Page(
        "tpx.cli.analyze_compare:CompareConfig",
        "Tell what changed from one run to another; exit with 5 where something became worse.\n\n"
        "Example:  tpx analyze compare main branch",
        COMPARE,
    ),
    ("analyze", "apply"): _Page(
        "tpx.cli.analyze_apply:ApplyConfig",
        "Write the recommended configuration into a model repository, with a backup.\n\n"
        "Example:  tpx analyze apply -e results -m models --dry-run",
    ),
    ("analyze", "rollback"): _Page(
        "tpx.cli.analyze_apply:RollbackConfig",
        "Put back the configuration that `apply` has replaced.\n\n"
        "Example:  tpx analyze rollback mnist -m models",
    ),
    ("analyze", "analyze"): _Page(
        "tpx.analyzer.options:ProfileSpec",
        "The same as `profile`; Model Analyzer's former name for it.",
        ANALYZE,
    ),
    ("quickstart",): _Page(
        "tpx.cli.quickstart:QuickstartConfig", "Write the example models as a model repository."
    ),
    ("doctor",): _Page(
        "tpx.cli.doctor:DoctorConfig",
        "Tell which backends and features can be used on this machine, and the command that would enable the "
        "others.\n\nExample:  tpx doctor --require onnxruntime,pytorch",
    ),
}


def show(argv: Sequence[str]) -> int:
    """Run typer on words that ask for help or completion; returns the exit status."""
    completing = "_TPX_COMPLETE" in os.environ
    wanted = tuple(word for word in argv if not word.startswith("-"))
    pages = {words for words in _PAGES if completing or words == wanted[: len(words)]}
    try:
        _app(pages)(list(argv), prog_name="tpx")
    except SystemExit as exc:
        return Exit.FAILED if exc.code else Exit.OK
    return Exit.OK


def _app(whole: set[tuple[str, ...]]) -> typer.Typer:
    """All commands; those in `whole` with their options."""
    root = typer.Typer(
        name="tpx",
        help=tpx.__doc__,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    analyze = typer.Typer(help=_ANALYZE, no_args_is_help=True)
    groups = {"analyze": analyze}
    if _COMPARE in whole and ("serve",) not in whole:
        # `perf` is a command to typer, except where the word behind it is asked about
        groups["perf"] = typer.Typer()
        groups["perf"].callback()(lambda: None)
    for words, page in _PAGES.items():
        fields = _fields(page) if words in whole else []
        if len(words) == 1 and words[0] not in groups:
            _add(root, words[0], page, fields)
        elif len(words) == 2 and words[0] in groups:
            _add(groups[words[0]], words[1], page, fields)
    for name, group in groups.items():
        root.add_typer(group, name=name)
    return root


def _fields(page: _Page) -> list[Field]:
    module, _, name = page.config.partition(":")
    return fields_of(getattr(import_module(module), name))


def _add(parent: typer.Typer, name: str, page: _Page, fields: Sequence[Field]) -> None:
    """Add a command whose help shows its options, in their sections, and its exit codes."""

    class Sections(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (typer's signature)
            for title, rows in _sections(fields).items():
                with formatter.section(title):
                    formatter.write_dl(rows)
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code.value), MEANINGS[code]) for code in page.exits])

    def command(**_: Any) -> None:
        raise AssertionError("only shown, never called")

    parameters = [_parameter(field) for field in fields]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    parent.command(name, cls=Sections, help=page.summary)(command)


def _sections(fields: Sequence[Field]) -> dict[str, list[tuple[str, str]]]:
    """Rows of (spellings, help) by section, in the order of the fields."""
    out: dict[str, list[tuple[str, str]]] = {}
    for field in fields:
        option = field.option
        metavar = option.metavar or _METAVARS.get(field.item_type, "TEXT")
        choices = get_args(field.item_type) if get_origin(field.item_type) is Literal else ()
        if choices:
            metavar = "|".join(str(choice) for choice in choices if choice != "")
        if option.positional:
            out.setdefault("Arguments", []).append((metavar, option.help))
            continue
        spelled = ", ".join(
            sorted(field.spellings, key=lambda name: (name.startswith("--"), name != field.flag))
        )
        if not field.is_switch:
            spelled += f" {metavar}"
        out.setdefault(field.section, []).append((spelled, option.help + _default(field)))
    out.setdefault("Options", []).append(("--help", "show this and exit"))
    return out


_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}


def _default(field: Field) -> str:
    default = field.default
    if default is MISSING:
        return " [required]"
    if field.is_switch:
        return " [on; --no-" + field.flag[2:] + " turns it off]" if default else ""
    if default is None or default in ("", ()):
        return ""
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    text = field.option.default_text or text
    return f" [default: {text}]" if text else ""


def _parameter(field: Field) -> inspect.Parameter:
    """What completion needs of an option: its names and whether it takes a value."""
    if field.option.positional:
        declared: Any = typer.Argument(help=field.option.help, metavar=field.option.metavar or None)
    else:
        declared = typer.Option(*field.spellings, help=field.option.help)
    shown: Any = bool if field.is_switch else list[str] if field.repeatable else str | None
    default: Any = False if field.is_switch else None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[shown, declared]
    )
