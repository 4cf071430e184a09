"""Features of tpx beside its backends that need a package."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version

from tpx.serving.backends.contract import Description


def _nothing_more() -> Description:
    return Description()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One of them, with the modules that it imports."""

    what: str
    package: str
    """As it is imported."""
    install: str
    distribution: str = ""
    """Tells the version."""
    modules: tuple[str, ...] = ()
    more: Callable[[], Description] = _nothing_more
    """Tells what its version does not."""

    def describe(self) -> Description:
        """Import what it needs and describe it; in a process of its own."""
        for module in (self.package, *self.modules):
            import_module(module)
        return replace(self.more(), version=version(self.distribution)) if self.distribution else self.more()


def _gpu() -> Description:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        return Description(lacks=f"there is no NVIDIA driver that answers: {exc}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return Description(
            version=f"driver {_text(pynvml.nvmlSystemGetDriverVersion())}",
            devices=tuple(
                f"{_text(pynvml.nvmlDeviceGetName(handle))}, "
                f"{pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.0f} GiB"
                for handle in handles
            ),
            lacks="" if handles else "the NVIDIA driver has no GPU",
        )
    except pynvml.NVMLError as exc:
        return Description(lacks=f"the NVIDIA driver does not tell its GPUs: {exc}")
    finally:
        pynvml.nvmlShutdown()


def _text(value: bytes | str) -> str:
    """Older versions of nvidia-ml-py give bytes."""
    return value.decode() if isinstance(value, bytes) else value


FEATURES = {
    "gpu": Feature(
        what="GPU metrics and memory, by NVML", package="pynvml", install="pip install 'tpx[gpu]'", more=_gpu
    ),
    "pdf": Feature(
        what="reports as PDF", package="typst", install="pip install 'tpx[report]'", distribution="typst"
    ),
    "stores": Feature(
        what="model repositories in object stores",
        package="obstore",
        install="pip install 'tpx[cloud]'",
        distribution="obstore",
        more=lambda: Description(providers=("s3", "gs", "as")),
    ),
    "decrypt": Feature(
        what="the repository agent that decrypts",
        package="cryptography",
        install="pip install 'tpx[decrypt]'",
        distribution="cryptography",
        modules=("cryptography.fernet",),
    ),
    "otel": Feature(
        what="traces as spans of OpenTelemetry",
        package="opentelemetry",
        install="pip install 'tpx[otel]'",
        distribution="opentelemetry-sdk",
        modules=("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace"),
    ),
    "uvloop": Feature(
        what="the faster event loop",
        package="uvloop",
        install="pip install uvloop",
        distribution="uvloop",
    ),
}
"""By the names that --require takes."""
