"""Classes found by name and imported late: those of tpx in a table, and those that installed packages add by
entry points."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec

from tpx.errors import LoadError, TpxError
from tpx.options import nearest


@dataclass(frozen=True, slots=True)
class Known:
    """A class of tpx, imported when it is first needed."""

    target: str
    """Module and class."""
    package: str = ""
    """What it needs beside tpx, as it is imported."""
    install: str = ""
    """The command that brings it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A class that a package adds under a name."""

    name: str
    target: str
    """`module:attribute`, as the package wrote it."""
    package: str
    version: str

    @property
    def origin(self) -> str:
        """The package and what it names, for messages."""
        return f"the package {self.package} {self.version}".rstrip() + f" (entry point {self.target})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionKind:
    """A kind of extension: backends or repository agents."""

    noun: str
    """For messages."""
    group: str
    """Of entry points."""
    known: Mapping[str, Known]
    needs: Sequence[str]
    """The attributes that make one."""


def names(kind: ExtensionKind) -> list[str]:
    """Return the names that tpx has, then those that packages add."""
    return [*kind.known, *sorted({offer.name for offer in offers(kind.group)} - kind.known.keys())]


def make(kind: ExtensionKind, name: str) -> object:
    """Make an object of this name; None if there is none. Raises LoadError with what is missing or wrong."""
    if name in kind.known:
        return _made(kind, name, kind.known[name])
    offer = offer_of(kind, name)
    return None if offer is None else _made_by(kind, offer)


def unknown(kind: ExtensionKind, name: str, fault: str, others: Sequence[str] = ()) -> str:
    """Return an error about an unknown name: the known ones, and the one that may be meant."""
    there = [*names(kind), *others]
    return f"{fault} (tpx has: {', '.join(there)}){nearest(name, there)}"


def offers(group: str) -> list[Offer]:
    """Return what the installed packages add to a group, by name; nothing is imported."""
    found = {_offer(entry) for entry in entry_points(group=group)}
    return sorted(found, key=lambda offer: (offer.name, offer.package, offer.target))


def offer_of(kind: ExtensionKind, name: str) -> Offer | None:
    """Return what a package adds under a name. Raises LoadError where several do."""
    mine = [offer for offer in offers(kind.group) if offer.name == name]
    if len({offer.target for offer in mine}) > 1:
        origins = " and ".join(offer.origin for offer in mine)
        raise LoadError(f"{kind.noun} '{name}' is added by {origins}: uninstall all but one of them")
    return mine[0] if mine else None


def imported(target: str) -> object:
    """The object that `module:attribute` names. Raises LoadError with what its import raised."""
    module, _, path = target.partition(":")
    with foreign():
        found: object = import_module(module.strip())
        for attribute in filter(None, path.strip().split(".")):
            found = getattr(found, attribute)
    return found


@contextmanager
def foreign(blame: str = "") -> Iterator[None]:
    """Run foreign code: what it raises, but for TpxError, becomes a LoadError that begins with `blame`."""
    try:
        yield
    except TpxError:
        raise
    except (Exception, SystemExit) as exc:
        raise LoadError(f"{blame}{type(exc).__name__}: {exc}") from exc


def made(origin: str, found: object, needs: Sequence[str]) -> object:
    """Make an object of a class. Raises LoadError that begins with `origin` where it lacks `needs`."""
    if not callable(found):
        raise LoadError(f"{origin}, which is not a class")
    with foreign(f"{origin}, which cannot be made: "):
        one: object = found()
    missing = [each for each in needs if not hasattr(one, each)]
    if missing:
        raise LoadError(f"{origin}, which has no {', '.join(missing)}")
    return one


def _made(kind: ExtensionKind, name: str, known: Known) -> object:
    if known.package and not is_installed(known.package):
        raise LoadError(f"{kind.noun} '{name}' needs the package {known.package}: {known.install}")
    try:
        found = imported(known.target)
    except LoadError as exc:
        raise LoadError(
            f"{kind.noun} '{name}' cannot be used, its package {known.package or 'tpx'} fails to import "
            f"(`tpx doctor` tells more): {exc}"
        ) from exc
    return made(f"{kind.noun} '{name}' is {known.target}", found, kind.needs)


def _made_by(kind: ExtensionKind, offer: Offer) -> object:
    origin = f"{kind.noun} '{offer.name}' is added by {offer.origin}"
    try:
        found = imported(offer.target)
    except LoadError as exc:
        raise LoadError(f"{origin}, which cannot be imported: {exc}") from exc
    return made(origin, found, kind.needs)


def _offer(entry: EntryPoint) -> Offer:
    target = entry.value.partition("[")[0].strip()  # extras in brackets have no meaning here
    package, version = _named(entry.dist)
    return Offer(name=entry.name, target=target, package=package, version=version)


def _named(distribution: Distribution | None) -> tuple[str, str]:
    """Name and version, as far as the metadata of a package tells them: it may be damaged."""
    if distribution is None:
        return "?", ""
    try:
        told = distribution.metadata
        return told.get_all("Name", ["?"])[0], told.get_all("Version", [""])[0]
    except (KeyError, TypeError, ValueError, OSError):
        return "?", ""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; of `a.b` not even `a` may be there."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
