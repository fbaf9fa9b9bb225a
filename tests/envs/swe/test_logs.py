"""What is read from logs of test runs, also from such as other output has broken."""

import importlib.util
import textwrap

import pytest

from skyrl_gym.envs.swe.logs import START, as_listed, log_parser, parse_pytest, reads_pytest, section, suite_ran
from skyrl_gym.errors import MissingDependency

HEAD = "============================= test session starts =============================\n"
SUMMARY = "=========================== short test summary info ============================\n"


def test_the_summary_names_every_outcome() -> None:
    """SWE-bench#167: XFAIL and XPASS are taken for something else."""
    log = (
        HEAD
        + "tests/t.py ...F\n"
        + SUMMARY
        + "PASSED tests/t.py::test_a\n"
        + "PASSED tests/t.py::Case::test_b[x - y]\n"
        + "FAILED tests/t.py::test_c - AssertionError: a - b\n"
        + "FAILED tests/t.py::test_d[1 - 2] - assert 1 == 2\n"
        + "ERROR tests/t.py::test_e - RuntimeError\n"
        + "ERROR tests/broken.py\n"
        + "XFAIL tests/t.py::test_f - reason\n"
        + "XPASS tests/t.py::test_g\n"
        + "SKIPPED [1] tests/t.py:3: no network\n"
        + "========= 2 failed, 2 passed, 1 skipped, 1 xfailed, 1 xpassed in 0.1s =========\n"
    )
    assert parse_pytest(log) == {
        "tests/t.py::test_a": "passed",
        "tests/t.py::Case::test_b[x - y]": "passed",
        "tests/t.py::test_c": "failed",
        "tests/t.py::test_d[1 - 2]": "failed",
        "tests/t.py::test_e": "failed",
        "tests/broken.py": "failed",
        "tests/t.py::test_f": "xfailed",
        "tests/t.py::test_g": "xpassed",
    }


def test_lines_of_progress_of_one_process_and_of_several_are_read() -> None:
    log = HEAD + textwrap.dedent(
        """\
        [gw0] linux Python 3.11 cwd: /testbed
        tests/t.py::test_a PASSED                                            [ 10%]
        tests/t.py::test_b[a b] FAILED                                       [ 20%]
        tests/t.py::test_c SKIPPED (no network)                              [ 30%]
        tests/t.py::test_d XFAIL (later)                                     [ 40%]
        [gw1] [ 50%] PASSED tests/t.py::test_e
        [gw0] [ 60%] FAILED tests/t.py::test_f[x]
        [gw0] PASSED tests/t.py::test_g
        ============================== 7 tests in 0.1s ===============================
        """
    )
    found = parse_pytest(log)
    assert {name.rpartition("::")[2]: how for name, how in found.items()} == {
        "test_a": "passed",
        "test_b[a b]": "failed",
        "test_c": "skipped",
        "test_d": "xfailed",
        "test_e": "passed",
        "test_f[x]": "failed",
        "test_g": "passed",
    }


def test_colours_are_taken_out() -> None:
    log = f"{HEAD}{SUMMARY}\x1b[32mPASSED\x1b[0m tests/t.py::\x1b[1mtest_a\x1b[0m\r\n"
    assert parse_pytest(log) == {"tests/t.py::test_a": "passed"}


def test_a_line_that_other_output_has_split_is_made_good_by_the_summary() -> None:
    """SWE-bench#167: logs hold lines that other output has split."""
    log = f"{HEAD}tests/t.py::test_a some warning\nof a library\nPASSED [100%]\n{SUMMARY}PASSED tests/t.py::test_a\n"
    assert parse_pytest(log) == {"tests/t.py::test_a": "passed"}


def test_what_a_test_printed_is_no_outcome() -> None:
    log = (
        f"{HEAD}tests/t.py F\n=================================== FAILURES ====================================\n"
        "----------------------------- Captured stdout call -----------------------------\n"
        f"PASSED tests/t.py::test_a\ntests/t.py::test_a PASSED [100%]\n{SUMMARY}PASSED tests/t.py::test_a\n"
        f"{SUMMARY}FAILED tests/t.py::test_a - assert 0\n"
    )
    assert parse_pytest(log) == {"tests/t.py::test_a": "failed"}


def test_of_several_outcomes_the_worst_counts() -> None:
    log = f"{HEAD}{SUMMARY}PASSED t.py::test_a\nERROR t.py::test_a - at teardown\nPASSED t.py::test_a\n"
    assert parse_pytest(log) == {"t.py::test_a": "failed"}


def test_a_log_without_tests_gives_nothing() -> None:
    assert parse_pytest("") == parse_pytest("PASSED\nFAILED \n[gw0] PASSED\nImportError: PASSED x\n") == {}


def test_only_what_stands_between_the_marks_is_the_log() -> None:
    log = f"+ echo\n{START}\nPASSED a.py::b\n>>>>> End Test Output\nafter"
    assert section(log).strip() == "PASSED a.py::b"
    assert section("no marks") == "no marks"
    assert section(f"{START}\nhalf").strip() == "half"


@pytest.mark.parametrize(
    ("reader", "given", "listed"),
    [
        ("parse_log_pytest_v2", "t.py::test_a[/x/y]", "t.py::test_a[/x/y]"),
        ("parse_log_pylint", "t.py::test_a[/x/y]", "t.py::test_a[/y]"),
        ("parse_log_requests", "t.py::test_a[//x/y]", "t.py::test_a[//x/y]"),
        ("parse_log_matplotlib", "t.py::test_a[MouseButton.LEFT]", "t.py::test_a[1]"),
        ("r2e", "r2e_tests/test_1.py::Case::test_a", "Case.test_a"),
    ],
)
def test_names_are_written_as_the_lists_write_them(reader: str, given: str, listed: str) -> None:
    assert reads_pytest(reader)
    assert as_listed({given: "passed"}, reader) == {listed: "passed"}


def test_r2e_lists_only_what_passed_or_failed() -> None:
    assert as_listed({"t.py::a": "skipped", "t.py::b": "xfailed", "t.py": "failed"}, "r2e") == {}


def test_a_suite_that_ran_says_how_many_tests_there_were() -> None:
    assert suite_ran("  12 passing (3s)") and suite_ran("Executed 3 of 3 SUCCESS") and suite_ran("# tests 4")
    assert not suite_ran("0 passing") and not suite_ran("Executed 0 of 0") and not suite_ran("npm ERR! missing script")


@pytest.mark.parametrize(
    ("package", "name"), [("swebench", "parse_log_django"), ("multi_swe_bench", "multi-swe-bench:cli/cli#1")]
)
def test_another_runners_logs_need_the_package_that_reads_them(package: str, name: str) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(MissingDependency, match=r"pip install 'skyrl-suite\[(swebench|multi-swe-bench)\]'"):
        log_parser(name, "go test ./...")
