"""Watches a run of sympy's own tests, `bin/test`, from inside: what is printed does not count.

Put into a folder of PYTHONPATH as `sitecustomize.py`, beside `run_tests.py` as `skyrl_tests.py` and a file `nonce`:
the process that runs the tests takes the nonce before any code of the repository has run, and removes it. It says
that it is there, and reports at its end; one that code under test has ended before, by `os._exit`, does not report.

A test counts if sympy's own runner has run it, from a file of tests, with the code that this file has.

What this can't stop: code under test shares the process. It is watched instead: the runner's functions and the files
with tests are compared with what they were.

It runs on every Python from 3.6 on: images of old repositories have nothing newer.
"""

import atexit
import hashlib
import os
import sys
from functools import partial
from types import CodeType
from typing import Any

from skyrl_tests import (  # type: ignore[import-not-found]  # a sibling
    Report,
    fingerprint,
    own_command,
    taken_nonce,
    test_files,
)

RUNNERS = ("sympy.testing.runtests", "sympy.utilities.runtests")  # the second before sympy 1.6


def _code_of(function: Any) -> Any:
    """That of a test, whatever decorates it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


class _Watcher:
    """Collects what sympy's runner tells its reporter. Also a finder of modules, to be there when it is loaded."""

    def __init__(self, nonce: str) -> None:
        self._folder = os.getcwd()
        self._files: dict[str, str] = test_files()
        self._codes: dict[str, set[CodeType]] = {}
        self._tools = (open, compile, hashlib.sha256)
        self._pid = os.getpid()
        self._report = Report(nonce)
        self._modules: list[Any] = []
        self._before: dict[tuple[str, ...], int] = {}
        self._entered = ""
        self.outcomes: dict[str, str] = {}
        sys.meta_path.insert(0, self)
        self._report.say("begun")

    def finish(self) -> None:
        """Reports."""
        if os.getpid() == self._pid:  # not a forked child
            os.chdir(self._folder)
            now = test_files()
            intact = bool(self._modules) and fingerprint(self._modules) == self._before
            intact = intact and all(now.get(name) == held for name, held in self._files.items())
            self._report.say({"code": 0, "intact": intact, "outcomes": self.outcomes, "messages": {}})

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Of the runner that of the finders after this one, loaded by a loader that then watches it."""
        if name not in RUNNERS:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = partial(self._watch, spec.loader.exec_module)
                spec.loader.exec_module = execute  # type: ignore[method-assign]
                return spec
        return None

    def _watch(self, execute: Any, module: Any) -> None:
        execute(module)
        if getattr(module, "PyTestReporter", None) is None or module.PyTestReporter.__module__ != module.__name__:
            return  # a name of old for the other
        reporter = module.PyTestReporter
        runs = module.SymPyTests.test_file.__code__
        reporter.entering_test = self._entering(reporter.entering_test, runs)
        for name in ("test_pass", "test_fail", "test_exception", "test_skip", "test_xfail", "test_xpass"):
            outcome = "passed" if name == "test_pass" else "failed"
            setattr(reporter, name, self._told(getattr(reporter, name), outcome, runs))
        self._modules.append(module)
        self._before = fingerprint(self._modules)

    def _entering(self, method: Any, runs: CodeType) -> Any:
        def entering(reporter: Any, test: Any) -> Any:
            frame = sys._getframe(1)
            file = frame.f_locals.get("filename", "") if frame.f_code is runs else ""
            self._entered = test.__name__ if file and _code_of(test) in self._codes_of(file) else ""
            return method(reporter, test)

        return entering

    def _told(self, method: Any, outcome: str, runs: CodeType) -> Any:
        """A test that is listed has passed before: skipped, or failed as it should, is no better than failed."""

        def told(*arguments: Any, **more: Any) -> Any:
            name, self._entered = self._entered, ""
            if name and sys._getframe(1).f_code is runs and self.outcomes.get(name) != "failed":
                self.outcomes[name] = outcome
            return method(*arguments, **more)

        return told

    def _codes_of(self, file: str) -> "set[CodeType]":
        """The code of every function of a file with tests, as the task has it."""
        held = self._files.get(os.path.join(".", os.path.relpath(file, self._folder)))
        if file not in self._codes and held and os.path.basename(file).startswith("test_"):
            opened, compiled, sha256 = self._tools
            with opened(file, "rb") as source:
                data = source.read()
            if sha256(data).hexdigest() == held:
                whole = compiled(data, file, "exec", 0, True)
                self._codes[file] = {one for one in whole.co_consts if isinstance(one, CodeType)}
        return self._codes.get(file, set())


def _take_order() -> "str | None":
    """The nonce, if this process is the one that runs the tests."""
    return taken_nonce() if any(f"/{word}".endswith("/bin/test") for word in own_command()) else None


_ordered = _take_order() if __name__ == "sitecustomize" else None
if _ordered is not None:
    atexit.register(_Watcher(_ordered).finish)
