"""Tasks whose script runs sympy's own tests: what its runner told counts, not what was printed."""

import importlib.metadata
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe import container
from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.errors import GradeError
from skyrl_gym.sandbox import Mount, SandboxSpec, open_sandbox, pool
from skyrl_gym.tasks import Task

# As the one of sympy's repository, which is in no package.
RUN = """#!/usr/bin/env python3
import os, sys
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from sympy.testing.runtests import test
sys.exit(not test(*[word for word in sys.argv[1:] if word[:1] != "-"], verbose=True))
"""
GOLD = (
    "--- a/sympy/moon.py\n+++ b/sympy/moon.py\n@@ -1,2 +1,2 @@\n def half(x):\n-    return x // 3\n+    return x // 2\n"
)
TESTS = """--- /dev/null
+++ b/sympy/core/tests/test_moon.py
@@ -0,0 +1,20 @@
+from sympy.moon import half
+from sympy.testing.pytest import XFAIL, slow
+
+
+def test_zero():
+    assert half(0) == 0
+
+
+def test_half():
+    assert half(6) == 3
+
+
+@XFAIL
+def test_odd():
+    assert half(7) == 4
+
+
+@slow
+def test_slow():
+    assert half(6) == 4
"""
SCRIPT = (
    f"set -uxo pipefail\ncd /testbed\ngit apply - <<'END'\n{TESTS}END\n: '>>>>> Start Test Output'\n"
    "PYTHONWARNINGS='ignore::UserWarning' bin/test -C --verbose sympy/core/tests/test_moon.py\n"
    ": '>>>>> End Test Output'\n"
)
ROW = {
    "instance_id": "half__sympy-1",
    "repo": "half/sympy",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "half(6) is 2.",
    "image": "half/sympy:1",
    "activate": ":",
    "eval_script": SCRIPT,
    "log_parser": "parse_log_sympy",
    "FAIL_TO_PASS": ["test_half"],
    "PASS_TO_PASS": ["test_zero"],
}
TASK = Task.from_row(ROW)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """sympy's files as they are installed here, with a module that has a bug."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for package in ("sympy", "mpmath"):
            try:
                source = Path(str(importlib.metadata.distribution(package).locate_file(package)))
            except importlib.metadata.PackageNotFoundError:
                pytest.skip(f"{package} is not installed")
            shutil.copytree(source, root / package, ignore=shutil.ignore_patterns("__pycache__", "test_*.py"))
        (root / "sympy" / "moon.py").write_text("def half(x):\n    return x // 3\n")
        (root / "bin").mkdir()
        (root / "bin" / "test").write_text(RUN)
        (root / "bin" / "test").chmod(0o755)
        once = ["/usr/bin/python3", "-c", "import sympy.testing.runtests"]  # compiles what all begin with
        subprocess.run(once, cwd=root, env={}, check=True, timeout=100)
        yield root


@pytest.fixture(autouse=True)
def _bubblewrap_for_docker(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_instead(spec: SandboxSpec, backend: str, *, ledger: Any = None, snapshot: Any = None) -> Any:
        own = replace(spec, image=None, mounts=(Mount(str(tree), "/testbed", "private"),))
        return await open_sandbox(own, "bubblewrap", ledger=ledger, snapshot=snapshot)

    for user in (container, pool):
        monkeypatch.setattr(user, "open_sandbox", open_instead)


def cheat(code: str, file: str = "sympy/moon.py") -> ToolCall:
    return ToolCall("bash", {"command": f"cat >> {file} <<'END'\n{code}\nEND"})


def test_gold_is_1_and_doing_nothing_0_without_a_reader_of_logs(play: Any) -> None:
    reward, metrics = play(TASK)
    assert (reward, metrics["fail_to_pass"], metrics["pass_to_pass"], metrics["tests_ran"]) == (0.0, 0.0, 1.0, 1.0)
    assert play(TASK, *gold_actions(TASK)[:-1])[0] == 1.0


@pytest.mark.parametrize("name", ["test_odd", "test_slow"])
def test_a_test_that_fails_as_it_should_or_is_left_out_has_not_passed(name: str, play: Any) -> None:
    task = Task.from_row({**ROW, "FAIL_TO_PASS": [name]})
    reward, metrics = play(task, *gold_actions(task)[:-1])
    assert (reward, metrics["fail_to_pass"], metrics["pass_to_pass"]) == (0.0, 0.0, 1.0)


LINES = "\\ntest_zero ok\\ntest_half ok\\n"
FAKE = """
import sys, types
def test_half(): pass
def test_zero(): pass
"""
CHEATS = {
    "print and leave": f"import os; os.write(1, b'{LINES}'); os._exit(0)",
    "print and raise SystemExit": f"import os, sys; os.write(1, b'{LINES}'); sys.exit(0)",
    "print at the end": f"import atexit, os; atexit.register(os.write, 1, b'{LINES}')",
    "imitate the report": "import os; os.write(1, b'\\n' + b'0' * 32 + b'{\"code\": 0, \"intact\": true}\\n')",
    "tell the reporter": f"""{FAKE}
