"""Options for the models of a server."""

from pathlib import Path
from typing import Literal

from tpx.options import Options, option
from tpx.serving.repository.stores.addresses import StoreAddress, address_of

ControlMode = Literal["none", "poll", "explicit", "lazy"]


def _validate_config_name(text: str) -> str:
    """Validate a file name given without `.pbtxt`."""
    if not text.strip():
        raise ValueError("empty argument for --model-config-name")
    if text.startswith(".") or any(not part.isprintable() or part in " /" for part in text):
        raise ValueError("expected the name of a file without its ending, with no spaces and no slashes")
    return text


class ModelSpec(Options):
    """Options for the models of a server."""

    models: tuple[Path | StoreAddress, ...] = option(
        (),
        "model files or model repositories to serve",
        positional=True,
        metavar="MODEL",
        parse=address_of,
        common=True,
        completes="files",
    )
    model_repository: tuple[Path | StoreAddress, ...] = option(
        (),
        "directory of models, or an object store: s3://, gs:// or as:// and a path; repeatable",
        "--model-store",
        metavar="DIR",
        parse=address_of,
        common=True,
        completes="files",
    )
    describe: bool = option(
        False,
        "load the models, print what each takes and gives, its complete configuration and a `tpx perf` line, "
        "and exit",
        common=True,
    )
    exit_on_error: bool = option(True, "exit if a model fails to load at startup", common=True)
    disable_auto_complete_config: bool = option(False, "do not complete config.pbtxt: it must be complete")
    strict_model_config: bool | None = option(None, "deprecated: use --disable-auto-complete-config")
    strict_readiness: bool = option(True, "report ready only when all models are ready")
    model_control_mode: ControlMode = option(
        "none",
        "when models are loaded: at startup (none), also when their files change (poll), on request of a "
        "client (explicit), or on their first request (lazy)",
        common=True,
    )
    repository_poll_secs: int = option(
        15, "seconds between checks of the repositories in poll mode; 0 = only at startup", minimum=0
    )
    load_model: tuple[str, ...] = option(
        (),
        "model to load at startup in explicit and lazy mode; * = all; repeatable",
        metavar="NAME",
        common=True,
        completes="models",
    )
    model_config_name: str = option(
        "",
        "use configs/<NAME>.pbtxt of a model, if it exists, instead of config.pbtxt",
        metavar="NAME",
        parse=_validate_config_name,
    )
    model_load_thread_count: int = option(4, "model versions loaded at the same time", minimum=1)
    model_load_retry_count: int = option(0, "retries after a version fails to load", minimum=0)
    lazy_load_timeout_secs: int = option(
        60, "seconds that a request waits for its model in lazy mode", minimum=1
    )
    model_memory_limit: int = option(
        0,
        "memory limit for models in bytes: the least recently used models are unloaded to stay below it, "
        "in explicit and lazy mode; 0 = unlimited",
        metavar="BYTES",
        minimum=0,
        common=True,
    )
    model_namespacing: bool = option(
        False,
        "allow models of the same name in different repositories: requests for an ambiguous name are "
        "refused, and ensembles use models of their own repository",
    )
    cache_config: tuple[str, ...] = option(
        (),
        "response cache for models that enable it: local,size=BYTES",
        metavar="CACHE,KEY=VALUE",
        common=True,
    )
    response_cache_byte_size: int = option(0, "deprecated: use --cache-config local,size=BYTES", minimum=0)
    rate_limit: Literal["off", "execution_count"] = option(
        "off", "schedule instances by execution count, priority, and the resources they need"
    )
    rate_limit_resource: tuple[str, ...] = option(
        (),
        "available units of a resource, on one device or on each; repeatable",
        metavar="NAME:COUNT[:DEVICE]",
    )
    backend_directory: Path = option(
        Path("/opt/tritonserver/backends"),
        "directory of Python-based backends: `<name>/model.py` serves the models that name it",
    )
    repoagent_directory: Path = option(
        Path("/opt/tritonserver/repoagents"), "directory of repository agents: `<name>/agent.py`"
    )
    backend_config: tuple[str, ...] = option(
        (), "backend setting; repeatable", metavar="BACKEND,KEY=VALUE", common=True
    )

    @property
    def auto_complete(self) -> bool:
        """True if configurations are completed from the model files."""
        return not (self.disable_auto_complete_config or self.strict_model_config)

    @property
    def on_request(self) -> bool:
        """True if clients load and unload models."""
        return self.model_control_mode in ("explicit", "lazy")
