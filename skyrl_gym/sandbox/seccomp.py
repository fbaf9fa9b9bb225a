"""A filter of system calls: what no command of an agent needs and what flaws of the kernel were mostly found in.

Refused are tracing and the memory of other processes, mounting, new namespaces, kernel modules, eBPF, io_uring,
performance counters, keyrings, and typing into a terminal. Debuggers that trace (gdb, strace) do not work.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import struct

__all__ = ["profile", "program"]

_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data, little-endian
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_X32 = 0x40000000
_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Those that are younger than the numbers' split by architecture.
_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
_NAMES = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "add_key", "request_key", "keyctl", "bpf"),
    *("perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module"),
    *("delete_module", "mount", "umount2", "pivot_root", "swapon", "swapoff", "reboot", "setns", "unshare"),
    *("open_by_handle_at", "fanotify_init", "quotactl", "acct", "syslog"),
)
_X86_64 = (
    "101 310 311 312 248 249 250 321 298 323 246 320 175 313 176 165 166 155 167 168 169 308 272 304 300 179 163 103"
)
_AARCH64 = "117 270 271 272 217 218 219 280 241 282 104 294 105 273 106 40 39 41 224 225 142 268 97 265 262 60 89 116"
# AUDIT_ARCH_*, the numbers of clone, clone3 and ioctl, and of what is refused.
_MACHINES = {
    "x86_64": (0xC000003E, 56, 435, 16, _X86_64),
    "aarch64": (0xC00000B7, 220, 435, 29, _AARCH64),
}


@functools.cache
def program() -> bytes | None:
    """The filter in the kernel's form, for this machine; None where its numbers are not known."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return None
    architecture, clone, clone3, ioctl, numbers = machine
    refused = dict(zip(_NAMES, map(int, numbers.split()), strict=True)) | _COMMON
    return b"".join(
        [
            *(_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _refuse(errno.EPERM)),
            _step(_LOAD, _NUMBER),
            *(_step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)),
            *(part for number in refused.values() for part in (_step(_EQUAL, number, 0, 1), _refuse(errno.EPERM))),
            # Its flags can't be looked at; libraries fall back to clone.
            *(_step(_EQUAL, clone3, 0, 1), _refuse(errno.ENOSYS)),
            *(_step(_EQUAL, clone, 0, 4), _step(_LOAD, _FIRST), _step(_ANY_OF, sum(_NAMESPACES), 0, 1)),
            *(_refuse(errno.EPERM), _step(_RETURN, _ALLOW)),
            *(_step(_EQUAL, ioctl, 0, 4), _step(_LOAD, _SECOND), _step(_EQUAL, _TIOCSTI, 1, 0)),
            *(_step(_EQUAL, _TIOCLINUX, 0, 1), _refuse(errno.EPERM)),
            _step(_RETURN, _ALLOW),
        ]
    )


def profile() -> str:
    """The same as container engines take it; Podman's own lets namespaces be made, and mounts in them."""
    flags = [{"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"} for flag in _NAMESPACES]
    rules = [
        {"names": [*_NAMES, *_COMMON], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        *({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM, "args": [one]} for one in flags),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    """One instruction; the jumps are instructions to be skipped."""
    return struct.pack("<HBBI", code, if_so, if_not, value)


def _refuse(number: int) -> bytes:
    return _step(_RETURN, _ERROR | number)
