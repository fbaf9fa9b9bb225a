"""The published schemas of repair tasks, each mapped to SWE-bench's.

Beside SWE-bench's own fields a row may then have `image`, `repository`, `activate`, `hidden`, `eval_script`,
`log_parser`, `injected`, `reversed` and `expected`, as `instance.Instance` and `instance.Image` describe them.
"""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.instance import CONDA, TESTBED
from skyrl_gym.envs.swe.patches import patched_files
from skyrl_gym.errors import ConfigError, TaskError

__all__ = ["SCHEMAS", "standard_row"]

Row: TypeAlias = Mapping[str, Any]

R2E_RUN = f"ln -sfn /r2e_tests {TESTBED}/r2e_tests && cd {TESTBED} && bash run_tests.sh"
R2E_HIDDEN = ("/r2e_tests", f"{TESTBED}/r2e_tests", f"{TESTBED}/run_tests.sh", "/root/r2e_tests", "/root/run_tests.sh")
R2E_ACTIVATE = f'export PATH="{TESTBED}/.venv/bin:$PATH"'
MULTI_HIDDEN = ("/home/*.patch", "/home/*.sh")


def standard_row(row: Row, schema: str | None = None) -> Row:
    """A row as SWE-bench writes it; one that has this form already stays as it is.

    Args:
        row: as it was published.
        schema: a key of `SCHEMAS`; by default what the row's own fields say.

    Raises:
        ConfigError: no such schema.
        TaskError: a field is missing or can't be read.
    """
    name = schema or _schema_of(row)
    if name not in SCHEMAS:
        raise ConfigError(f"unknown schema {name!r}; known: {', '.join(sorted(SCHEMAS))}")
    if row.get("image") or row.get("sdist_base") or name == "standard":
        return row
    try:
        return SCHEMAS[name](row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, TaskError):
            raise
        shown = row.get("instance_id") or row.get("docker_image") or row.get("number") or "?"
        reason = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise TaskError(f"task {shown} is no row of {name}: {reason}; it has {', '.join(sorted(row))}") from None


def _schema_of(row: Row) -> str:
    """Which schema a row has, where its fields can tell."""
    marks = {
        "multi-swe": ("fix_patch", "org", "number"),
        "r2e-gym": ("docker_image", "expected_output_json"),
        "nemotron": ("metadata", "responses_create_params"),
        "swe-rebench": ("install_config", "test_patch"),
        "swe-smith": ("image_name", "patch"),
    }
    return next((name for name, fields in marks.items() if all(field in row for field in fields)), "standard")


def _swe_bench(row: Row) -> Row:
    # Docker Hub has no "__" in names.
    key = str(row["instance_id"]).replace("__", "_1776_").lower()
    return {**row, "image": f"swebench/sweb.eval.{_machine()}.{key}:latest"}


def _swe_gym(row: Row) -> Row:
    key = str(row["instance_id"]).replace("__", "_s_").lower()
    return {**row, "image": f"xingyaoww/sweb.eval.x86_64.{key}:latest"}


def _swe_rebench(row: Row) -> Row:
    config = _object(row["install_config"])
    key = str(row["instance_id"]).replace("__", "_1776_").lower()
    made = {**row, "image": row.get("image_name") or f"swerebench/sweb.eval.x86_64.{key}:latest"}
    parser = str(config.get("log_parser") or "parse_log_pytest")
    if "pytest" in parser and "pytest" in str(config["test_cmd"]):
        return {**made, "log_parser": parser}
    return {**made, "log_parser": parser, "eval_script": _script(str(config["test_cmd"]), str(row["test_patch"]))}


def _swe_smith(row: Row) -> Row:
    """The image is right, `patch` brings the bug, and the tests that notice it are taken from the agent's sight."""
    failing = row["FAIL_TO_PASS"]
    listed = json.loads(failing) if isinstance(failing, str) else failing
    files = sorted({name.partition("::")[0] for name in listed})
    return {
        **row,
        "problem_statement": row.get("problem_statement") or "These tests fail:\n\n" + "\n".join(listed),
        "test_patch": "",
        "image": row["image_name"],
        "injected": True,
        "reversed": True,
        "hidden": [f"{TESTBED}/{file}" for file in files],
    }


