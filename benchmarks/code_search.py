"""Code search on Django and CPython's library: a cold index, questions, an edit, memory; recall and precision.

Each tree in a bubblewrap sandbox, this process and its parser on one core. What is there, Python's own `ast` says.
Against ripgrep, and against the script of the paper's agent if there is a copy of it. The least of several runs stands
beside the median where other work on the machine would blur it; seconds of CPU are of this process and its parser.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import resource
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.code_peers import Away, PaperSearch, copy_tree, grep, regex_search, sdist
from benchmarks.code_truth import Known, Place, Truth, read_truth
from skyrl_gym.sandbox import Mount, Sandbox, SandboxSpec, bubblewrap_problem, open_sandbox
from skyrl_gym.tools.code_search import CodeSearch, Parsers, Store
from skyrl_gym.tools.code_search.languages import language_of, load_grammar
from skyrl_gym.tools.code_search.lookup import Query, find
from skyrl_gym.tools.code_search.relations import callers
from skyrl_gym.tools.code_search.repository import Repository

DJANGO = "5.2.8"
COLD_S, QUERY_S, EDIT_S = 3.0, 0.020, 0.050  # the goals
COLD_RUNS = 3
SAMPLES = 30
NAMES = 300
SHOWN = 20  # definitions that an answer lists at most
PAPER_NAMES = 6
OF_TEXT = ("a text", "words (BM25)")  # these look into all text files first, by ripgrep
Question = dict[str, Any]


def cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def resident_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def show(name: str, took: Iterable[float], goal_s: float | None = None) -> None:
    seconds = list(took)
    cut = statistics.quantiles(seconds, n=20)
    figures = {"p50": cut[9], "p95": cut[18], "least": min(seconds)}
    goal = f"   goal {goal_s * 1e3:.0f} ms" if goal_s else ""
    print(f"  {name:<34} " + "   ".join(f"{what} {took * 1e3:8.1f} ms" for what, took in figures.items()) + goal)


async def timed(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return took


def parse_alone(root: Path) -> float:
    """Seconds of CPU that tree-sitter takes for the files, read and parsed, with nothing done with the trees."""
    files = [(language, path.read_bytes()) for path in root.rglob("*") if (language := language_of(path.name))]
    began = time.process_time()
    for language, data in files:
        load_grammar(language).parser.parse(data)
    return time.process_time() - began


async def cold_indexes(box: Sandbox, root: Path) -> CodeSearch:
    walls, cpus, search = [], [], None
    before = resident_mb()
    for _ in range(COLD_RUNS):
        parsers = Parsers(1)
        search = CodeSearch(box, "/work", Store(parsers))
        wall, cpu = time.perf_counter(), cpu_s()
        index = await search.tracker.index()
        walls.append(time.perf_counter() - wall)
        parsers.close()  # so that its CPU is counted
        cpus.append(cpu_s() - cpu)
        if len(walls) == 1:
            print(f"  memory: {resident_mb() - before:.0f} MB for {len(index.paths):,} files of {size_mb(root):.1f} MB")
    assert search is not None
    alone = parse_alone(root)
    print(
        f"  cold index on one core             least {min(walls):.2f} s, median {statistics.median(walls):.2f} s; "
        f"CPU least {min(cpus):.2f} s, of which tree-sitter's parsing alone {alone:.2f} s   goal {COLD_S:.0f} s"
    )
    return search


def size_mb(root: Path) -> float:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and language_of(path.name)) / 1e6


def questions(truth: Truth, rng: random.Random) -> dict[str, list[Question]]:
    """Of each kind some, about definitions taken by chance."""
    known = rng.sample(truth.definitions, SAMPLES)
    named = [one for one in known if len(one.name) > 5]
    words = [word for one in known for word in one.name.strip("_").split("_")]
    return {
        "a name": [{"query": one.name} for one in known],
        "a qualified name": [{"query": one.qualified} for one in known],
        "file:name": [{"query": f"{one.path}:{one.qualified}"} for one in known],
        "part of a name": [{"query": one.name[: len(one.name) * 2 // 3]} for one in named],
        "a mistyped name": [{"query": mistyped(one.name)} for one in named],
        "callers": [{"query": one.name, "mode": "callers"} for one in known],
        "callees": [{"query": f"{one.path}:{one.qualified}", "mode": "callees"} for one in known],
        "imports of a file": [{"query": one.path, "mode": "imports"} for one in known],
        "imports of a name": [{"query": one.name, "mode": "imports"} for one in known],
        "outline of a file": [{"query": one.path, "mode": "outline"} for one in known],
        "lines": [{"mode": "code", "path": one.path, "lines": [one.first, one.last]} for one in known],
        "a text": [{"query": one.name, "mode": "text"} for one in known],
        "words (BM25)": [{"query": " ".join(rng.sample(words, 3))} for _ in known],
    }


def mistyped(name: str) -> str:
    """Two letters in the middle change places."""
    half = len(name) // 2
    return name[: half - 1] + name[half] + name[half - 1] + name[half + 1 :]


class Layerless:
    """A sandbox that does not tell what was written in it: every known file and folder is looked at."""

    def __init__(self, box: Sandbox) -> None:
        self.inspect = box.inspect

    def layer(self, target: str) -> None:
        return None


async def measure_looks(search: CodeSearch, box: Sandbox) -> None:
    show("the look for changes in each", await timed(search.tracker.index, SAMPLES))
    other = Repository(Layerless(box), "/work")
    known = await other.listing(await other.listing())
    show("the same at every file and folder", await timed(partial(other.listing, known), SAMPLES))
    show("all text files searched, no more", await timed(partial(other.matches, "zz_nowhere", "."), SAMPLES))


async def measure_questions(search: CodeSearch, truth: Truth) -> None:
    every: list[float] = []
    by_index: list[float] = []
    cpu = time.process_time()
    for kind, asked in questions(truth, random.Random(0)).items():
        took = []
        for question in asked:
            took += await timed(partial(search.search, **question), 1)
        show(kind, took)
        every += took
        by_index += took if kind not in OF_TEXT else ()
    show("all but text and words", by_index, QUERY_S)
    show("all questions", every, QUERY_S)
    print(f"  all questions, CPU of this process {(time.process_time() - cpu) / len(every) * 1e3:.1f} ms each")


async def measure_edits(search: CodeSearch, box: Sandbox, truth: Truth) -> None:
    took = []
    for number, known in enumerate(random.Random(1).sample(truth.definitions, SAMPLES)):
        data = await box.read(known.path)
        await box.write(known.path, data + f"\n\ndef zz_added_{number}():\n    pass\n".encode())
        took += await timed(search.tracker.index, 1)
        assert "1 definition" in await search.search(f"zz_added_{number}")
        await box.write(known.path, data)
        await search.tracker.index()
    show("index after one edit", took, EDIT_S)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.2f} % of {whole:,}" if whole else "none"


async def measure_recall(search: CodeSearch, truth: Truth) -> None:
    index = await search.tracker.index()
    there = set(truth.definitions)
    found = {
        Known(path, definition.qualified, definition.first, definition.last)
        for path in truth.files
        if (source := index.source(path))
        for definition in source.facts.definitions
        if definition.kind in ("class", "function", "method")
    }
    print(f"  definitions, path, name and lines: recall {share(len(found & there), len(there))}, ", end="")
    print(f"precision {share(len(found & there), len(found))}")
    calls = {(name, place) for name, places in truth.calls.items() for place in places}
    ours = {
        (name, (path, line))
        for path in truth.files
        if (source := index.source(path))
        for name, lines in (source.facts.calls or {}).items()
        for line in lines
    }
    print(f"  calls, by name and line:           recall {share(len(ours & calls), len(calls))}, ", end="")
    print(f"precision {share(len(ours & calls), len(ours))}")
    await measure_meant(search, truth)
    for how, write in (("its name", lambda name: name), ("its name mistyped", mistyped)):
        names = [one for one in random.Random(2).sample(truth.definitions, NAMES) if is_telling(one, truth)]
        shown = [f"{one.path}:{one.qualified}" in await search.search(write(one.name)) for one in names]
        print(f"  definition among those shown for {how:<18} {share(sum(shown), len(shown))}")


async def measure_meant(search: CodeSearch, truth: Truth) -> None:
    """Callers of a function of a file, among the plain calls of which it is certain whom they mean."""
    index = await search.tracker.index()
    certain: dict[str, dict[Place, str]] = {}
    for (home, name), places in truth.meant.items():
        certain.setdefault(name, {}).update(dict.fromkeys(places, home))
    right = wrong = whole = 0
    for (home, name), places in truth.meant.items():
        query = Query((name,), home)
        owners = found.hits if (found := find(index, query, home)) else ()
        listed = {(site.path, site.line) for site in callers(index, query, None, owners)}
        meant = [certain[name].get(place) for place in listed]
        right += sum(one == home for one in meant)
        wrong += sum(one not in (home, None) for one in meant)
        whole += len(places)
    print(f"  callers of file:function:          recall {share(right, whole)}, ", end="")
    print(f"precision {share(right, right + wrong)} (plain calls that mean one function for certain)")


def measure_ripgrep(root: Path, truth: Truth) -> None:
    try:
        regex_search(root, "x", "-F")
    except Away as away:
        print(f"  ripgrep: {away}")
        return
    of_name: dict[str, set[Place]] = {}
    for one in truth.definitions:
        of_name.setdefault(one.name, set()).add((one.path, one.first))
    took, texts, greps, right, lines, whole = [], [], [], 0, 0, 0
    for one in random.Random(0).sample(truth.definitions, SAMPLES):
        ran, found = regex_search(root, rf"^\s*(async\s+def|def|class)\s+{one.name}\b")
        found = {place for place in found if place[0] in truth.files}
        took.append(ran.wall_s)
        heads = {
            (known.path, line) for known in truth.definitions if known.name == one.name for line in lines_of(known)
        }
        right, lines, whole = right + len(found & heads), lines + len(found), whole + len(of_name[one.name])
        texts.append(regex_search(root, one.name, "-F")[0].wall_s)
        greps.append(grep(root, one.name).wall_s)
    show("ripgrep, a definition by a pattern", took)
    print(f"  ripgrep, definitions: recall {share(right, whole)}, precision {share(right, lines)}")
    show("ripgrep, a text", texts)
    show("grep, a text", greps)


def is_telling(known: Known, truth: Truth) -> bool:
    """Whether its name is no slip away from a dozen others, nor that of more than an answer shows."""
    return len(known.name) > 5 and sum(one.name == known.name for one in truth.definitions) <= SHOWN


def lines_of(known: Known) -> range:
    return range(known.first, known.last + 1)


def measure_paper(source: Path, truth: Truth, script: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = copy_tree(source, Path(folder, "tree"))
        try:
            paper = PaperSearch(root, script)
        except Away as away:
            print(f"  the paper's script: {away}")
            return
        names = random.Random(2).sample(truth.definitions, NAMES)
        known = [one for one in names if is_telling(one, truth)][:PAPER_NAMES]
        first = paper.search(known[0].name)
        print(f"  the paper's script, first question {first.wall_s:.2f} s, CPU {first.cpu_s:.2f} s")
        ran = [paper.search(one.name) for one in known]
        show("the paper's script, a name", [one.wall_s for one in ran])
        holds = [one.path in text.output and one.name in text.output for one, text in zip(known, ran, strict=True)]
        typed = [paper.search(mistyped(one.name)).output for one in known]
        print(f"  the paper's script, a name: its file is shown for {share(sum(holds), len(holds))}; ", end="")
        print(f"mistyped {share(sum(one.path in text for one, text in zip(known, typed, strict=True)), len(typed))}")
        with (root / known[0].path).open("a") as file:
            file.write("\n\ndef zz_added():\n    pass\n")
        added = paper.search("zz_added").output
        is_known = "Found function" in added
        print(
            f"  the paper's script, a function just written: {'a definition' if is_known else 'only text, if at all'}"
        )


async def measure(root: Path, script: Path | None) -> None:
    truth = read_truth(root)
    print(f"  {len(truth.files):,} files that ast reads; load {os.getloadavg()[0]:.1f}")
    spec = SandboxSpec(mounts=(Mount(str(root), "/work", "private"),))
    async with await open_sandbox(spec) as box:
        search = await cold_indexes(box, root)
        await measure_looks(search, box)
        await measure_questions(search, truth)
        await measure_edits(search, box, truth)
        await measure_recall(search, truth)
    measure_ripgrep(root, truth)
    measure_paper(root, truth, script)
    print(f"  load {os.getloadavg()[0]:.1f}", flush=True)


def of_tree(name: str, source: str, script: Path | None) -> None:
    """In a process of its own, so that the memory is its own too."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        print(f"{name}:", flush=True)
        asyncio.run(measure(copy_tree(Path(source), Path(folder, "tree")), script))


def main(paper: Path | None = None, only: str | None = None) -> None:
    if problem := bubblewrap_problem():
        print(f"bubblewrap: {problem}")
        return
    trees: dict[str, Callable[[], Path]] = {
        "cpython": lambda: Path(sysconfig.get_path("stdlib")),
        "django": lambda: sdist("django", DJANGO),
    }
    for name, get in trees.items():
        if only not in (None, name):
            continue
        try:
            source = get()
        except Away as away:
            print(f"{name}: {away}")
            continue
        process = multiprocessing.get_context("spawn").Process(target=of_tree, args=(name, str(source), paper))
        process.start()
        process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paper", type=Path, help="the paper's search.py, of SkyRL's repository")
    parser.add_argument("--only", help="django or cpython")
    given = parser.parse_args()
    main(given.paper, given.only)
