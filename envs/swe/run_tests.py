"""Runs pytest inside the grading sandbox and reports over a channel that printing can't imitate.

Runs as a program of its own, with nothing of this package importable, in a folder without code. It reads one JSON
object on stdin: `nonce`, `repository`, `paths` (of packages), `code` (the path of the repository's), `tests` and
`canary`. The nonce is known to this process's memory alone. A first line that starts with it says that pytest is
there, before any code of the repository has run; the last one is the report.

What this can't stop: code under test shares the process. It is watched instead: pytest's functions are
compared with what they were, and a planted test that must fail has to fail.
"""

import json
import os
import site
import sys
from typing import Any


def main() -> None:
    """Runs what stdin orders."""
    order = json.loads(sys.stdin.readline())
    site.setquit()  # `exit` is a name of every program, also of one without the system's own packages
    report = os.fdopen(os.dup(1), "w")
    sys.path += order["paths"]

    import _pytest.assertion.rewrite
    import _pytest.python
    import _pytest.reports
    import _pytest.runner
    import _pytest.skipping  # noqa: F401 - its functions are watched too
    import pluggy  # noqa: F401
    import pytest

    report.write("\n" + order["nonce"] + '"begun"\n')
    report.flush()
    modules = [m for n, m in sys.modules.items() if n.split(".")[0] in ("_pytest", "pluggy", "pytest")]
    before = _fingerprint(modules)
    # Last, so that no file of the repository stands in for a module of Python's or of pytest's.
    sys.path.remove("")
    sys.path.append(order["code"])
    os.environ["PYTHONPATH"] = os.pathsep.join([*order["paths"], order["code"]])  # of processes that tests start
    os.chdir(order["repository"])
    watcher = _Watcher(order["canary"])
    arguments = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore", "--tb=short", *order["tests"]]
    code = pytest.main([*arguments, order["canary"]], plugins=[watcher])
    intact = watcher.canary_failed and _fingerprint(modules) == before
    result = {"code": int(code), "intact": intact, "outcomes": watcher.outcomes, "messages": watcher.messages}
    report.write("\n" + order["nonce"] + json.dumps(result) + "\n")
    report.flush()
    os._exit(0)


def _fingerprint(modules: list[Any]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for module in modules:
        for name, value in vars(module).items():
            if callable(value):
                found[module.__name__, name] = id(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.update({(module.__name__, name, key): id(f) for key, f in vars(value).items() if callable(f)})
    return found


class _Watcher:
    """Collects outcomes as pytest's own reports give them."""

    def __init__(self, canary: str) -> None:
        self.canary = canary
        self.canary_failed = False
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.canary in report.nodeid:
            self.canary_failed |= report.when == "call" and report.outcome == "failed"
            return
        held = self.outcomes.get(report.nodeid)
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.outcome == "skipped" else "xpassed"
        if report.when == "call" or outcome != "passed":
            self.outcomes[report.nodeid] = "failed" if held == "failed" else outcome
        if report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            self.messages[report.nodeid] = str(getattr(crash, "message", report.longrepr))[:2000]

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self.messages[report.nodeid] = str(report.longrepr)[-2000:]


if __name__ == "__main__":
    main()
