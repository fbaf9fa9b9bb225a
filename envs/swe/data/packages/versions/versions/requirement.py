"""Requirements like ">=1.2.0, <2.0.0", "^1.2.3" and "~1.2.3"."""

import operator

from versions.version import Version

_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


class Requirement:
    """A list of clauses that all must hold."""

    def __init__(self, text):
        self.clauses = []
        for clause in text.split(","):
            self.clauses.extend(_parse(clause.strip()))
        if not self.clauses:
            raise ValueError("an empty requirement")

    def allows(self, version):
        if isinstance(version, str):
            version = Version.parse(version)
        return all(test(version, bound) for test, bound in self.clauses)

    def best(self, versions):
        """The highest version that is allowed, or None."""
        allowed = [version for version in versions if self.allows(version)]
        return max(allowed) if allowed else None


def _parse(clause):
    if clause.startswith("^"):
        low = Version.parse(clause[1:])
        if low.major > 0:
            high = Version(low.major + 1)
        elif low.minor > 0:
            high = Version(0, low.minor + 1)
        else:
            high = Version(0, 0, low.patch + 1)
        return [(operator.ge, low), (operator.lt, high)]
    if clause.startswith("~"):
        low = Version.parse(clause[1:])
        return [(operator.ge, low), (operator.lt, Version(low.major, low.minor + 1))]
    for sign, test in _OPERATORS.items():
        if clause.startswith(sign):
            return [(test, Version.parse(clause[len(sign):]))]
    return [(operator.eq, Version.parse(clause))]
