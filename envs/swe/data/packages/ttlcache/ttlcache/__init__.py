"""Bounded caches."""

from ttlcache.cache import Cache, memoize

__all__ = ["Cache", "memoize"]
