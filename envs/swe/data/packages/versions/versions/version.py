"""A semantic version: MAJOR.MINOR.PATCH, with an optional pre-release and build."""

import re
from functools import total_ordering

_PATTERN = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


@total_ordering
class Version:
    """A version; the build takes no part in comparisons."""

    def __init__(self, major, minor=0, patch=0, pre=(), build=""):
        if min(major, minor, patch) < 0:
            raise ValueError("numbers of a version are not negative")
        self.major = major
        self.minor = minor
        self.patch = patch
        self.pre = tuple(pre)
        self.build = build

    @classmethod
    def parse(cls, text):
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a semantic version: {text!r}")
        major, minor, patch, pre, build = match.groups()
        parts = pre.split(".") if pre else []
        for part in parts:
            if part.isdigit() and len(part) > 1 and part[0] == "0":
                raise ValueError(f"leading zero in {text!r}")
        pre = [int(part) if part.isdigit() else part for part in parts]
        return cls(int(major), int(minor), int(patch), pre, build or "")

    @property
    def is_stable(self):
        return self.major > 0 and not self.pre

    def __str__(self):
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        if self.build:
            text += "+" + self.build
        return text

    def __repr__(self):
        return f"Version.parse({str(self)!r})"

    def _numbers(self):
        return (self.major, self.minor, self.patch)

    def __eq__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        return self._numbers() == other._numbers() and self.pre == other.pre

    def __hash__(self):
        return hash((self._numbers(), self.pre))

    def __lt__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        if self._numbers() != other._numbers():
            return self._numbers() < other._numbers()
        return _pre_is_lower(self.pre, other.pre)

    def bump(self, part):
        """The next version: part is "major", "minor" or "patch"."""
        if part == "major":
            return Version(self.major + 1)
        if part == "minor":
            return Version(self.major, self.minor + 1)
        if part == "patch":
            # A pre-release comes before its own release.
            patch = self.patch if self.pre else self.patch + 1
            return Version(self.major, self.minor, patch)
        raise ValueError(f"unknown part {part!r}")


def _pre_is_lower(a, b):
    """Whether pre-release a comes before b; no pre-release comes last."""
    if not a or not b:
        return bool(a) and not b
    for left, right in zip(a, b):
        if left == right:
            continue
        if isinstance(left, int) and isinstance(right, int):
            return left < right
        if isinstance(left, int) or isinstance(right, int):
            return isinstance(left, int)
        return left < right
    return len(a) < len(b)
