"""The response cache: responses kept in memory up to a size limit, with LRU eviction.

The key covers everything a response depends on. Triton's key omits shapes, datatypes, outputs and
parameters, so that different requests can receive each other's responses there.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tpx.errors import UsageError
from tpx.protocol.tensors import Tensor
from tpx.serving.offload import COPIED_AT_ONCE_BYTES
from tpx.serving.request import CacheMiss, InferRequest, InferResponse
from tpx.serving.statistics import ModelStatistics

_clock = time.perf_counter_ns
_ENTRY_BYTES = 512
"""Overhead of an entry in addition to its tensors."""


class ResponseCache:
    """Cache shared by all models that use it. Event loop only."""

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
        """Return a number for a loaded model. A reload gets a new one and so starts without entries."""
        self._loads += 1
        return self._loads

    def get(self, key: bytes) -> InferResponse | None:
        """Return the response for a key, or None if it is not cached."""
        began_ns = _clock()
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
            self._entries.move_to_end(key)
        self.lookup_ns += _clock() - began_ns
        return _copy_with_outputs(entry[0], entry[0].outputs) if entry is not None else None

    def takes(self, key: bytes, response: InferResponse) -> bool:
        """Return True if `put` would store a response: it is new, and not larger than the cache."""
        return key not in self._entries and _entry_bytes(response) <= self.size_bytes

    def put(self, key: bytes, response: InferResponse, copies: Sequence[Tensor] | None = None) -> None:
        """Store a copy of a response that the cache `takes`, and evict older entries.

        `copies` are copies of its outputs, if they exist already.
        """
        began_ns = _clock()
        size = _entry_bytes(response)
        if key not in self._entries and size <= self.size_bytes:
            while self.used_bytes + size > self.size_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.used_bytes -= freed
                self.evictions += 1
            tensors = _copy_tensors(response.outputs) if copies is None else copies
            self._entries[key] = _copy_with_outputs(response, tensors), size
            self.used_bytes += size
        self.insertion_ns += _clock() - began_ns


class CachedModel:
    """Cache of one model, counted in its statistics."""

    def __init__(self, cache: ResponseCache, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._statistics = statistics
        self._load = cache.new_load()

    def renew(self) -> None:
        """Invalidate the responses cached so far."""
        self._load = self._cache.new_load()

    @staticmethod
    def is_large(request: InferRequest) -> bool:
        """Return True if hashing a request would block the event loop for too long."""
        return request.head.row_size * request.head.batch_size > COPIED_AT_ONCE_BYTES

    def key_of(self, request: InferRequest) -> bytes:
        """Return the key of a request. May be called from any thread."""
        return _compute_key(request, self._load)

    def hash_in_thread(self, request: InferRequest, then: Callable[[InferRequest, bytes], None]) -> None:
        """Call `then` with the key of a large request, later on the event loop."""
        future = asyncio.get_running_loop().run_in_executor(None, self.key_of, request)
        future.add_done_callback(lambda hashed: then(request, hashed.result()))

    def answer(self, request: InferRequest, key: bytes) -> InferResponse | None:
        """Return the cached response; on a miss, mark the request so that its response is stored."""
        began_ns = request.arrived_ns
        response = self._cache.get(key)
        now_ns = _clock()
        if response is None:
            request.cache_miss = CacheMiss(key, now_ns - began_ns)
            return None
        self._statistics.cached(now_ns - began_ns, now_ns)
        if len(response.outputs) != len(request.head.outputs):  # the model omitted some outputs
            given = {tensor.name for tensor in response.outputs}
            outputs = [bound for bound in request.head.outputs if bound.spec.name in given]
            request.head = request.head.with_outputs(tuple(outputs))
        return response

    def keep(
        self,
        request: InferRequest,
        response: InferResponse,
        then: Callable[[InferRequest, InferResponse], None],
    ) -> None:
        """Store the response of a request that missed, then call `then`; errors are not stored.

        A large response is copied in a thread first.
        """
        miss = request.cache_miss
        assert miss is not None
        began_ns = _clock()
        size = sum(len(tensor.data) for tensor in response.outputs)
        if size > COPIED_AT_ONCE_BYTES and response.error is None and self._cache.takes(miss.key, response):

            def store(copied: asyncio.Future[list[Tensor]]) -> None:
                if copied.exception() is None:  # otherwise there is no memory for them
                    self._cache.put(miss.key, response, copied.result())
                self._count_miss(miss, began_ns)
                then(request, response)

            future = asyncio.get_running_loop().run_in_executor(None, _copy_tensors, response.outputs)
            future.add_done_callback(store)
            return
        if response.error is None:
            self._cache.put(miss.key, response)
        self._count_miss(miss, began_ns)
        then(request, response)

    def _count_miss(self, miss: CacheMiss, began_ns: int) -> None:
        now_ns = _clock()
        self._statistics.missed(miss.lookup_ns + now_ns - began_ns, now_ns)


def _entry_bytes(response: InferResponse) -> int:
    """Return the memory that a response takes in the cache."""
    size = _ENTRY_BYTES + sum(len(tensor.data) for tensor in response.outputs)
    return size + len(repr(response.parameters)) if response.parameters else size


def _copy_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [Tensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in tensors]


def _copy_with_outputs(response: InferResponse, outputs: Sequence[Tensor]) -> InferResponse:
    """Return a response with these outputs and otherwise the same fields."""
    other = InferResponse(list(outputs))
    other.parameters = response.parameters
    return other


def _compute_key(request: InferRequest, load: int) -> bytes:
    """Return the key: load number, tensors with types and shapes, outputs, parameters; not the id."""
    import hashlib  # late: few servers cache responses

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
    """Return the cache of `--cache-config local,size=BYTES` or its older flag. Raises UsageError."""
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
    size = settings.pop("size", "")
    if not (size.isascii() and size.isdigit() and int(size)):
        raise UsageError("Failed to initialize LocalCache: config didn't contain a valid 'size' field.")
    if settings:
        raise UsageError(f"--cache-config local: unknown setting '{next(iter(settings))}' (known: size)")
    return ResponseCache(int(size))
