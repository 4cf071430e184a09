"""The response cache on the metrics page, in Triton's names and words."""

from collections.abc import Sequence

from tpx.serving.cache import ResponseCache
from tpx.serving.frontends.metrics.text import Family


class CacheFamilies:
    """Gauges of the whole cache; each model has counters of its own."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache

    def families(self) -> Sequence[Family]:
        cache = self._cache
        values = (
            ("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.used_bytes / cache.size_bytes),
            ("nv_cache_num_entries", "Number of responses stored in response cache", len(cache)),
            ("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.hits + cache.misses),
            ("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits),
            ("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses),
            ("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions),
            (
                "nv_cache_lookup_duration",
                "Total cache lookup duration (hit and miss), in microseconds",
                cache.lookup_ns // 1000,
            ),
            (
                "nv_cache_insertion_duration",
                "Total cache insertion duration, in microseconds",
                cache.insertion_ns // 1000,
            ),
        )
        return [
            Family(name=name, kind="gauge", help=text, lines=(("", value),)) for name, text, value in values
        ]
