"""The options of `tpx serve` about models: where they are, when they are loaded, how they are completed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.options import option
from tpx.serving.compatibility import CompatibilityOptions
from tpx.serving.repository.stores.places import StorePlace, place_of


def _config_name(text: str) -> str:
    """The part of a file's name before `.pbtxt`."""
    if not text.strip():
        raise ValueError("empty argument for --model-config-name")
    if text.startswith(".") or any(not part.isprintable() or part in " /" for part in text):
        raise ValueError("expected the name of a file without its ending, with no spaces and no slashes")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(CompatibilityOptions):
    """What a server is told about its models."""

    models: tuple[Path | StorePlace, ...] = option(
        (), "model files or model repositories to serve", positional=True, metavar="MODEL", parse=place_of
    )
    model_repository: tuple[Path | StorePlace, ...] = option(
        (),
        "directory of models, or s3://, gs:// or as:// and the place of one; repeatable",
        "--model-store",
        section="Models",
        metavar="DIR",
        parse=place_of,
    )
    exit_on_error: bool = option(True, "end if a model fails to load at startup", section="Models")
    disable_auto_complete_config: bool = option(
        False, "take config.pbtxt as it is: it must then be complete", section="Models"
    )
    strict_model_config: bool | None = option(
        None, "deprecated: --disable-auto-complete-config says the same", section="Models"
    )
    strict_readiness: bool = option(True, "the server is ready only when every model is", section="Models")
    model_control_mode: Literal["none", "poll", "explicit", "lazy"] = option(
        "none",
        "when models are loaded: all at startup, also as their files change, as clients ask, or when the "
        "first request for them comes",
        section="Models",
    )
    repository_poll_secs: int = option(
        15,
        "seconds between two looks at the repositories in poll mode; 0 = only at startup",
        section="Models",
        minimum=0,
    )
    load_model: tuple[str, ...] = option(
        (),
        "loaded at startup in explicit and lazy mode; * is all; repeatable",
        section="Models",
        metavar="NAME",
    )
    model_config_name: str = option(
        "",
        "configs/<NAME>.pbtxt of a model, where there is one, stands for its config.pbtxt",
        section="Models",
        metavar="NAME",
        parse=_config_name,
    )
    model_load_thread_count: int = option(
        4, "versions of models loaded at the same time", section="Models", minimum=1
    )
    model_load_retry_count: int = option(
        0, "further attempts when a version fails to load", section="Models", minimum=0
    )
    lazy_load_timeout_secs: int = option(
        60, "seconds that a request waits for its model in lazy mode", section="Models", minimum=1
    )
    model_memory_limit: int = option(
        0,
        "bytes of memory that models may hold: those unused for the longest time make room for others, "
        "in explicit and lazy mode; 0 is without limit",
        section="Models",
        metavar="BYTES",
        minimum=0,
    )
    model_namespacing: bool = option(
        False,
        "let repositories have models of the same name: a name that several have is refused in requests, "
        "and ensembles take their own repository's",
        section="Models",
    )
    cache_config: tuple[str, ...] = option(
        (),
        "response cache for the models that ask for one: local,size=BYTES",
        section="Models",
        metavar="CACHE,KEY=VALUE",
    )
    response_cache_byte_size: int = option(
        0, "the same as --cache-config local,size=BYTES", section="Models", minimum=0
    )
    rate_limit: Literal["off", "execution_count"] = option(
        "off",
        "let instances take turns, by what they have executed and their priority, for the resources that "
        "they need",
        section="Models",
    )
    rate_limit_resource: tuple[str, ...] = option(
        (),
        "how much there is of a resource, on a device or on each; repeatable",
        section="Models",
        metavar="NAME:COUNT[:DEVICE]",
    )
    backend_directory: Path = option(
        Path("/opt/tritonserver/backends"),
        "where python-based backends are: `<name>/model.py` serves the models that name it",
        section="Models",
    )
    repoagent_directory: Path = option(
        Path("/opt/tritonserver/repoagents"),
        "where repository agents are: `<name>/agent.py`",
        section="Models",
    )
    backend_config: tuple[str, ...] = option(
        (), "backend setting; repeatable", section="Models", metavar="BACKEND,KEY=VALUE"
    )
