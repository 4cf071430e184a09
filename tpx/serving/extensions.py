"""Classes looked up by name and imported lazily: tpx's own from a table, others by entry point."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tpx.errors import LoadError, TpxError
from tpx.options import nearest

if TYPE_CHECKING:
    from importlib.metadata import Distribution


class BuiltIn(NamedTuple):
    """A class of tpx, imported on first use."""

    target: str
    """`module:class`."""
    package: str = ""
    """Import name of an additional package that it needs."""
    install: str = ""
    """Command that installs the package."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A class that a package registers under a name."""

    name: str
    target: str
    """`module:attribute` as given by the package."""
    package: str
    version: str

    @property
    def origin(self) -> str:
        """Return the package and the target, for messages."""
        return f"the package {self.package} {self.version}".rstrip() + f" (entry point {self.target})"


class ExtensionKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of extension: backends or repository agents."""

    noun: str
    """Noun for messages."""
    group: str
    """Group of entry points."""
    known: Mapping[str, BuiltIn]
    needs: Sequence[str]
    """Attributes that the class must have."""


def names(kind: ExtensionKind) -> list[str]:
    """Return tpx's names, followed by those of packages."""
    return [*kind.known, *sorted({offer.name for offer in offers(kind.group)} - kind.known.keys())]


def make(kind: ExtensionKind, name: str) -> object:
    """Create an object of this name, None if it is unknown. Raises LoadError naming what is wrong."""
    named = f"{kind.noun} '{name}'"
    known = kind.known.get(name)
    offer = None if known is not None else offer_of(kind, name)
    if known is not None:
        if known.package and not is_installed(known.package):
            raise LoadError(f"{named} needs the package {known.package}: {known.install}")
        target, origin, package = known.target, f"{named} is {known.target}", known.package or "tpx"
        blame = f"{named} cannot be used, its package {package} fails to import (`tpx doctor` shows more)"
    elif offer is not None:
        target, origin = offer.target, f"{named} is added by {offer.origin}"
        blame = f"{origin}, which cannot be imported"
    else:
        return None
    try:
        found = imported(target)
    except LoadError as exc:
        raise LoadError(f"{blame}: {exc}") from exc
    return made(origin, found, kind.needs)


def unknown(kind: ExtensionKind, name: str, fault: str, others: Sequence[str] = ()) -> str:
    """Return an error message for an unknown name, listing the known ones and the most similar."""
    known = [*names(kind), *others]
    return f"{fault} (tpx has: {', '.join(known)}){nearest(name, known)}"


def offers(group: str) -> list[Offer]:
    """Return the registrations of installed packages in a group, by name; imports nothing."""
    # late: it takes 10 ms, most for the email package, and few servers have extensions
    from importlib.metadata import entry_points

    found = set()
    for entry in entry_points(group=group):
        target = entry.value.partition("[")[0].strip()  # extras in brackets have no meaning here
        package, version = _read_name_and_version(entry.dist)
        found.add(Offer(name=entry.name, target=target, package=package, version=version))
    return sorted(found, key=lambda offer: (offer.name, offer.package, offer.target))


def offer_of(kind: ExtensionKind, name: str) -> Offer | None:
    """Return the registration of a name. Raises LoadError if several packages have one."""
    mine = [offer for offer in offers(kind.group) if offer.name == name]
    if len({offer.target for offer in mine}) > 1:
        origins = " and ".join(offer.origin for offer in mine)
        raise LoadError(f"{kind.noun} '{name}' is added by {origins}: uninstall all but one of them")
    return mine[0] if mine else None


def imported(target: str) -> object:
    """Return the object named by `module:attribute`. Raises LoadError with the exception of its import."""
    module, _, path = target.partition(":")
    with foreign():
        found: object = import_module(module.strip())
        for attribute in filter(None, path.strip().split(".")):
            found = getattr(found, attribute)
    return found


@contextmanager
def foreign(blame: str = "") -> Iterator[None]:
    """Convert exceptions of foreign code, except TpxError, to LoadError with the prefix `blame`."""
    try:
        yield
    except TpxError:
        raise
    except (Exception, SystemExit) as exc:
        raise LoadError(f"{blame}{type(exc).__name__}: {exc}") from exc


def made(origin: str, found: object, needs: Sequence[str]) -> object:
    """Return an object of a class. Raises LoadError with the prefix `origin` if it lacks one of `needs`."""
    if not callable(found):
        raise LoadError(f"{origin}, which is not a class")
    with foreign(f"{origin}, which cannot be made: "):
        one: object = found()
    missing = [each for each in needs if not hasattr(one, each)]
    if missing:
        raise LoadError(f"{origin}, which has no {', '.join(missing)}")
    return one


def _read_name_and_version(distribution: "Distribution | None") -> tuple[str, str]:
    """Return name and version, as far as the package's metadata is readable."""
    if distribution is None:
        return "?", ""
    try:
        metadata = distribution.metadata
        return metadata.get_all("Name", ["?"])[0], metadata.get_all("Version", [""])[0]
    except (KeyError, TypeError, ValueError, OSError):
        return "?", ""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; for `a.b`, `a` may be missing too."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
