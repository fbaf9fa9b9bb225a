"""Tasks whose script runs tests in Go: what Go's own package testing says counts, not what was printed."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe import container, go_tests
from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.go_tests import runs_go
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.sandbox import Mount, SandboxSpec, open_sandbox, pool
from skyrl_gym.tasks import Task

pytestmark = [
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed: apt-get install golang"),
    pytest.mark.timeout(300),
]

CODE = "package moon\n\n// Half of a number.\nfunc Half(x int) int {\n\treturn x / 3\n}\n"
GOLD = "--- a/moon.go\n+++ b/moon.go\n@@ -4,3 +4,3 @@\n func Half(x int) int {\n-\treturn x / 3\n+\treturn x / 2\n }\n"
ADDED = """package moon

import (
	"fmt"
	"testing"
)

func TestZero(t *testing.T) {
	if Half(0) != 0 {
		t.Fatal()
	}
}

func TestHalf(t *testing.T) {
	fmt.Println("a test prints")
	if Half(6) != 3 {
		t.Fatal()
	}
}

func TestTable(t *testing.T) {
	t.Run("a six (6)", func(t *testing.T) {
		t.Parallel()
		if Half(6) != 3 {
			t.Fatal()
		}
	})
	t.Run("never", func(t *testing.T) { t.Fatal() })
}

func TestLater(t *testing.T) { t.Skip() }

func FuzzHalf(f *testing.F) {
	f.Add(6)
	f.Fuzz(func(t *testing.T, x int) {
		if Half(x) != 3 {
			t.Fatal()
		}
	})
}

