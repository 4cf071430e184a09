"""The options that say what kind of service is measured, and what only some kinds need."""

from dataclasses import dataclass
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import nearest, option
from tpx.perf.clients.endpoint import SERVICES, ServiceKind, ServiceSettings
from tpx.perf.clients.model import ModelKey
from tpx.perf.settings import refuse

_SERVICE = "Service"

KINDS: dict[str, ServiceKind] = {
    "triton": "triton",
    "tfserving": "tfserving",
    "torchserve": "torchserve",
    "triton_c_api": "inprocess",
    "openai": "openai",
    "inprocess": "inprocess",
    "local": "inprocess",
}
"""By what a user writes."""


def parse_kind(text: str) -> ServiceKind:
    """A kind of service, by any of its names."""
    if text.lower() == "dynamic_grpc":
        raise UsageError(
            "tpx perf has no --service-kind dynamic_grpc: methods of any service, by their .proto, are not "
            "called; services of Triton's protocol are --service-kind triton -i grpc"
        )
    if text.lower() not in KINDS:
        names = ", ".join(f"'{name}'" for name in KINDS)
        close = nearest(text.lower(), KINDS)
        refuse(
            "--service-kind",
            f"Unsupported type provided: '{text}'. The available options are {names}{close}.",
        )
    return KINDS[text.lower()]


def parse_composing(text: str) -> tuple[ModelKey, ...]:
    """`a:3,b`: models with their versions."""
    keys = []
    for part in text.replace(" ", "").split(","):
        name, colon, version = part.partition(":")
        if not name or (colon and not version.isdecimal()):
            refuse("--bls-composing-models", f"The value '{text}' does not match <name>[:<version>],...")
        keys.append(ModelKey(name, version))
    return tuple(dict.fromkeys(keys))


@dataclass(frozen=True, slots=True)
class ComposingModels:
    """The models that a model calls by itself, which its configuration does not tell."""

    keys: tuple[ModelKey, ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{key.name}:{key.version}".rstrip(":") for key in self.keys)


def _composing(text: str) -> ComposingModels:
    return ComposingModels(parse_composing(text))


NONE_COMPOSING = ComposingModels()


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What is at the other end."""

    service_kind: ServiceKind = option(
        "triton",
        "triton (any v2 server), inprocess (the engine here, without a network; also called triton_c_api "
        "and local), openai, torchserve or tfserving",
        section=_SERVICE,
        metavar="KIND",
        parse=parse_kind,
    )
    endpoint: str = option(
        "", "openai: the path of the service, such as v1/chat/completions", section=_SERVICE, metavar="PATH"
    )
    model_signature_name: str = option(
        "serving_default", "tfserving: which of the model's signatures", section=_SERVICE, metavar="NAME"
    )
    model_repository: tuple[Path, ...] = option(
        (), "inprocess: the directory of the models (repeatable)", section=_SERVICE, metavar="DIR"
    )
    bls_composing_models: ComposingModels = option(
        NONE_COMPOSING,
        "models that the model calls, whose statistics are reported with its own",
        section=_SERVICE,
        metavar="NAME[:VERSION],...",
        parse=_composing,
    )

    def check_service(self, protocol: str) -> None:
        """Raise UsageError for a kind without what it needs, and for what it has no use for."""
        kind = self.service_kind
        if kind == "openai" and not self.endpoint:
            raise UsageError(
                'Must supply --endpoint for OpenAI service kind. For example, "v1/chat/completions".'
            )
        if kind == "inprocess" and not self.model_repository:
            raise UsageError("--model-repository should not be empty when using service-kind=triton_c_api.")
        spoken = SERVICES.get(kind, {protocol: ""})
        if protocol not in spoken:
            raise UsageError(f"--service-kind {kind} is reached with -i {', '.join(spoken)}")
        needs = {
            "--endpoint": ("openai", bool(self.endpoint)),
            "--model-repository": ("inprocess", bool(self.model_repository)),
            "--model-signature-name": ("tfserving", self.model_signature_name != "serving_default"),
        }
        for flag, (owner, given) in needs.items():
            if given and kind != owner:
                raise UsageError(f"{flag} says something to --service-kind {owner} only, and this is {kind}")
        if self.bls_composing_models.keys and kind not in ("triton", "inprocess"):
            raise UsageError(f"--bls-composing-models: --service-kind {kind} has no statistics of models")

    @property
    def service(self) -> ServiceSettings:
        """What the connections are told."""
        return ServiceSettings(
            kind=self.service_kind,
            path=self.endpoint.strip("/"),
            signature=self.model_signature_name,
            repositories=self.model_repository,
        )
