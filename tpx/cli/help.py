"""`--help` and shell completion: typer commands made from the config dataclasses.

Typer shows and completes; the words of a command line are read by tpx.options, with getopt's rules.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Annotated, Any

import typer

import tpx
from tpx.analyzer.options import ProfileConfig
from tpx.cli.quickstart import QuickstartConfig
from tpx.options import Field, fields_of
from tpx.perf.options import PerfConfig
from tpx.serving.options import ServeConfig

_SUMMARIES = {
    "serve": (
        ServeConfig,
        "Serve models over HTTP and gRPC as Triton does.\n\n"
        "Without models and repositories: ./models, or the example models where there is none.\n\n"
        "Examples:  tpx serve model.onnx   |   tpx serve --model-repository /models --http-port 9000",
    ),
    "perf": (
        PerfConfig,
        "Measure throughput and latency of a served model, as perf_analyzer does.\n\n"
        "Example:  tpx perf -m mnist --concurrency-range 1:4",
    ),
    "quickstart": (QuickstartConfig, "Write the example models as a model repository."),
}


def show(argv: Sequence[str]) -> int:
    """Run typer on words that ask for help or completion."""
    try:
        app()(list(argv), prog_name="tpx", standalone_mode=False)
    except typer.Exit as exc:
        return exc.exit_code
    return 0


def app() -> typer.Typer:
    """All commands, for help and completion."""
    root = typer.Typer(
        name="tpx",
        help=tpx.__doc__,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    for name, (config, summary) in _SUMMARIES.items():
        root.command(name, help=summary)(_command(config))
    analyze = typer.Typer(help="Find the configuration that serves a model best.", no_args_is_help=True)
    # a callback keeps `profile` a subcommand while it is the only one
    analyze.callback()(lambda: None)
    analyze.command(
        "profile",
        help="Measure models under many configurations and report the best of them.\n\n"
        "Example:  tpx analyze profile --model-repository models --profile-models mnist",
    )(_command(ProfileConfig))
    root.add_typer(analyze, name="analyze")
    return root


def _command(config: type) -> Callable[..., None]:
    """A function whose signature shows the options of a config dataclass."""

    def command(**_: Any) -> None:
        raise AssertionError("only shown, never called")

    parameters = [_parameter(field) for field in fields_of(config)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(field: Field) -> inspect.Parameter:
    option = field.option
    required = field.default is MISSING
    shown: Any = field.item_type if field.item_type in (bool, int, float, str) else str
    if option.parse is not None or option.comma:
        shown = str
    if field.repeatable and not option.comma:
        shown = list[shown]
    default = None if required else _shown_default(field, shown)
    metavar = option.metavar or None
    if option.positional:
        declared: Any = typer.Argument(help=option.help, metavar=metavar, show_default=False)
    else:
        names = (field.flag, *option.names)
        declared = typer.Option(
            *names,
            help=option.help,
            metavar=metavar,
            rich_help_panel=option.section,
            show_default=default not in (None, "", [], False),
        )
    annotation = Annotated[shown, declared] if shown is bool else Annotated[shown | None, declared]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _shown_default(field: Field, shown: Any) -> Any:
    default = field.default
    if default is None or default == ():
        return None
    if shown in (bool, int, float):
        return default
    if field.repeatable:
        text = [str(item) for item in default]
        return ",".join(text) if shown is str else text
    return str(default)
