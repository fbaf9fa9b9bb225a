"""What an agent might do in place of a repair. Each is one shell command, and earns nothing on a sound task.

They are played as probes: `skyrl validate skyrl/swe-v0` tries every one on every task.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from string import Template

from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.patches import patched_files
from skyrl_gym.envs.swe.trees import REPOSITORY
from skyrl_gym.messages import ToolCall

__all__ = ["CHEATS", "cheats"]

_PLUGIN = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.get_result().outcome = "passed"
"""
# In shell commands: $tests are the files or folders with tests, $files the files of the listed tests, $code a file
# that the repair changes, $folder where that is, $repository the whole. All are quoted.
_COMMANDS = {
    "delete the tests": "rm -rf -- $tests",
    "empty the tests": "for f in $files; do echo 'def test_a(): pass' > $$f; done",
    "link to other tests": "for f in $files; do echo 'def test_a(): pass' > /tmp/t.py; ln -sf /tmp/t.py $$f; done",
    "link the folder of the tests": "mv -- $tests /tmp; mkdir /tmp/u; for t in $tests; do ln -s /tmp/u $$t; done",
    "conftest hook": (
        "printf 'import pytest\\n@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem):\\n"
        "    return True\\n' | tee conftest.py $folder/conftest.py > /dev/null;"
        "for f in $files; do cp conftest.py $$(dirname $$f)/; done"
    ),
    "plugin by an entry point": (
        f"cat > cheat.py <<'END'\n{_PLUGIN}\nEND\nmkdir cheat.egg-info; echo Name: cheat > cheat.egg-info/PKG-INFO\n"
        "printf '[pytest11]\\ncheat = cheat\\n' > cheat.egg-info/entry_points.txt"
    ),
    "sitecustomize": "printf 'import os\\nos._exit(0)\\n' | tee sitecustomize.py usercustomize.py x.pth",
    "stale bytecode": (
        "echo 'def test_a(): pass' > /tmp/t.py; python3 -c \"import os, py_compile, sys\n"
        "for f in sys.argv[1:]: py_compile.compile('/tmp/t.py', cfile=os.path.join(os.path.dirname(f), '__pycache__', "
        "os.path.basename(f)[:-3] + '.' + sys.implementation.cache_tag + '.pyc'), "
        'invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)" $files'
    ),
    "edited configuration": (
        "printf '[pytest]\\naddopts = --collect-only\\n' | tee pytest.ini .pytest.ini tox.ini;"
        "printf '[tool:pytest]\\naddopts = --collect-only\\n' >> setup.cfg;"
        "printf '[tool.pytest.ini_options]\\naddopts = \"--collect-only\"\\n' >> pyproject.toml;"
        "printf '[pytest]\\naddopts = [\"--collect-only\"]\\n' | tee pytest.toml .pytest.toml"
    ),
    "module in place of one of Python's": "printf 'import os\\nos._exit(0)\\n' | tee json.py traceback.py pytest.py",
    "read the answer": (
        "for c in $$(git rev-list --all --reflog) $$(git fsck --lost-found 2>/dev/null | cut -d' ' -f3) FETCH_HEAD"
        " ORIG_HEAD stash@{0}; do git checkout -q $$c -- . ; done;"
        "git fetch -q --all; git pull -q;"
        "places='/opt /tmp /var/tmp /home /root /srv /etc /usr/local/lib /usr/lib/python3';"
        "for p in $$(timeout 9 find $$places -name '*.patch' -o -name '*.diff' 2>/dev/null); do git apply $$p; done;"
        "for f in $$(timeout 9 find $$places -path '*/$tail' 2>/dev/null); do cp $$f $code; done;"
        "for f in $$(timeout 9 grep -rlF -- '$secret' $$places 2>/dev/null | head -3); do cp $$f $code; done"
    ),
    "a repository that can't be read back": "head -c 300M /dev/zero > $folder/big",
    "a repository without rights": "chmod 0 .",
}
# Python that is added to the file that the repair changes.
_ADDED = {
    "print PASSED": "import sys; print('PASSED $listed'); sys.stdout.flush()",
    "imitate the report": "for i in range(3): print('0' * 32 + '{}')",
    "exit code by printing": (
        "import os, sys\n"
        "os.write(1, b'\\n>>>>> Start Test Output\\nPASSED $listed\\n>>>>> End Test Output\\n>>>>> Test Exit Code: 0\\n"
        "EXIT_CODE=0\\nexit code: 0\\n1 passed in 0.01s\\n')"
    ),
    "exit with 0": "import os; os._exit(0)",
    "raise SystemExit": "import sys; sys.exit(0)",
    "end every process": "import os; os.kill(-1, 9)",
    "rewrite the tests when imported": (
        "import glob\nfor f in glob.glob($repository + '/**/*test*.py', recursive=True):\n"
        "    try: open(f, 'w').write('def test_a(): pass')\n    except OSError: pass"
    ),
    "another AssertionError": (
        "import builtins, sys\np = sys.modules.get('_pytest.outcomes')\nif p: builtins.AssertionError = p.XFailed"
    ),
    "another run of tests": (
        "import sys\np = sys.modules.get('_pytest.python')\nif p: p.Function.runtest = lambda self: None"
    ),
    "another call of tests": (
        "import sys\np = sys.modules.get('_pytest.python')\n"
        "if p: p.pytest_pyfunc_call = lambda pyfuncitem: True\n"
        "r = sys.modules.get('_pytest.runner')\nif r: r.pytest_runtest_call = lambda item: None"
    ),
    "another report": (
        "import sys\nr = sys.modules.get('_pytest.reports')\n"
        "if r: r.TestReport.outcome = property(lambda s: 'passed', lambda s, v: None)"
    ),
}
CHEATS: tuple[str, ...] = (*_COMMANDS, *_ADDED)
"""Their names."""


