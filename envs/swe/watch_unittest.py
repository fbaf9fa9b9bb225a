"""Watches a run of unittest's, or of a runner built on it, as Django's is, from inside: what is printed does not count.

Put into a folder of PYTHONPATH as `sitecustomize.py`, beside `run_tests.py` as `skyrl_tests.py` and a file `nonce`:
the process that runs the tests takes the nonce before any code of the repository has run, and removes it. It says
that it is there, and reports at its end; one that code under test has ended before, by `os._exit`, does not report.

What this can't stop: code under test shares the process. It is watched instead: unittest's functions and the files
with tests are compared with what they were.

It runs on every Python from 3.6 on: images of old repositories have nothing newer.
"""

import atexit
import os
from typing import Any

from skyrl_tests import Report, own_command, taken_nonce, test_files  # type: ignore[import-not-found]  # a sibling

_ADDED = {
    "addSuccess": "passed",
    "addFailure": "failed",
    "addError": "failed",
    "addSkip": "skipped",
    "addExpectedFailure": "xfailed",
    "addUnexpectedSuccess": "xpassed",
}
_RUNNERS = ("unittest", "runtests.py", "manage.py")


def _take_order() -> "str | None":
    """The nonce, if this process is the one that runs the tests."""
    return taken_nonce() if any(os.path.basename(word) in _RUNNERS for word in own_command()) else None


class _Watcher:
    """Collects what tests told their result."""

    def __init__(self, nonce: str) -> None:
        self.outcomes: dict[str, str] = {}
        self._pid = os.getpid()
        self._report = Report(nonce)
        import unittest.case
        import unittest.result
        import unittest.runner
        import unittest.suite

        result: Any = unittest.result.TestResult
        for name, outcome in _ADDED.items():
            setattr(result, name, self._watched(getattr(result, name), outcome))
        self._sub_test(result)
        self._watched_classes = (result, unittest.case.TestCase, unittest.suite.BaseTestSuite, unittest.suite.TestSuite)
        self._before = self._functions()
        self._files = test_files()
        self._report.say("begun")

    def finish(self) -> None:
        """Reports."""
        if os.getpid() == self._pid:  # not a forked child
            now = test_files()
            rewritten = any(now.get(name) != held for name, held in self._files.items())
            intact = self._functions() == self._before and not rewritten
            self._report.say({"code": 0, "intact": intact, "outcomes": self.outcomes, "messages": {}})

    def _functions(self) -> "list[Any]":
        """How tests are run and told of; helpers like assertEqual are the tests' own to extend."""
        names = (*_ADDED, "addSubTest", "run", "__call__", "_callTestMethod", "_callSetUp", "debug", "wasSuccessful")
        return [vars(one).get(name) for one in self._watched_classes for name in names]

    def _note(self, test: Any, outcome: str) -> None:
        # A result names a test by itself or by the first line of its description.
        for name in {str(test), test.shortDescription() if hasattr(test, "shortDescription") else None}:
            if name and self.outcomes.get(name) != "failed":
                self.outcomes[name] = outcome

    def _watched(self, method: Any, outcome: str) -> Any:
        def told(result: Any, test: Any, *details: Any) -> Any:
            self._note(test, outcome)
            return method(result, test, *details)

        return told

    def _sub_test(self, result: Any) -> None:
        method = result.addSubTest

        def told(result: Any, test: Any, subtest: Any, error: Any) -> Any:
            if error is not None:
                self._note(test, "failed")
            return method(result, test, subtest, error)

        result.addSubTest = told


_ordered = _take_order() if __name__ == "sitecustomize" else None
if _ordered is not None:
    atexit.register(_Watcher(_ordered).finish)