def _r2e_gym(row: Row) -> Row:
    expected = _object(row["expected_output_json"])
    outcomes = {name.split(" - ")[0]: status for name, status in expected.items() if name}
    return {
        "instance_id": f"{row['repo_name']}__{row['commit_hash']}",
        "repo": row["repo_name"],
        "base_commit": f"{row['commit_hash']}^",
        "problem_statement": row.get("problem_statement") or row.get("prompt") or "",
        "patch": _r2e_patch(_object(row["parsed_commit_content"])),
        "test_patch": "",
        "FAIL_TO_PASS": [],
        "PASS_TO_PASS": [],
        "expected": outcomes,
        "image": row["docker_image"],
        "repository": TESTBED,
        "activate": R2E_ACTIVATE,
        "hidden": list(R2E_HIDDEN),
        "eval_script": R2E_RUN,
        "log_parser": "r2e",
    }


def _r2e_patch(commit: Mapping[str, Any]) -> str:
    """The diff of a parsed commit, tests left out: a hunk is a list of lines, each kept, deleted or added."""
    return "".join(
        f"--- a/{path}\n+++ b/{path}\n" + "".join(_r2e_hunk(hunk) for hunk in file["hunks"])
        for file in commit["file_diffs"]
        if file["hunks"] and not belongs_to_tests(path := file["header"]["file"]["path"])
    )


def _r2e_hunk(hunk: Mapping[str, Any]) -> str:
    marks = {"context": " ", "deleted": "-", "added": "+"}
    lines = [
        (marks[line["type"]], line["content"]) for line in hunk["line_group"]["all_lines"] if line["type"] in marks
    ]
    # The lengths are counted: published ranges may leave them out.
    old, new = (sum(mark in (" ", own) for mark, _ in lines) for own in "-+")
    start = hunk["descriptor"]
    head = f"@@ -{start['old_range']['start']},{old} +{start['new_range']['start']},{new} @@\n"
    return head + "".join(f"{mark}{text}\n" for mark, text in lines)


def _nemotron(row: Row) -> Row:
    """A row of another set, wrapped."""
    inner = _object(_object(row["metadata"])["instance_dict"])
    source = str(_object(row["metadata"]).get("dataset_name") or row.get("dataset_name") or "").lower()
    if inner.get("install_config"):
        return standard_row(inner, "swe-rebench")
    return standard_row(inner, "swe-gym" if "swe-gym" in source else "swe-bench")


def _multi_swe(row: Row) -> Row:
    org, repo, number = str(row["org"]), str(row["repo"]), int(row["number"])
    failing = sorted({name for kind in ("f2p_tests", "s2p_tests", "n2p_tests") for name in row.get(kind) or {}})
    issues = [f"{issue['title']}\n\n{issue.get('body') or ''}".strip() for issue in row.get("resolved_issues") or []]
    own = f"{row.get('title') or ''}\n\n{row.get('body') or ''}".strip()
    return {
        "instance_id": f"{org}__{repo}-{number}",
        "repo": f"{org}/{repo}",
        "base_commit": row["base"]["sha"],
        "problem_statement": "\n\n".join(issues) or own,
        "patch": row["fix_patch"],
        "test_patch": row["test_patch"],
        "FAIL_TO_PASS": failing,
        "PASS_TO_PASS": sorted(row.get("p2p_tests") or {}),
        "image": f"mswebench/{org}_m_{repo}:pr-{number}".lower(),
        "repository": f"/home/{repo}",
        "activate": "",
        "hidden": list(MULTI_HIDDEN),
        # The image's script puts the tests of the repaired version in and runs them.
        "eval_script": "bash /home/test-run.sh",
        "log_parser": f"multi-swe-bench:{org}/{repo}#{number}",
    }


def _script(command: str, test_patch: str) -> str:
    files = shlex.join(sorted(patched_files(test_patch) - {"/dev/null"}))
    mark = "EOF_of_the_test_patch"
    return f"{CONDA}\ncd {TESTBED}\ngit apply - <<'{mark}'\n{test_patch}\n{mark}\n{command} {files}\n"


def _object(value: Any) -> Mapping[str, Any]:
    """An object, or the JSON text of one."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise TaskError(f"an object was expected, or the JSON text of one; got {value!r:.80}")
    return found


def _machine() -> str:
    return "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64"


SCHEMAS: Mapping[str, Callable[[Row], Row]] = {
    "standard": lambda row: row,
    "swe-bench": _swe_bench,
    "swe-gym": _swe_gym,
    "swe-rebench": _swe_rebench,
    "swe-smith": _swe_smith,
    "r2e-gym": _r2e_gym,
    "nemotron": _nemotron,
    "multi-swe": _multi_swe,
}