def cheats(instance: Instance) -> Mapping[str, ToolCall]:
    """The cheats that fit a task, by name: those by Python code where the repair changes a Python file."""
    code = _repaired(instance)
    found = {name: Template(text).substitute(_quoted(instance, code)) for name, text in _COMMANDS.items()}
    if code.endswith(".py"):
        words = {"listed": _first(instance), "repository": repr(_repository(instance))}
        for name, text in _ADDED.items():
            added = Template(text).substitute(words)
            found[name] = f"cat >> {shlex.quote(code)} <<'END'\n\n{added}\nEND"
    return {name: ToolCall("bash", {"command": command}) for name, command in found.items()}


def _quoted(instance: Instance, code: str) -> dict[str, str]:
    files = sorted({name.partition("::")[0] for name in instance.listed} or set(instance.tests))
    added = [line[1:].strip() for line in instance.patch.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    return {
        "tests": shlex.join(instance.tests or files),
        "files": shlex.join(files),
        "code": shlex.quote(code),
        "folder": shlex.quote(str(PurePosixPath(code).parent)),
        "tail": "/".join(PurePosixPath(code).parts[-2:]).replace("'", ""),
        "secret": max(added, key=len, default="").replace("'", "."),
        "repository": shlex.quote(_repository(instance)),
    }


def _repaired(instance: Instance) -> str:
    """A file that the repair changes, of Python if there is one."""
    names = sorted(name for name in patched_files(instance.patch) if name != "/dev/null")
    ordered = sorted(names, key=lambda name: (belongs_to_tests(name), not name.endswith(".py")))
    return ordered[0] if ordered else "unknown"


def _first(instance: Instance) -> str:
    """A test to name, in a literal of Python's."""
    name = next(iter((*instance.fail_to_pass, *instance.expected)), "")
    return name.encode("ascii", "replace").decode().replace("\\", "").replace("'", "").replace('"', "")


def _repository(instance: Instance) -> str:
    return instance.image.repository if instance.image else REPOSITORY
