"""Runs pytest inside the grading sandbox and reports over a channel that printing can't imitate.

As a program it stands alone, with nothing of this package importable, in a folder without code. It reads one JSON
object on stdin: `nonce`, `repository`, `paths` (of packages), `code` (the path of the repository's), `tests` and
`canary`. The nonce is known to this process's memory alone. A first line that starts with it says that pytest is
there, before any code of the repository has run; the last one is the report.

As a plugin of the name below it reports in the same way on a run of pytest that another program starts; its nonce
is in a file, which it removes.

What this can't stop: code under test shares the process. It is watched instead: pytest's functions are
compared with what they were, and a planted test that must fail has to fail.

It runs on every Python from 3.6 on: images of old repositories have nothing newer.
"""

import hashlib
import json
import os
import site
import sys
from typing import Any, Iterator  # noqa: UP035 - see above

PLUGIN = "skyrl_watch"


def main() -> None:
    """Runs what stdin orders."""
    order = json.loads(sys.stdin.readline())
    site.setquit()  # `exit` is a name of every program, also of one without the system's own packages
    sys.path += order["paths"]
    watcher = _Watcher(order["nonce"], order["canary"])
    import pytest

    # Last, so that no file of the repository stands in for a module of Python's or of pytest's.
    sys.path.remove("")
    sys.path.append(order["code"])
    os.environ["PYTHONPATH"] = os.pathsep.join([*order["paths"], order["code"]])  # of processes that tests start
    os.chdir(order["repository"])
    arguments = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore", "--tb=short", *order["tests"]]
    watcher.finish(int(pytest.main([*arguments, order["canary"]], plugins=[watcher])))
    os._exit(0)


def pytest_addoption(parser: Any, pluginmanager: Any) -> None:
    """As a plugin: watches this run, if it is the one that was ordered."""
    if _ordered is not None:
        pluginmanager.register(_ordered)


def pytest_unconfigure(config: Any) -> None:
    """As a plugin: reports."""
    if _ordered is not None:
        _ordered.finish(_ordered.code)


def _take_order() -> "_Watcher | None":
    """The watcher of a run by another program. Runs that this one starts find no order."""
    os.environ.pop("PYTEST_ADDOPTS", None)
    nonce = taken_nonce()
    return None if nonce is None else _Watcher(nonce, "")


def taken_nonce() -> "str | None":
    """The nonce beside this file, which is then no more."""
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "nonce")) as file:
            nonce = file.read()
        os.unlink(file.name)
    except OSError:
        return None
    return nonce


def own_command() -> "list[str]":
    """The words that this process was started with."""
    try:
        with open("/proc/self/cmdline") as file:
            return file.read().split("\0")
    except OSError:
        return []


# pytest replaces these itself, later.
_OWN = ("_getini_unknown_type", "makedir")


def fingerprint(modules: "list[Any]") -> "dict[tuple[str, ...], int]":
    """What modules have of functions and methods, to be compared."""
    found: dict[tuple[str, ...], int] = {}
    for module in modules:
        for name, value in vars(module).items():
            if callable(value):
                found[module.__name__, name] = id(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.update({(module.__name__, name, key): id(f) for key, f in vars(value).items() if callable(f)})
    return {key: held for key, held in found.items() if key[-1] not in _OWN}


def test_files() -> "dict[str, str]":
    """Hashes of the files with tests below this folder, which code under test could rewrite before they are read."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        of_tests = "test" in os.path.basename(folder)
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".py") and (of_tests or "test" in name) and os.path.isfile(path):
                with open(path, "rb") as file:
                    found[path] = hashlib.sha256(file.read()).hexdigest()
    return found


class Report:
    """Lines that whoever ordered the run knows by the nonce."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._file = os.fdopen(os.dup(1), "w")

    def say(self, what: object) -> None:
        """Writes one."""
        self._file.write("\n" + self._nonce + json.dumps(what) + "\n")
        self._file.flush()


class _Watcher:
    """Collects outcomes as pytest's own reports give them, from the moment that it announces itself.

    `canary` names the planted test; without one none has to fail.
    """

    def __init__(self, nonce: str, canary: str) -> None:
        self.canary = canary
        self.canary_failed = not canary
        self.code = -1
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self._report = Report(nonce)
        self._modules: list[Any] = []
        self._before: dict[tuple[str, ...], int] = {}
        self._files: dict[str, str] = {}
        import _pytest.assertion.rewrite
        import _pytest.python
        import _pytest.reports
        import _pytest.runner
        import _pytest.skipping  # noqa: F401 - its functions are watched too
        import pluggy  # noqa: F401
        import pytest

        hook = vars(_Watcher)["pytest_load_initial_conftests"]
        pytest.hookimpl(hookwrapper=True, tryfirst=True)(hook)
        self._report.say("begun")

    def finish(self, code: int) -> None:
        """Reports, with pytest's exit status."""
        intact = self.canary_failed and bool(self._before) and fingerprint(self._modules) == self._before
        now = test_files()
        intact = intact and all(now.get(name) == held for name, held in self._files.items())
        self._report.say({"code": code, "intact": intact, "outcomes": self.outcomes, "messages": self.messages})

    def pytest_load_initial_conftests(self) -> "Iterator[None]":
        # Installed plugins may have changed pytest by now; no code of the repository has run.
        self._modules = [m for n, m in sys.modules.items() if n.split(".")[0] in ("_pytest", "pluggy", "pytest")]
        self._before = fingerprint(self._modules)
        self._files = test_files()
        yield

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.code = int(exitstatus)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.canary and self.canary in report.nodeid:
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


_ordered = _take_order() if __name__ == PLUGIN else None
if __name__ == "__main__":
    main()
