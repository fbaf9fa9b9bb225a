"""What `import skyrl_gym` costs and touches."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "datasets", "trl", "peft", "docker", "playwright", "rich", "typer", "pandas", "ray"]


def in_a_fresh_process(code: str) -> str:
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd="/")
    return ran.stdout.strip()


@pytest.mark.parametrize(
    "imported", ["skyrl_gym", "skyrl_gym.env", "skyrl_gym.rollout.ray", "skyrl_gym.policy", "skyrl_gym.vector"]
)
def test_nothing_heavy_is_loaded(imported: str) -> None:
    code = f"import sys, {imported}; print(sorted(set({HEAVY}) & set(sys.modules)))"
    assert in_a_fresh_process(code) == "[]"


def test_it_takes_less_than_half_a_second_of_cpu() -> None:
    code = "import time; import skyrl_gym; print(time.process_time())"
    assert min(float(in_a_fresh_process(code)) for _ in range(3)) < 0.5


def test_the_root_logger_is_left_alone() -> None:
    assert in_a_fresh_process("import logging, skyrl_gym; print(logging.root.handlers, logging.root.level)") == "[] 30"


def test_no_thread_is_started() -> None:
    assert in_a_fresh_process("import threading, skyrl_gym; print(threading.active_count())") == "1"


def test_public_names_have_a_docstring_and_come_from_this_package() -> None:
    import skyrl_gym

    for name in skyrl_gym.__all__:
        value = getattr(skyrl_gym, name)
        assert value.__doc__, f"{name} has no docstring"
        assert value.__module__.startswith("skyrl_gym.")
