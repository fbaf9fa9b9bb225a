"""Tests in Go, judged by what Go's own package testing says: what code under test prints does not count.

The script of the data set builds the test programs with a package testing that tells how each test ends, in lines
that a key signs; each is kept in place of being run. Then they are run one by one, from outside, and a log is made of
the signed lines alone, for the reader of logs that the data set names.

A test counts if it is one that the program was built with, and Go's own runner has run it.

What this can't stop: code under test runs in the process of its tests. It could look for the key in its program.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from string import Template

from skyrl_gym.envs.swe.instance import Image
from skyrl_gym.envs.swe.logs import END
from skyrl_gym.sandbox import ExecResult, Sandbox

__all__ = ["go_log", "runs_go"]

GO_S = 1_800.0
MAX_LOG = 64 * 1_048_576
_VARIABLE = "SKYRL_TEST_RUN"
# Where package testing says more: file -> the line that is found once, what is added after it.
_EDITS: Mapping[str, Mapping[str, str]] = {
    "testing.go": {
        r"^import \($": "",  # what the added functions need
        r"^func MainStart\(.*\) \*M \{$": "",  # by its parameters, see `_after`
        r"^func tRunner\(t \*T, fn func\(t \*T\)\) \{$": "watchBegin(&t.common, fn)",
        r"^func \(t \*T\) report\(\) \{$": "watchEnd(&t.common)",
        r"^func \(m \*M\) Run\(\) \(code int\) \{$": "defer func() { watchRun(m.tests, code) }()",
    },
    "example.go": {
        r"^func \(eg \*InternalExample\) processRunResult\(.*\) \(passed bool\) \{$": (
            "defer func() { watchExample(eg.Name, eg.F, passed) }()"
        ),
    },
    "fuzz.go": {
        r"^func fRunner\(f \*F, fn func\(\*F\)\) \{$": "watchBegin(&f.common, fn)",
        r"^func \(f \*F\) report\(\) \{$": "watchEnd(&f.common)",
    },
}
# In place of a test program: keeps it, and what it would have been run with. Other programs are run.
_KEEP = r"""#!/bin/bash
case "$1" in *.test) ;; *) exec "$@" ;; esac
at="$(mktemp -d "$0.d/XXXXXXXX")" && cp -- "$1" "$at/binary" && shift && printf '%s\0' "$@" > "$at/words" &&
pwd > "$at/folder" && { go list -e -f '{{.ImportPath}}' . || pwd; } > "$at/package" && export -p > "$at/environment"
"""
_BUILD = r"""
cd "$1" && mkdir "$2/keep.d" && chmod 755 "$2/keep" || exit 9
export GOFLAGS="$(go env GOFLAGS) -overlay=$2/overlay.json -exec=$2/keep"
bash "$2/script.sh" 2>&1
rm -rf "$2/overlay.json" "$2"/*.go
"""
_KEPT = r"""
for at in "$1"/keep.d/*/; do
[ ! -s "$at/environment" ] || (cd "$at" && sha256sum binary && grep -cF "$2" binary; cat package && pwd)
done
"""
_RUN = r"""
cd "$1" && echo "$2  binary" | sha256sum --status -c || exit 9
cd "$(cat "$1/folder")" && . "$1/environment" 2> /dev/null
export "$3=$4" GOFLAGS="${GOFLAGS%% -overlay=*}"
words=()
while IFS= read -r -d '' word; do
case "$word" in -test.testlogfile=*|-test.coverprofile=*|-test.gocoverdir=*) ;; *) words+=("$word") ;; esac
done < "$1/words"
exec "$1/binary" "${words[@]}" < /dev/null
"""
_SIGNED = re.compile(rb"^(\w{32}) (\w{64}) ((\w{16}) (PASS|FAIL|SKIP|END) (\d{1,3}) ((?:[0-9a-f]{2})+))$", re.MULTILINE)
_OF_KEPT = re.compile(r"ok\s+\S+\s")


@dataclass(frozen=True)
class _Kept:
    """A test program: its folder, its hash, the package whose tests it runs, and whether it signs what it tells."""

    folder: str
    sha256: str
    package: str
    signs: bool


@dataclass(frozen=True)
class _Told:
    """PASS, FAIL or SKIP, how deep among tests, and its name; or END and an exit status."""

    word: str
    level: int
    name: str


def runs_go(script: str) -> bool:
    """Whether a script runs tests in Go, whose log is text."""
    return re.search(r"\bgo test\b", script) is not None and "-json" not in script


async def go_log(box: Sandbox, image: Image) -> ExecResult | None:
    """The log of the script, of signed lines only; None where the Go that is there, or the script, can't be watched.

    The script's own lines stay: in building, no code under test runs.
    """
    folder, key, mark = f"/tmp/{secrets.token_hex(8)}", secrets.token_hex(32), secrets.token_hex(16)
    if not await _lay_overlay(box, image.repository, folder, key, mark):
        return None
    await box.write(f"{folder}/script.sh", image.eval_script.encode())
    await box.write(f"{folder}/keep", _KEEP.encode())
    built = await _bash(box, _BUILD, image.repository, folder)
    if built.status != "ok":
        return built
    listed = (await _bash(box, _KEPT, folder, mark)).text.splitlines()
    fours = zip(*[iter(listed)] * 4, strict=True)
    programs = [_Kept(at, line[:64], name, signs != "0") for line, signs, name, at in fours]
    if not programs or not all(program.signs for program in programs):
        return None
    lines: list[str] = []
    for program in sorted(programs, key=lambda one: (one.package, one.sha256)):
        run = secrets.token_hex(8)
        ran = await _bash(box, _RUN, program.folder, program.sha256, _VARIABLE, run)
        lines += _lines(program.package, ran, _signed(ran.output, key, mark, run))
    own = [line for line in built.text.splitlines() if not _OF_KEPT.match(line)]
    end = next((place for place in reversed(range(len(own))) if END in own[place]), len(own))
    return replace(built, output="\n".join([*own[:end], *lines, *own[end:], ""]).encode())


def _lines(package: str, ran: ExecResult, said: Sequence[_Told]) -> Iterator[str]:
    """As Go writes them."""
    for told in said:
        if told.word != "END":
            indent = "    " * (told.level - 1)  # a name may hold slashes of its own
            yield from (f"=== RUN   {told.name}", f"{indent}--- {told.word}: {told.name} (0.00s)")
    good = (ran.status, ran.code) == ("ok", 0) and _Told("END", 0, "0") in said
    yield from ("PASS", f"ok  \t{package}\t0.001s") if good else ("FAIL", f"FAIL\t{package}\t0.001s")


def _signed(output: bytes, key: str, mark: str, run: str) -> list[_Told]:
    """The lines that are signed, of this run."""
    found = []
    secret = bytes.fromhex(key)
    for line in _SIGNED.finditer(output):
        right = hashlib.sha256(secret + line[3] + secret).hexdigest()
        if line[1].decode() == mark and line[4].decode() == run and secrets.compare_digest(line[2].decode(), right):
            name = bytes.fromhex(line[7].decode()).decode(errors="replace")
            found.append(_Told(line[5].decode(), int(line[6]), name))
    return found


async def _lay_overlay(box: Sandbox, repository: str, folder: str, key: str, mark: str) -> bool:
    """Puts the other package testing beside Go's own; False where Go's is not as it is known."""
    found = await _bash(box, 'cd "$1" && go env GOROOT', repository)
    if found.code != 0:
        return False
    testing = f"{found.text.strip()}/src/testing"
    replaced = {}
    named = partial(re.sub, r"\bwatch", f"w{secrets.token_hex(8)}")  # nothing can be linked with what it can't name
    for name, edits in _EDITS.items():
        try:
            source = (await box.read(f"{testing}/{name}")).decode()
        except OSError:
            if name == "fuzz.go":  # Go before 1.18
                continue
            return False
        for pattern, added in edits.items():
            places = list(re.finditer(pattern, source, re.MULTILINE))
            if len(places) != 1:
                return False
            source = source[: places[0].end()] + named(_after(places[0][0], added)) + source[places[0].end() :]
        if name == "testing.go":
            source += named(Template(_watch()[1]).substitute(key=key, mark=mark, variable=_VARIABLE))
        await box.write(f"{folder}/{name}", source.encode())
        replaced[f"{testing}/{name}"] = f"{folder}/{name}"
    await box.write(f"{folder}/overlay.json", json.dumps({"Replace": replaced}).encode())
    return True


def _watch() -> tuple[str, str]:
    """The imports, and the functions."""
    _, _, rest = (files("skyrl_gym.envs.swe") / "watch_testing.go").read_text().partition("import (\n")
    imports, _, functions = rest.partition("\n)\n")
    return imports, functions


def _after(found: str, added: str) -> str:
    if added:
        return f"\n\t{added}"
    if found == "import (":
        return f"\n{_watch()[0]}"
    more = "".join(
        f"\t\tfor _, one := range {kind} {{\n\t\t\twatchKnown(one.Name, one.{function})\n\t\t}}\n"
        for kind, function in (("fuzzTargets", "Fn"), ("examples", "F"))
        if f"{kind} []" in found
    )
    return f"\n\tif watchStart(tests) {{\n{more}\t}}"


async def _bash(box: Sandbox, script: str, *arguments: str) -> ExecResult:
    return await box.exec(["bash", "-c", script, "bash", *arguments], timeout_s=GO_S, max_bytes=MAX_LOG)
