import pytest

from ttlcache import Cache, memoize


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    return Cache(2, ttl=10, clock=clock)


@pytest.mark.parametrize("size, ttl", [(0, None), (-1, None), (1, 0), (1, -5)])
def test_bounds_that_make_no_sense(size, ttl):
    with pytest.raises(ValueError):
        Cache(size, ttl)


def test_put_and_get(cache):
    cache.put("a", 1)
    assert cache.get("a") == 1
    assert cache.get("b") is None
    assert cache.get("b", 7) == 7


def test_a_value_may_be_none(cache):
    cache.put("a", None)
    assert "a" in cache
    assert cache.get("a", 5) is None


def test_put_again_replaces(cache):
    cache.put("a", 1)
    cache.put("a", 2)
    assert len(cache) == 1
    assert cache.get("a") == 2


def test_the_oldest_goes_first(cache):
    for key in "abc":
        cache.put(key, key)
    assert list(cache) == ["b", "c"]
    assert cache.evictions == 1


def test_the_size_is_reached_before_anything_goes(cache):
    cache.put("a", 1)
    cache.put("b", 2)
    assert len(cache) == 2
    assert cache.evictions == 0


def test_getting_makes_recent(cache):
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert list(cache) == ["a", "c"]


def test_putting_again_makes_recent(cache):
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    cache.put("c", 4)
    assert list(cache) == ["a", "c"]


def test_looking_does_not_make_recent(cache):
    cache.put("a", 1)
    cache.put("b", 2)
    assert "a" in cache
    cache.put("c", 3)
    assert list(cache) == ["b", "c"]


@pytest.mark.parametrize("passed, there", [(0, True), (9.5, True), (10, False), (11, False)])
def test_age_bound(cache, clock, passed, there):
    cache.put("a", 1)
    clock.now += passed
    assert ("a" in cache) is there
    assert (cache.get("a") == 1) is there
    assert len(cache) == int(there)


def test_no_age_bound(clock):
    cache = Cache(2, clock=clock)
    cache.put("a", 1)
    clock.now += 1e9
    assert cache.get("a") == 1


def test_expired_entries_make_room_without_eviction(cache, clock):
    cache.put("a", 1)
    clock.now += 5
    cache.put("b", 2)
    clock.now += 6
    cache.put("c", 3)
    assert list(cache) == ["b", "c"]
    assert cache.evictions == 0


def test_age(cache, clock):
    cache.put("a", 1)
    clock.now += 3
    assert cache.age("a") == 3
    cache.put("a", 1)
    assert cache.age("a") == 0


def test_pop(cache):
    cache.put("a", 1)
    assert cache.pop("a") == 1
    assert "a" not in cache
    with pytest.raises(KeyError):
        cache.pop("a")


def test_pop_of_an_expired_entry(cache, clock):
    cache.put("a", 1)
    clock.now += 20
    with pytest.raises(KeyError):
        cache.pop("a")


def test_counting(cache):
    cache.put("a", 1)
    cache.get("a")
    cache.get("a")
    cache.get("b")
    assert (cache.hits, cache.misses) == (2, 1)
    assert cache.hit_rate == pytest.approx(2 / 3)


def test_hit_rate_of_an_unused_cache(cache):
    assert cache.hit_rate == 0.0


def test_clear(cache):
    cache.put("a", 1)
    cache.get("a")
    cache.clear()
    assert len(cache) == 0
    assert cache.hits == 0


def test_memoize_calls_once():
    calls = []

    @memoize()
    def double(x, plus=0):
        calls.append(x)
        return 2 * x + plus

    assert [double(2), double(2), double(2, plus=1), double(3)] == [4, 4, 5, 6]
    assert calls == [2, 2, 3]
    assert double.__name__ == "double"


def test_memoize_remembers_none():
    calls = []

    @memoize()
    def nothing():
        calls.append(1)

    nothing()
    nothing()
    assert calls == [1]


def test_memoize_forgets_with_age(clock):
    calls = []

    @memoize(ttl=5, clock=clock)
    def f():
        calls.append(1)
        return len(calls)

    assert f() == 1
    clock.now += 5
    assert f() == 2


def test_memoize_does_not_remember_exceptions():
    calls = []

    @memoize()
    def fail():
        calls.append(1)
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fail()
    assert len(calls) == 2
