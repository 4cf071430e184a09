"""Features of tpx beside its backends that need a package."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from tpx.serving.backends.contract import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One of them; `describe` runs in a process of its own."""

    what: str
    package: str
    """As it is imported."""
    install: str
    describe: Callable[[], Description]


def _pdf() -> Description:
    import typst  # noqa: F401

    return Description(version=version("typst"))


def _stores() -> Description:
    import obstore  # noqa: F401

    return Description(version=version("obstore"), providers=("s3", "gs", "as"))


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


def _uvloop() -> Description:
    import uvloop

    return Description(version=version(uvloop.__name__))


def _decrypt() -> Description:
    import cryptography.fernet  # noqa: F401

    return Description(version=version("cryptography"))


def _otel() -> Description:
    import opentelemetry.exporter.otlp.proto.http.trace_exporter
    import opentelemetry.sdk.trace  # noqa: F401

    return Description(version=version("opentelemetry-sdk"))


FEATURES = {
    "gpu": Feature(
        what="GPU metrics and memory, by NVML",
        package="pynvml",
        install="pip install 'tpx[gpu]'",
        describe=_gpu,
    ),
    "pdf": Feature(
        what="reports as PDF",
        package="typst",
        install="pip install 'tpx[report]'",
        describe=_pdf,
    ),
    "stores": Feature(
        what="model repositories in object stores",
        package="obstore",
        install="pip install 'tpx[cloud]'",
        describe=_stores,
    ),
    "decrypt": Feature(
        what="the repository agent that decrypts",
        package="cryptography",
        install="pip install 'tpx[decrypt]'",
        describe=_decrypt,
    ),
    "otel": Feature(
        what="traces as spans of OpenTelemetry",
        package="opentelemetry",
        install="pip install 'tpx[otel]'",
        describe=_otel,
    ),
    "uvloop": Feature(
        what="the faster event loop", package="uvloop", install="pip install uvloop", describe=_uvloop
    ),
}
"""By the names that --require takes."""
