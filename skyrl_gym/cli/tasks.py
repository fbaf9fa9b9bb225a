"""`skyrl tasks make-swe SOURCE`: repair tasks of a repository or package of one's own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from skyrl_gym.errors import ConfigError

if TYPE_CHECKING:
    from skyrl_gym.envs.swe.origins import Testing
    from skyrl_gym.envs.swe.vetting import Vetted

EXAMPLES = """
skyrl tasks make-swe path/to/repository --out bugs.jsonl --count 20
skyrl tasks make-swe path/to/repository --by mine --out repairs.jsonl --requirement attrs==25.3.0
skyrl tasks make-swe sqlparse==0.5.1 --out bugs.jsonl --seed 3
skyrl tasks make-swe sqlparse==0.5.1..0.5.2 --out repairs.jsonl
"""
_PACKAGE = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!+-]+?)(?:\.\.([\w.!+-]+))?")


def make_swe(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A git repository (folder or address), NAME==VERSION or NAME==A..B.")
    ],
    out: Annotated[Path, typer.Option(help="The file of tasks; those that can't be used go beside it.")],
    by: Annotated[
        Literal["inject", "mine"], typer.Option(help="Put bugs in, or take a git history's own repairs.")
    ] = "inject",
    count: Annotated[int, typer.Option(min=1, help="Tasks at most.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the bugs.")] = 0,
    tests: Annotated[list[str] | None, typer.Option(help="A file or folder with tests; by default tests/.")] = None,
    python_path: Annotated[str, typer.Option(help="Where code is imported from; by default src/, or the root.")] = "",
    requirement: Annotated[
        list[str] | None, typer.Option(help="A pinned package that the tests need, like attrs==25.3.0.")
    ] = None,
) -> None:
    """Make repair tasks of a repository or a package, each tried three times with its repair and three without.

    Rows are in SWE-bench's schema; play them with --set tasks=FILE. The same seed gives the same tasks.
    """
    from skyrl_gym.envs.swe.origins import Testing

    testing = Testing(tests or (), python_path, requirement or ())
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out names a .jsonl file; got {out}")
    pair = _PACKAGE.fullmatch(source)
    wanted = 1 if pair and pair[3] else count
    asyncio.run(_write(_made(source, by, count, seed, testing), out, wanted))


async def _made(source: str, by: str, count: int, seed: int, testing: Testing) -> AsyncIterator[Vetted]:
    from skyrl_gym.envs.swe.factory import inject_bugs, mine_repairs, repair_between
    from skyrl_gym.envs.swe.origins import git_origin, sdist_origin

    package = _PACKAGE.fullmatch(source)
    if package and package[3]:
        yield await repair_between(package[1], package[2], package[3], testing)
        return
    if package and by == "mine":
        raise ConfigError(f"a package has no history to mine; name two versions, like {package[1]}==A..B")
    if package:
        origin = await asyncio.to_thread(sdist_origin, package[1], package[2], testing)
    else:
        origin = await asyncio.to_thread(git_origin, source, testing)
    found = inject_bugs(origin, count, seed) if by == "inject" else mine_repairs(origin, count)
    async for vetted in found:
        yield vetted


async def _write(made: AsyncIterator[Vetted], out: Path, wanted: int) -> None:
    paths = {True: out, False: out.with_suffix(".quarantine.jsonl")}
    counts = {True: 0, False: 0}
    with ExitStack() as stack:
        files: dict[bool, IO[str]] = {}
        async for vetted in made:
            if not files:  # nothing is overwritten before there is something to write
                out.parent.mkdir(parents=True, exist_ok=True)
                files = {sound: stack.enter_context(path.open("w")) for sound, path in paths.items()}
            counts[vetted.sound] += 1
            row = vetted.row if vetted.sound else {**vetted.row, "reason": vetted.reason}
            files[vetted.sound].write(json.dumps(row) + "\n")
            files[vetted.sound].flush()
            said = f"kept in quarantine: {' '.join(vetted.reason.split())}" if vetted.reason else "sound"
            typer.echo(f"{row['instance_id']}  {said}", err=True)
    if files and not counts[False]:
        paths[False].unlink()
    aside = f", {counts[False]} in {paths[False]}" if counts[False] else ""
    made_all = "" if counts[True] >= wanted else f"; {wanted} wanted, and no more to be had"
    typer.echo(f"{counts[True]} {'task' if counts[True] == 1 else 'tasks'} in {out}{aside}{made_all}")
    if not counts[True]:
        raise typer.Exit(1)
