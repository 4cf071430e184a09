"""What installed packages add to the server: Python entry points, looked for by group and name on need."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, entry_points

from tpx.errors import LoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Something that a package adds under a name."""

    name: str
    target: str
    """`module:attribute`, as the package wrote it."""
    package: str
    version: str

    @property
    def origin(self) -> str:
        """The package and what it names, for messages."""
        return f"the package {self.package} {self.version}".rstrip() + f" (entry point {self.target})"


def offers(group: str) -> list[Offer]:
    """What the installed packages add to a group, by name; nothing is imported."""
    found = {_offer(entry) for entry in entry_points(group=group)}
    return sorted(found, key=lambda offer: (offer.name, offer.package, offer.target))


def offer_of(found: Sequence[Offer], name: str, what: str) -> Offer | None:
    """The one of this name; `what` says in errors what it is. Raises LoadError where several differ."""
    mine = [offer for offer in found if offer.name == name]
    if len({offer.target for offer in mine}) > 1:
        origins = " and ".join(offer.origin for offer in mine)
        raise LoadError(f"{what} '{name}' is added by {origins}: uninstall all but one of them")
    return mine[0] if mine else None


def imported(target: str) -> object:
    """The object that `module:attribute` names. Raises LoadError with what its import raised."""
    module, _, path = target.partition(":")
    try:
        found: object = import_module(module.strip())
        for attribute in filter(None, path.strip().split(".")):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as exc:
        raise LoadError(f"{type(exc).__name__}: {exc}") from exc
    return found


def _offer(entry: EntryPoint) -> Offer:
    target = entry.value.partition("[")[0].strip()  # what is in brackets are extras, which nobody uses
    package, version = _named(entry.dist)
    return Offer(name=entry.name, target=target, package=package, version=version)


def _named(distribution: Distribution | None) -> tuple[str, str]:
    """Name and version, as far as the metadata of a package tells them: it may be damaged."""
    if distribution is None:
        return "?", ""
    try:
        metadata = distribution.metadata
        return metadata["Name"] or "?", metadata["Version"] or ""
    except (KeyError, TypeError, ValueError, OSError):
        return "?", ""
