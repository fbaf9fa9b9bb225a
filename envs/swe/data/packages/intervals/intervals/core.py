"""Intervals [low, high], both ends included."""

from bisect import bisect_right


class Interval:
    """A closed interval."""

    def __init__(self, low, high):
        if low > high:
            raise ValueError(f"low {low} is above high {high}")
        self.low = low
        self.high = high

    @property
    def length(self):
        return self.high - self.low

    def __contains__(self, value):
        return self.low <= value <= self.high

    def __eq__(self, other):
        if not isinstance(other, Interval):
            return NotImplemented
        return self.low == other.low and self.high == other.high

    def __hash__(self):
        return hash((self.low, self.high))

    def __repr__(self):
        return f"Interval({self.low}, {self.high})"

    def overlaps(self, other):
        """Whether they share at least one point."""
        return self.low <= other.high and other.low <= self.high

    def intersection(self, other):
        """The shared part, or None."""
        if not self.overlaps(other):
            return None
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def hull(self, other):
        """The smallest interval that covers both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def distance(self, other):
        """The gap between them; 0 when they touch or overlap."""
        if self.overlaps(other):
            return 0
        if self.high < other.low:
            return other.low - self.high
        return self.low - other.high

    def shift(self, amount):
        return Interval(self.low + amount, self.high + amount)

    def split(self, parts):
        """Equal parts, from low to high."""
        if parts < 1:
            raise ValueError("parts must be at least 1")
        step = self.length / parts
        return [Interval(self.low + step * i, self.low + step * (i + 1)) for i in range(parts)]


class IntervalSet:
    """Intervals kept sorted and merged where they touch."""

    def __init__(self, intervals=()):
        self._items = []
        for interval in intervals:
            self.add(interval)

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)

    def __contains__(self, value):
        index = bisect_right([item.low for item in self._items], value) - 1
        return index >= 0 and value in self._items[index]

    def __repr__(self):
        return f"IntervalSet({self._items})"

    @property
    def total_length(self):
        return sum(item.length for item in self._items)

    def add(self, interval):
        kept = []
        for item in self._items:
            if item.overlaps(interval):
                interval = item.hull(interval)
            else:
                kept.append(item)
        kept.append(interval)
        kept.sort(key=lambda item: item.low)
        self._items = kept

    def gaps(self):
        """The open spaces between neighbours, as (low, high) pairs."""
        return [(a.high, b.low) for a, b in zip(self._items, self._items[1:])]

    def intersection(self, other):
        found = IntervalSet()
        for a in self._items:
            for b in other:
                shared = a.intersection(b)
                if shared is not None:
                    found.add(shared)
        return found
