"""Tasks whose script runs unittest: what the tests told it counts, not what was printed."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe import container
from skyrl_gym.envs.swe.logs import confirmed, runner_of
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.errors import GradeError
from skyrl_gym.sandbox import Mount, SandboxSpec, open_sandbox, pool
from skyrl_gym.tasks import Task

GOLD = "--- a/moon.py\n+++ b/moon.py\n@@ -1,2 +1,2 @@\n def half(x):\n-    return x // 3\n+    return x // 2\n"
TESTS = """--- /dev/null
+++ b/tests/test_moon.py
@@ -0,0 +1,15 @@
+import unittest
+
+
+class Half(unittest.TestCase):
+    def test_zero(self):
+        from moon import half
+
+        self.assertEqual(half(0), 0)
+
+    def test_half(self):
+        \"""A half is a half.\"""
+        from moon import half
+
+        with self.subTest("six"):
+            self.assertEqual(half(6), 3)
"""
SCRIPT = (
    f"set -uxo pipefail\ncd /testbed\ngit apply - <<'END'\n{TESTS}END\n: '>>>>> Start Test Output'\n"
    "python3 -c 'print(1)'\npython3 -W ignore -m unittest discover -v -s tests -t .\n: '>>>>> End Test Output'\n"
)
ROW = {
    "instance_id": "half__moon-2",
    "repo": "half/moon",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "half(6) is 2.",
    "image": "half/moon:2",
    "activate": ":",
    "eval_script": SCRIPT,
}
LINE = re.compile(r"^(test_\w+ \(\S+\)|A half is a half\.)(?:\n.*)? \.\.\. (ok|FAIL|ERROR)$", re.MULTILINE)


def read_log(log: str) -> dict[str, str]:
    """As readers of published logs do it: by the lines, whoever has printed them."""
    return {found[1]: {"ok": "passed"}.get(found[2], "failed") for found in LINE.finditer(log)}


@pytest.fixture(params=["unittest", "parse_log_of_lines"])
def task(request: pytest.FixtureRequest, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Task:
    if request.param != "unittest":
        monkeypatch.setattr(container, "log_parser", lambda name, script: read_log)
    lists = {"FAIL_TO_PASS": [names[0]], "PASS_TO_PASS": [names[1]]}
    return Task.from_row({**ROW, **lists, "log_parser": request.param})


@pytest.fixture(scope="module")
def names() -> tuple[str, str]:
    """As the system's Python writes them."""
    shown = "import unittest; print(type('Half', (unittest.TestCase,), {'test_half': id})('test_half'))"
    told = subprocess.run(["/usr/bin/python3", "-c", shown], capture_output=True, text=True, check=True).stdout.strip()
    name = told.replace("__main__", "tests.test_moon")
    return name, name.replace("test_half", "test_zero")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "tests").mkdir()
        (root / "tests" / "__init__.py").touch()
        (root / "moon.py").write_text("def half(x):\n    return x // 3\n")
        yield root


@pytest.fixture(autouse=True)
def _bubblewrap_for_docker(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_instead(spec: SandboxSpec, backend: str, *, ledger: Any = None, snapshot: Any = None) -> Any:
        own = replace(spec, image=None, mounts=(Mount(str(tree), "/testbed", "private"),))
        return await open_sandbox(own, "bubblewrap", ledger=ledger, snapshot=snapshot)

    for user in (container, pool):
        monkeypatch.setattr(user, "open_sandbox", open_instead)


def test_gold_is_1_and_doing_nothing_0(task: Task, play: Any) -> None:
    reward, metrics = play(task)
    assert (reward, metrics["fail_to_pass"], metrics["pass_to_pass"], metrics["tests_ran"]) == (0.0, 0.0, 1.0, 1.0)
    assert play(task, *gold_actions(task)[:-1])[0] == 1.0


LINES = "\\n".join(f"{name} ... ok" for name in ("$half", "$zero", "A half is a half.", "test_other (a.B)"))
CHEATS = {
    "print and leave": f"import os; os.write(2, b'{LINES}\\nOK\\n'); os._exit(0)",
    "print and raise SystemExit": f"import os, sys; os.write(2, b'{LINES}\\nOK\\n'); sys.exit(0)",
    "print at the end": f"import atexit, os; atexit.register(os.write, 2, b'\\n{LINES}\\nOK\\n')",
    "print between": f"import os; os.write(2, b'\\n{LINES}\\n')",
    "imitate the report": "import os; os.write(1, b'\\n' + b'0' * 32 + b'{\"code\": 0, \"intact\": true}\\n')",
    "another run of tests": "import unittest as u; u.TestCase.run = lambda self, result=None: result.addSuccess(self)",
    "another call of tests": "import unittest; unittest.TestCase._callTestMethod = lambda self, method: None",
    "failures that succeed": "import unittest as u; u.TestResult.addFailure = lambda self, test, error: None",
    "no sub-tests": "import unittest; unittest.TestResult.addSubTest = lambda *a: None",
    "rewrite the tests": (
        f"import glob, os; os.write(2, b'\\n{LINES}\\n')\n"
        "for f in glob.glob('/testbed/tests/*.py'): open(f, 'w').close()"
    ),
    "kill": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_score_0(cheat: str, task: Task, names: tuple[str, str], play: Any) -> None:
    code = CHEATS[cheat].replace("$half", names[0]).replace("$zero", names[1])
    assert play(task, ToolCall("bash", {"command": f"cat >> moon.py <<'END'\n{code}\nEND"}))[0] == 0.0


def test_changed_tests_and_a_module_in_place_of_the_watch_are_not_taken_over(task: Task, play: Any) -> None:
    command = "echo > tests/__init__.py; printf 'import os\\nos._exit(0)\\n' | tee sitecustomize.py unittest.py"
    reward, metrics = play(task, ToolCall("bash", {"command": command}))
    assert (reward, metrics["files_changed"], metrics["tests_ran"]) == (0.0, 0.0, 1.0)


def test_a_script_that_does_not_get_to_unittest_is_no_wrong_answer(names: tuple[str, str], play: Any) -> None:
    lists = {"FAIL_TO_PASS": [names[0]], "PASS_TO_PASS": [names[1]], "log_parser": "unittest"}
    with pytest.raises(GradeError, match="could not be begun"):
        play(Task.from_row({**ROW, **lists, "eval_script": f"exit 3\n{SCRIPT}"}))


def test_what_unittest_told_goes_before_a_log_whose_own_names_pass_only_if_as_many_did() -> None:
    ran = {"a (T)": "failed", "b (T)": "passed"}
    assert confirmed({"a (T)": "passed", "b (T)": "passed"}, ran) == ran
    assert confirmed({"x": "passed", "b (T)": "passed"}, ran) == ran
    assert confirmed({"b folded": "passed", "c": "failed"}, ran) == {**ran, "b folded": "passed", "c": "failed"}


@pytest.mark.parametrize(
    ("script", "runner"),
    [
        ("python -m unittest -v", "unittest"),
        ("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 queries", "unittest"),
        ("python manage.py test app", "unittest"),
        ("PYTHONWARNINGS='ignore' bin/test -C --verbose sympy/core", "sympy"),
        (": start\nbin/test sympy/core", "sympy"),
        ("cd sbin/test-kit && go test ./...", ""),
    ],
)
def test_which_scripts_run_a_runner_that_can_be_watched(script: str, runner: str) -> None:
    assert runner_of(script) == runner