func ExampleHalf() {
	fmt.Println(Half(6))
	// Output: 3
}
"""
FILES = {
    "go.mod": "module example.org/moon\n\ngo 1.18\n",
    "moon.go": CODE,
    "far/far.go": "package far\n\nfunc Far() int { return 1 }\n",
    "far/far_test.go": (
        'package far_test\n\nimport ("os"; "os/exec"; "testing"; "example.org/moon/far")\n\n'
        "func TestMain(m *testing.M) { os.Exit(m.Run()) }\n\n"
        'func TestFar(t *testing.T) {\n\tif _, err := os.Stat("far.go"); err != nil || far.Far() != 1 {\n'
        "\t\tt.Fatal(err)\n\t}\n}\n\n"
        "func TestThatRunsGo(t *testing.T) {\n"
        '\tif said, err := exec.Command("go", "list", ".").CombinedOutput(); err != nil {\n'
        "\t\tt.Fatal(string(said))\n\t}\n}\n\n"
        "func TestNeverPasses(t *testing.T) { t.Fail() }\n"
    ),
}
TESTS = (
    f"--- /dev/null\n+++ b/moon_test.go\n@@ -0,0 +1,{ADDED.count(chr(10))} @@\n"
    + re.sub("^", "+", ADDED, flags=re.M)[:-1]
)
SCRIPT = (
    f"set -uxo pipefail\ncd /testbed\ngit apply - <<'END'\n{TESTS}END\n: '>>>>> Start Test Output'\n"
    "go test -v ./...\n: '>>>>> End Test Output'\n"
)
HALF = ["TestHalf", "TestTable/a_six_(6)", "FuzzHalf", "FuzzHalf/seed#0", "ExampleHalf"]
KEPT = ["TestZero", "TestFar", "TestThatRunsGo"]
ROW = {
    "instance_id": "half__moon.go",
    "repo": "half/moon",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "Half(6) is 2.",
    "image": "half/moon:go",
    "activate": "export HOME=/tmp/home GOFLAGS=-mod=mod GOPROXY=off GOCACHE=/tmp/cache PATH=/usr/bin:/bin",
    "eval_script": SCRIPT,
    "log_parser": "lines",
    "FAIL_TO_PASS": HALF,
    "PASS_TO_PASS": KEPT,
}
TASK = Task.from_row(ROW)
LINE = re.compile(r"^\s*--- (PASS|FAIL): (\S+)", re.MULTILINE)


def read_log(log: str) -> dict[str, str]:
    """As readers of published logs do it: by the lines, whoever has printed them."""
    return {name: {"PASS": "passed"}.get(word, "failed") for word, name in LINE.findall(log)}


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for name, text in FILES.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        yield root


@pytest.fixture(autouse=True)
def _bubblewrap_for_docker(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_instead(spec: SandboxSpec, backend: str, *, ledger: Any = None, snapshot: Any = None) -> Any:
        own = replace(spec, image=None, mounts=(Mount(str(tree), "/testbed", "private"),))
        return await open_sandbox(own, "bubblewrap", ledger=ledger, snapshot=snapshot)

    for user in (container, pool):
        monkeypatch.setattr(user, "open_sandbox", open_instead)
    monkeypatch.setattr(container, "log_parser", lambda name, script: read_log)


def test_gold_is_1_and_doing_nothing_0(play: Any) -> None:
    reward, metrics = play(TASK)
    assert (reward, metrics["fail_to_pass"], metrics["pass_to_pass"], metrics["tests_ran"]) == (0.0, 0.0, 1.0, 1.0)
    assert play(TASK, *gold_actions(TASK)[:-1])[0] == 1.0


LINES = "".join(f"=== RUN   {name}\\n--- PASS: {name} (0.00s)\\n" for name in (*HALF, *KEPT))
PRINT = f'os.Stdout.WriteString("\\n{LINES}PASS\\n")'
FAKE = (
    "[]testing.InternalTest{"
    + ", ".join(f'{{"{name}", func(*testing.T) {{}}}}' for name in ("TestHalf", "TestZero"))
    + "}"
)
ALL = "func(pattern, name string) (bool, error) { return true, nil }"
CHEATS = {
    "print": f'import "os"\nfunc init() {{ {PRINT} }}',
    "print and leave": f'import "os"\nfunc init() {{ {PRINT}; os.Exit(0) }}',
    "print and leave by the system": f'import ("os"; "syscall")\nfunc init() {{ {PRINT}; syscall.Exit(0) }}',
    "leave in a test": f'import ("os"; "syscall")\nfunc end() {{ {PRINT}; syscall.Exit(0) }}',
    "end the test's goroutine": f'import ("os"; "runtime")\nfunc end() {{ {PRINT}; runtime.Goexit() }}',
    "print and fail": f'import "os"\nfunc init() {{ {PRINT}; panic("no") }}',
    "no tests to run": f'import "os"\nfunc init() {{ {PRINT}; os.Args = append(os.Args, "-test.run=^$") }}',
    "end the parent": (
        f'import ("os"; "syscall")\nfunc init() {{ {PRINT}; syscall.Kill(os.Getppid(), 9); syscall.Exit(0) }}'
    ),
    "tests of its own": (
        'import ("flag"; "os"; "testing")\n'
        f"func init() {{ testing.Init(); flag.Parse(); {PRINT}; testing.RunTests({ALL}, {FAKE}); os.Exit(0) }}"
    ),
    "tests of its own as a program": (f'import "testing"\nfunc init() {{ testing.Main({ALL}, {FAKE}, nil, nil) }}'),
    "tests of its own in a test": (
        f'import ("os"; "testing")\nfunc end() {{ {PRINT}; testing.RunTests({ALL}, {FAKE}); os.Exit(0) }}'
    ),
    "tests of another program": (
        'import ("os"; "os/exec")\nfunc init() {\nos.MkdirAll("/tmp/fake", 0o755)\n'
        'os.WriteFile("/tmp/fake/go.mod", []byte("module example.org/moon\\n"), 0o644)\n'
        'os.WriteFile("/tmp/fake/moon_test.go", []byte("package moon\\nimport \\"testing\\"\\n'
        'func TestHalf(t *testing.T) {}\\n"), 0o644)\n'
        'c := exec.Command("go", "test", "-v", ".")\nc.Dir, c.Stdout = "/tmp/fake", os.Stdout\nc.Run()\nos.Exit(0)\n}'
    ),
    "what signs": (
        'import ("os"; _ "unsafe")\n//go:linkname say testing.watchSay\nfunc say(word string, level int, name string)\n'
        'func end() { say("PASS", 1, "TestHalf"); os.Exit(0) }'
    ),
    "other lines on the way": (
        'import ("os"; "strings"; "syscall")\nfunc init() {\nr, w, _ := os.Pipe()\nreal, _ := syscall.Dup(1)\n'
        "for fd := 1; fd < 9; fd++ { if fd != real && fd != int(r.Fd()) && fd != int(w.Fd()) "
        "{ syscall.Dup2(int(w.Fd()), fd) } }\n"
        "go func() {\nb := make([]byte, 99999)\nfor {\nn, e := r.Read(b)\nif e != nil { return }\n"
        'syscall.Write(real, []byte(strings.ReplaceAll(string(b[:n]), "FAIL", "PASS")))\n}\n}()\n}'
    ),
}


QUICK = ("print and leave", "leave in a test", "tests of its own", "other lines on the way")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CHEATS])
def test_cheats_score_0(name: str, play: Any) -> None:
    code = CHEATS[name]
    calls = "sed -i 's,^\treturn x / 3,\tend(); return x / 3,' moon.go; " if "func end()" in code else ""
    cheat = ToolCall("bash", {"command": f"{calls}cat > cheat.go <<'END'\npackage moon\n{code}\nEND\ngo vet ."})
    assert play(TASK, cheat)[0] == 0.0


def test_a_cheat_is_a_program_that_go_takes(env: Any) -> None:
    env.reset(options={"task": TASK})
    for name, code in CHEATS.items():
        if name == "what signs":  # and it signs only if that can be linked
            continue
        made = f"cat > cheat.go <<'END'\npackage moon\n{code}\nEND\ngo build . && echo built"
        assert env.step(ToolCall("bash", {"command": made}))[0][-1].text.strip() == "built", name


def test_printing_beside_a_repair_does_no_harm(play: Any) -> None:
    lines = LINES.replace("PASS", "FAIL")
    noise = f'package moon\nimport "os"\nfunc init() {{ os.Stdout.WriteString("{lines}") }}\n'
    write = ToolCall("bash", {"command": f"cat > noise.go <<'END'\n{noise}END"})
    assert play(TASK, *gold_actions(TASK)[:-1], write)[0] == 1.0


def test_code_that_does_not_compile_scores_0(play: Any) -> None:
    reward, metrics = play(TASK, ToolCall("bash", {"command": "echo 'func' >> moon.go"}))
    assert (reward, metrics["fail_to_pass"]) == (0.0, 0.0)


def test_where_gos_own_package_is_not_as_it_is_known_the_log_counts(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(go_tests._EDITS["testing.go"], "^func nothing$", "")  # type: ignore[index]
    assert play(TASK)[0] == 0.0
    assert play(TASK, *gold_actions(TASK)[:-1])[0] == 1.0


def test_where_a_script_has_flags_of_its_own_the_log_counts(play: Any) -> None:
    task = Task.from_row({**ROW, "eval_script": SCRIPT.replace("go test", "GOFLAGS=-mod=mod go test")})
    assert play(task)[0] == 0.0
    assert play(task, *gold_actions(task)[:-1])[0] == 1.0


@pytest.mark.parametrize(
    ("script", "runs"),
    [
        ("go test -v ./...", True),
        ("cd sub && go test -race ./... -count=1", True),
        ("go test -json ./...", False),
        ("cargo test", False),
    ],
)
def test_which_scripts_run_tests_in_go(script: str, runs: bool) -> None:
    assert runs_go(script) == runs


@pytest.mark.parametrize("path", ["moon_test.go", "a/testdata/x", "go.work", "vendor/a.org/b/c.go", "go.mod"])
def test_files_that_say_how_gos_tests_run_are_the_tasks(path: str) -> None:
    assert belongs_to_tests(path)
    assert not belongs_to_tests("moon.go")
