"""The response cache: answers that were given before, kept in memory up to a size, least recently used out.

The key has everything that an answer depends on: Triton's leaves out shapes, datatypes, outputs and
parameters, so that different requests can get each other's answers there.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

from tpx.errors import UsageError
from tpx.protocol.tensors import Tensor
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.statistics import ModelStatistics

_clock = time.perf_counter_ns
_ENTRY_BYTES = 512
"""What an entry costs beside its tensors."""


class ResponseCache:
    """Shared by all models that use it; on the event loop."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.hits = self.misses = self.evictions = 0
        self.lookup_ns = self.insertion_ns = 0
        self._loads = 0
        self._entries: OrderedDict[bytes, tuple[InferResponse, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def new_load(self) -> int:
        """A number for a model that was loaded, be it again: it has nothing in the cache yet."""
        self._loads += 1
        return self._loads

    def get(self, key: bytes) -> InferResponse | None:
        """The answer to the request with this key, if it is still here."""
        began_ns = _clock()
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
            self._entries.move_to_end(key)
        self.lookup_ns += _clock() - began_ns
        return _copy(entry[0], entry[0].outputs) if entry is not None else None

    def put(self, key: bytes, response: InferResponse) -> None:
        """Keep a copy of an answer, if it is not larger than the whole cache; older ones make room."""
        began_ns = _clock()
        size = _ENTRY_BYTES + sum(len(tensor.data) for tensor in response.outputs)
        if response.parameters:
            size += len(repr(response.parameters))
        if key not in self._entries and size <= self.size_bytes:
            while self.used_bytes + size > self.size_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed
                self.evictions += 1
            tensors = [Tensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in response.outputs]
            self._entries[key] = _copy(response, tensors), size
            self.used_bytes += size
        self.insertion_ns += _clock() - began_ns


class CachedModel:
    """The cache as one model uses it, counted in its statistics."""

    def __init__(self, cache: ResponseCache, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._statistics = statistics
        self._load = cache.new_load()

    def renew(self) -> None:
        """Answers given so far are not those that would be given now."""
        self._load = self._cache.new_load()

    def answer(self, request: InferRequest) -> InferResponse | None:
        """The answer that was given before; without one the request remembers that it has to be kept."""
        began_ns = _clock()
        key = _key_of(request, self._load)
        response = self._cache.get(key)
        now_ns = _clock()
        if response is None:
            request.cache_miss = Miss(key, now_ns - began_ns)
            return None
        self._statistics.cached(now_ns - began_ns, now_ns)
        if len(response.outputs) != len(request.head.outputs):  # the model has left some out
            given = {tensor.name for tensor in response.outputs}
            outputs = [bound for bound in request.head.outputs if bound.spec.name in given]
            request.head = request.head.with_outputs(tuple(outputs))
        return response

    def keep(self, request: InferRequest, response: InferResponse) -> None:
        """A request that was not found has its answer; errors are not kept."""
        miss: Miss = request.cache_miss
        began_ns = _clock()
        if response.error is None:
            self._cache.put(miss.key, response)
        now_ns = _clock()
        self._statistics.missed(miss.lookup_ns + now_ns - began_ns, now_ns)


class Miss:
    """A request that was not found: where its answer goes, and how long it took to find that out."""

    __slots__ = ("key", "lookup_ns")

    def __init__(self, key: bytes, lookup_ns: int) -> None:
        self.key = key
        self.lookup_ns = lookup_ns


def _copy(response: InferResponse, outputs: Sequence[Tensor]) -> InferResponse:
    """An answer with these outputs, and what else was said."""
    other = InferResponse(list(outputs))
    other.parameters = response.parameters
    return other


def _key_of(request: InferRequest, load: int) -> bytes:
    """The load of the model, inputs with their types and shapes, wanted outputs, parameters; not the id."""
    head = request.head
    hashed = hashlib.blake2b(digest_size=24)
    tensors = sorted(zip(head.inputs, request.buffers, strict=True), key=lambda pair: pair[0].spec.name)
    words = (
        load,
        [(i.spec.name, i.spec.datatype, i.shape, len(data)) for i, data in tensors],
        [(o.spec.name, o.classification) for o in head.outputs],
        sorted(head.parameters.items(), key=lambda item: item[0]),
    )
    hashed.update(repr(words).encode())
    for _, data in tensors:
        hashed.update(data)
    return hashed.digest()


def parse_cache_config(flags: Sequence[str], size_bytes: int = 0) -> ResponseCache | None:
    """The cache of `--cache-config local,size=BYTES`, or of --response-cache-byte-size. Raises UsageError."""
    caches: dict[str, dict[str, str]] = {}
    for flag in flags:
        name, comma, pair = flag.partition(",")
        key, equals, value = pair.partition("=")
        if not comma or not equals:
            raise UsageError(f"--cache-config must be <cache>,<key>=<value>, got '{flag}'")
        caches.setdefault(name, {})[key] = value
    if size_bytes and caches:
        raise UsageError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
            "one or the other."
        )
    if size_bytes:
        return ResponseCache(size_bytes)
    if not caches:
        return None
    if len(caches) > 1:
        raise UsageError(
            "found multiple cache configurations, but only a single cache is currently supported"
        )
    [(name, settings)] = caches.items()
    if name != "local":
        raise UsageError(f"--cache-config: there is no cache '{name}' (there is: local)")
    return ResponseCache(_local_size(settings))


def _local_size(settings: dict[str, str]) -> int:
    size = settings.pop("size", "")
    if not (size.isascii() and size.isdigit() and int(size)):
        raise UsageError("Failed to initialize LocalCache: config didn't contain a valid 'size' field.")
    if settings:
        raise UsageError(f"--cache-config local: unknown setting '{next(iter(settings))}' (known: size)")
    return int(size)
