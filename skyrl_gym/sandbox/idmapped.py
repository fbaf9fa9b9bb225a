"""Folders shown in another mount namespace, their files owned by the user there. For root, since Linux 5.12.

What an overlay lies over must belong to who writes in it; as root, a folder mostly belongs to root and the
sandbox runs as somebody else. An id-mapped mount changes the owner as it is seen, and nothing on disk.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import ExitStack

__all__ = ["attach"]

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture of today
_AT_FDCWD, _AT_EMPTY_PATH, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4
_MOUNT_ATTR_IDMAP = 0x100000
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000


def attach(folders: Mapping[str, str], process: int) -> None:
    """Mounts host folders in the mount namespace of a process, ids mapped by its user namespace.

    Args:
        folders: what each is to show of the host, by the existing folder there.
        process: as the host sees it.

    Raises:
        OSError: the kernel, the file system or missing rights don't allow it.
    """
    failed: list[OSError] = []

    def work() -> None:
        try:
            _attach(folders, process)
        except OSError as error:
            failed.append(error)

    # The thread enters the other namespace, and can't come back: it must be one that ends.
    thread = threading.Thread(target=work, name="attach mounts")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _attach(folders: Mapping[str, str], process: int) -> None:
    with ExitStack() as opened:

        def keep(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        users, mounts = (keep(os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)) for kind in ("user", "mnt"))
        trees = {target: keep(_clone(source, users)) for target, source in folders.items()}
        _check("unshare", _libc.unshare(_CLONE_FS))
        _check("setns", _libc.setns(mounts, _CLONE_NEWNS))
        for target, tree in trees.items():
            _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def _clone(source: str, users: int) -> int:
    """A mount of a folder that hangs nowhere yet."""
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, users)
    try:
        _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    except OSError:
        os.close(tree)
        raise
    return tree


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes) -> int:
    passed = (argument if isinstance(argument, bytes) else ctypes.c_long(argument) for argument in arguments)
    return _check(f"system call {number}", _libc.syscall(ctypes.c_long(number), *passed))


def _check(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