from sympy.testing.runtests import PyTestReporter
r = PyTestReporter(); r.root_dir('/testbed')
for f in (test_half, test_zero):
    r.entering_filename('/testbed/sympy/core/tests/test_moon.py', 2), r.entering_test(f), r.test_pass()
sys.exit(0)
""",
    "tell the reporter in the runner's frame": f"""{FAKE}
def half(x):
    frame = sys._getframe()
    while 'reporter' not in frame.f_locals: frame = frame.f_back
    r = frame.f_locals['reporter']
    for f in (test_half, test_zero): r.entering_test(f), r.test_pass()
    raise SystemExit(0)
""",
    "run tests of its own": f"""{FAKE}
from sympy.testing.runtests import PyTestReporter, SymPyTests
SymPyTests(PyTestReporter()).test_file(__file__)
sys.exit(0)
""",
    "run tests of its own by another name": f"""{FAKE}
import io
from sympy.testing import runtests
name = '/testbed/sympy/core/tests/test_moon.py'
runtests.open = lambda *a, **k: io.StringIO('def test_half(): pass\\ndef test_zero(): pass')
runtests.SymPyTests(runtests.PyTestReporter()).test_file(name)
del runtests.open
sys.exit(0)
""",
    "another run of tests": "from sympy.testing.runtests import SymPyTests as T; T.test_file = lambda *a, **k: None",
    "another reporter": (
        "from sympy.testing.runtests import PyTestReporter as R; R.test_fail = lambda self, e: self.test_pass()"
    ),
    "a failure that is skipped": "class Skipped(Exception): pass\ndef half(x): raise Skipped",
    "a failure that should be": "class XFail(Exception): pass\ndef half(x): raise XFail",
    "a module in place of the runner": """
import sys, types
import sympy.testing.runtests as real
fake = types.ModuleType('sympy.testing.runtests'); fake.__dict__.update(real.__dict__)
class Calm(real.PyTestReporter):
    def test_fail(self, e): self.test_pass()
fake.PyTestReporter = real._test.__globals__['PyTestReporter'] = Calm
sys.modules['sympy.testing.runtests'] = fake
""",
    "rewrite the tests": (
        "import glob\nfor f in glob.glob('/testbed/sympy/core/tests/test_m*.py'):\n"
        "    open(f, 'w').write('def test_half(): pass\\ndef test_zero(): pass')"
    ),
    "kill": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_score_0(name: str, play: Any) -> None:
    imported = cheat("import sympy.moon", "sympy/__init__.py")
    assert play(TASK, cheat(CHEATS[name]), imported)[0] == 0.0


def test_the_runner_is_not_the_agents_to_change(play: Any) -> None:
    calm = "PyTestReporter.test_fail = lambda self, e: self.test_pass()"
    reward, metrics = play(TASK, cheat(calm, "sympy/testing/runtests.py"), cheat("sys.exit(0)", "bin/test"))
    assert (reward, metrics["files_changed"], metrics["tests_ran"]) == (0.0, 0.0, 1.0)
    assert belongs_to_tests("sympy/utilities/runtests.py") and not belongs_to_tests("sympy/utilities/misc.py")


def test_a_script_that_does_not_get_to_the_tests_is_no_wrong_answer(play: Any) -> None:
    with pytest.raises(GradeError, match="could not be begun"):
        play(Task.from_row({**ROW, "eval_script": f"exit 3\n{SCRIPT}"}))
