"""A cache bounded by size and by age."""

import functools
import time
from collections import OrderedDict


class Cache:
    """Keeps the most recently used entries.

    Entries older than `ttl` seconds are gone; past `size` entries the least recently used one goes.
    """

    def __init__(self, size, ttl=None, clock=time.monotonic):
        if size < 1:
            raise ValueError("size must be at least 1")
        if ttl is not None and ttl <= 0:
            raise ValueError("ttl must be positive")
        self.size = size
        self.ttl = ttl
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._clock = clock
        self._entries = OrderedDict()

    def __len__(self):
        self._drop_expired()
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries and not self._expired(key)

    def __iter__(self):
        """Keys, the least recently used first."""
        self._drop_expired()
        return iter(list(self._entries))

    def get(self, key, default=None):
        if key not in self:
            self._entries.pop(key, None)
            self.misses += 1
            return default
        self.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key, value):
        self._entries[key] = (value, self._clock())
        self._entries.move_to_end(key)
        if len(self._entries) > self.size:
            self._drop_expired()
        while len(self._entries) > self.size:
            self._entries.popitem(last=False)
            self.evictions += 1

    def pop(self, key):
        """Takes an entry out; KeyError when it is not there."""
        if key not in self:
            raise KeyError(key)
        return self._entries.pop(key)[0]

    def clear(self):
        self._entries.clear()
        self.hits = self.misses = self.evictions = 0

    def age(self, key):
        """Seconds since the entry was put."""
        return self._clock() - self._entries[key][1]

    @property
    def hit_rate(self):
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def _expired(self, key):
        return self.ttl is not None and self.age(key) >= self.ttl

    def _drop_expired(self):
        for key in [key for key in self._entries if self._expired(key)]:
            del self._entries[key]


def memoize(size=128, ttl=None, clock=time.monotonic):
    """Remembers a function's results by its arguments; exceptions are not remembered."""

    def decorate(function):
        cache = Cache(size, ttl, clock)
        missing = object()

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            key = (args, tuple(sorted(kwargs.items())))
            value = cache.get(key, missing)
            if value is missing:
                value = function(*args, **kwargs)
                cache.put(key, value)
            return value

        wrapped.cache = cache
        return wrapped

    return decorate
