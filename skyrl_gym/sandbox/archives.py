"""Folders as archives: packed here or in a sandbox, unpacked here without trusting who packed them.

What an archive from a sandbox could try: names and links that lead out of the target, a file written through a
link, devices, and more bytes or files than there is room for. Python's own filters have been got round by chains
of links (CVE-2025-4517), so nothing here depends on resolving any: links are made after all files, may go up only
at their beginning, and nothing lies below one.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from skyrl_gym.errors import SandboxError

__all__ = ["MAX_FILES", "pack", "unpack"]

MAX_FILES = 200_000
MAX_DEPTH = 200
_MODES = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
_Member = tuple[PurePosixPath, tarfile.TarInfo]


def pack(source: Path, target: PurePosixPath, *, max_bytes: int) -> tuple[PurePosixPath, bytes]:
    """A tar archive of a file or of what is in a folder, and the folder to unpack it in for `target` to be that.

    Raises:
        OSError: it can't be read.
        SandboxError: it is larger than `max_bytes`.
    """
    packed = io.BytesIO()
    size = 0

    def counted(member: tarfile.TarInfo) -> tarfile.TarInfo:
        nonlocal size
        size += member.size
        if size > max_bytes:
            raise SandboxError(f"{source} is larger than {max_bytes} bytes")
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    is_folder = source.is_dir()
    members = {path.name: path for path in sorted(source.iterdir())} if is_folder else {target.name: source}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in members.items():
            archive.add(path, arcname=name, filter=counted)
    return target if is_folder else target.parent, packed.getvalue()


def unpack(archive: bytes, name: str, target: Path, *, max_bytes: int, max_files: int = MAX_FILES) -> None:
    """Makes `target` from the member `name` of an archive and what lies below it. All of it, or nothing.

    Args:
        archive: an uncompressed tar archive.
        name: the member that becomes `target`; members elsewhere are refused.
        target: a path where nothing is yet.
        max_bytes: bound of the unpacked files together.
        max_files: bound of their number.

    Raises:
        SandboxError: a member is refused, or this is no archive.
        FileExistsError: something is at `target`.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"something is there already: {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".skyrl-", dir=target.parent) as scratch:
        made = Path(scratch, "made")
        try:
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
                _make(opened, _checked(opened, name, max_bytes, max_files), name, made)
        except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
            raise SandboxError(f"what came from the sandbox is no archive: {error}") from error
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise SandboxError(f"refused {error.filename!r}: it is there twice, as different things") from error
        if not os.path.lexists(made):
            raise SandboxError(f"what came from the sandbox does not hold {name!r}")
        made.rename(target)


def _checked(archive: tarfile.TarFile, name: str, max_bytes: int, max_files: int) -> list[_Member]:
    members: list[_Member] = []
    size = 0
    for member in archive:
        path = _below(member.name, name)
        if member.size < 0:  # would have the reader go back
            raise SandboxError(f"refused {member.name!r}: a file of {member.size} bytes")
        size += member.size
        if size > max_bytes:
            raise SandboxError(f"larger than {max_bytes} bytes unpacked, from {member.name!r} on")
        if len(members) >= max_files:
            raise SandboxError(f"more than {max_files} files, from {member.name!r} on")
        members.append((path, member))
    links = {path for path, member in members if not (member.isreg() or member.isdir())}
    for path, member in members:
        if below := links.intersection(path.parents):
            raise SandboxError(f"{member.name!r} lies below {str(min(below))!r}, which is no folder")
        _check_kind(path, member)
    return members


def _below(member: str, name: str) -> PurePosixPath:
    """A member's path, relative to the one that is wanted."""
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or "\0" in member or len(path.parts) > MAX_DEPTH:
        raise SandboxError(f"refused the path {member[:200]!r}: absolute, with '..', or too deep")
    try:
        return path.relative_to(name)
    except ValueError:
        raise SandboxError(f"refused the path {member[:200]!r}: not below {name!r}") from None


def _check_kind(path: PurePosixPath, member: tarfile.TarInfo) -> None:
    if member.isreg() or member.isdir() or member.islnk():
        return
    if not member.issym():
        raise SandboxError(f"refused {member.name!r}: neither a file, a folder nor a link")
    target = PurePosixPath(member.linkname)
    parts = target.parts
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    # The folders above a link are real ones, so going up at the beginning is what it looks like; later it is not.
    if not parts or target.is_absolute() or ".." in parts[up:] or up > len(path.parents) - 1:
        raise SandboxError(f"refused the link {member.name!r} to {member.linkname[:200]!r}: it may lead outside")


def _make(archive: tarfile.TarFile, members: list[_Member], name: str, root: Path) -> None:
    files: dict[PurePosixPath, Path] = {}
    folders: dict[Path, int] = {}
    for path, member in members:
        place = root / path
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
            folders[place] = member.mode & _MODES
        elif member.isreg():
            files[path] = _new(place)
            _write(archive, member, place)
    for path, member in _of_type(members, tarfile.LNKTYPE):
        first = files.get(_below(member.linkname, name))
        if first is None:
            raise SandboxError(f"refused the link {member.name!r} to {member.linkname[:200]!r}: no file of the archive")
        shutil.copy2(first, _new(root / path))
    for path, member in _of_type(members, tarfile.SYMTYPE):
        _new(root / path).symlink_to(member.linkname)
    for place, mode in reversed(folders.items()):
        place.chmod(mode | stat.S_IRWXU)  # so that it can be removed


def _of_type(members: list[_Member], kind: bytes) -> Iterator[_Member]:
    return ((path, member) for path, member in members if member.type == kind)


def _new(place: Path) -> Path:
    """A path where nothing is, its parents made."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place):
        raise FileExistsError(errno.EEXIST, "there already", str(place))
    return place


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None  # as it is for every regular file
    with content, place.open("xb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(member.mode & _MODES)
