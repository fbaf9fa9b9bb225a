"""The arguments of bubblewrap: the holder of a sandbox's namespaces, and the commands that run in them.

The holder owns the user, pid, network, ipc and host name namespaces and all of the sandbox's files, which are
in memory below /box. A command enters them and gets, by a second bubblewrap, a view of the files, a pid namespace
of its own, and no privilege at all.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.backend import PATH
from skyrl_gym.sandbox.base import Limits, SandboxSpec

__all__ = [
    "ENVIRONMENT",
    "NOBODY",
    "PACKAGES",
    "command_options",
    "enter",
    "holder",
    "layer",
    "limited_bwrap",
    "overlay_all",
    "pack",
    "probe",
    "program",
    "start",
    "unpack",
]

NOBODY = 65_534
PACKAGES = {
    "bwrap": "bubblewrap",
    "nsenter": "util-linux",
    "tar": "tar",
    "unshare": "util-linux",
}
KB, MB = 1_024, 1_048_576
# All that a process started here gets: bwrap's own pid 1 keeps this environment readable inside.
ENVIRONMENT = {"PATH": PATH}
_USER = 1000
_INNER_BWRAP = "/lower/bwrap"
_BOX_ETC = ("--bind", "/box/etc", "/etc")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "ssl/certs", "ssl/openssl.cnf")
_NETWORK_ETC = ("resolv.conf", "services", "protocols")
_OVERLAY = """
overlay() {
  mount -t overlay -o "lowerdir=$1,upperdir=/box/$2/upper,workdir=/box/$2/work,userxattr" overlay "/box/$2/all"
}
# A folder that is removed and made anew needs an attribute which files in memory have since Linux 6.6.
overlay_works() {
  mkdir -p /box/probe/lower/folder /box/probe/upper /box/probe/work /box/probe/all &&
    overlay /box/probe/lower probe && rmdir /box/probe/all/folder && mkdir /box/probe/all/folder &&
    umount /box/probe/all
}
"""
# Of the places, each `start` is told which of their descriptors its command is to have; the others it must not.
_HOLDER = f"""
set -e
{_OVERLAY}
inodes=$1 limit=$2
shift 2
descriptors=$*
# What is shown of it now can't be given again: a uid in another namespace's terms.
mount --options-source disable -o "remount,nosuid,nodev,nr_inodes=$inodes" /box
cd /box
echo 'root:x:0:0::/:/bin/sh
sandbox:x:{_USER}:{_USER}::/tmp:/bin/bash
nobody:x:65534:65534::/:/bin/sh' > etc/passwd
echo 'root:x:0:
sandbox:x:{_USER}:
nogroup:x:65534:' > etc/group
echo '127.0.0.1 localhost sandbox' > etc/hosts
overlay_all() {{
  for n in "$@"; do
    if overlay "/lower/$n" "$n" 2>/dev/null; then echo "$n"; fi
  done
}}
close() {{
  for n in $1; do
    case " $2 " in *" $n "*) ;; *) exec {{n}}>&- ;; esac
  done
}}
start() {{
  local in=$1 out=$2 kept=$3
  shift 3
  (
    trap - INT QUIT
    eval "$limit" # not of the holder, which could then start nothing where a command has used it up
    exec <&"$in" >&"$out" 2>&1
    close "$descriptors" "$kept"
    exec "$@"
  ) &
  echo "$!"
  close "$in $out $kept" # else nobody would hear of its end
}}
echo ready
while IFS= read -r -d '' request; do
  eval "$request"
  echo ready
done
"""
_PROBE = f"""
{_OVERLAY}
overlay_works && echo overlay
exec "$@"
"""


def program(name: str) -> str:
    """The path of a program of this machine's.

    Raises:
        SandboxError: it is not installed.
    """
    found = _which(name, os.environ.get("PATH"))
    if found is None:
        raise SandboxError(f"{name} is not installed: {install(name)}")
    return found


@functools.cache
def _which(name: str, path: str | None) -> str | None:
    return shutil.which(name, path=path)


def install(*programs: str) -> str:
    """The command that installs programs which are missing."""
    return f"sudo apt-get install {' '.join(sorted({PACKAGES[name] for name in programs}))}"


def holder(spec: SandboxSpec, shown: Mapping[int, str], info: int, descriptors: Iterable[int]) -> list[str]:
    """The command that makes the namespaces and keeps them until its stdin ends.

    It lays out the files and says "ready". Then it takes requests, which are made by `overlay_all` and `start`, and
    after each says "ready" again.

    Args:
        spec: the sandbox to be made.
        shown: host folders by the number of their mount.
        info: a descriptor to which bubblewrap writes the pid of the namespace's first process.
        descriptors: of the places for commands that it may be asked to start.
    """
    lower = [part for number, source in shown.items() for part in ("--ro-bind", source, f"/lower/{number}")]
    private = [str(number) for number, mount in enumerate(spec.mounts) if mount.mode == "private"]
    lower += [part for number in private for part in ("--dir", f"/lower/{number}")]
    size, inodes = spec.limits.disk_mb * MB, spec.limits.disk_mb * 256
    box = ["--size", str(size), *_box(spec.network), "--dir", "/box/work"]
    box += [part for name in ("shm", "tmp") for part in ("--perms", "1777", "--dir", f"/box/{name}")]
    box += [part for n in private for name in ("upper", "work", "all") for part in ("--dir", f"/box/{n}/{name}")]
    bash = ["bash", "--norc", "--noprofile", "-c", _HOLDER, "bash", str(inodes), _limit(spec.limits)]
    return [
        *(*_as_sandbox_user(), program("bwrap"), "--info-fd", str(info), *_holder_options(spec.network), *lower, *box),
        *("--", *bash, *map(str, descriptors)),
    ]


def overlay_all(numbers: Iterable[int]) -> str:
    """Asks a holder to overlay private mounts whose folders are below /lower; it says the numbers that it could."""
    return shlex.join(["overlay_all", *map(str, numbers)])


def start(stdin: int, stdout: int, options: Mapping[str, int], command: Sequence[str]) -> str:
    """Asks a holder to start a command in a place; it says its pid, as it is in the holder's namespace.

    Args:
        stdin: the place's descriptor in the holder.
        stdout: likewise.
        options: descriptors that hold what bubblewrap is given, by option.
        command: to be started.
    """
    given = [part for option, number in options.items() for part in (option, str(number))]
    kept = " ".join(map(str, options.values()))
    return shlex.join(["start", str(stdin), str(stdout), kept, _INNER_BWRAP, *given, "--", *command])


def enter(init: int, *, network: bool) -> list[str]:
    """The prefix of a command that is to run in a holder's namespaces, with its privileges over them."""
    own_network = [] if network else ["--net"]
    namespaces = ("--user", "--preserve-credentials", "--mount", "--pid", "--ipc", "--uts", *own_network)
    return [*_as_sandbox_user(), program("nsenter"), "--target", str(init), *namespaces, "--"]


def limited_bwrap(limits: Limits) -> list[str]:
    """Inside a holder: a bubblewrap that keeps within the limits."""
    return ["bash", "-c", f'{_limit(limits)} && exec "$@"', "bash", _INNER_BWRAP]


def pack(layers: Iterable[str]) -> list[str]:
    """A command in a holder's namespaces that writes an archive of all that was written, and of how it was laid out."""
    extended = ("--xattrs", "--xattrs-include=user.*")  # the overlay's own notes
    return ["tar", "-C", "/box", *extended, "-cf", "-", "tmp", "shm", "work", *layers]


def unpack() -> list[str]:
    """The same in return, before anything is overlaid."""
    return ["tar", "-C", "/box", "--xattrs", "--xattrs-include=user.*", "-xpf", "-"]


def layer(number: int) -> str:
    """Where a command that is shown the layer of an overlaid mount sees it."""
    return f"/layers/{number}"


def command_options(spec: SandboxSpec, env: Mapping[str, str], layers: Iterable[int] = ()) -> list[str]:
    """Bubblewrap's options for one command inside a holder; it is shown these overlaid mounts' layers too."""
    everything = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **env}
    return [
        *_stripped(),
        *(*_system(), *_BOX_ETC),
        *("--bind", "/box/shm", "/dev/shm", "--bind", "/box/tmp", "/tmp", "--bind", "/box/work", spec.workdir),
        *_mounts(spec),
        *(part for number in layers for part in ("--ro-bind", f"/box/{number}/upper", layer(number))),
        # What bubblewrap itself keeps in memory has no limit.
        *("--remount-ro", "/dev", "--remount-ro", "/etc", "--remount-ro", "/"),
        *(part for name, value in everything.items() for part in ("--setenv", name, value)),
        *("--chdir", spec.workdir),
    ]


def probe() -> list[str]:
    """A command that succeeds where sandboxes can be made: a holder's namespaces, and a command's in them.

    It says "overlay" where private folders can be overlaid instead of copied.
    """
    inner = [_INNER_BWRAP, *_stripped(), *_system(), *_BOX_ETC, "true"]
    outer = [*_as_sandbox_user(), program("bwrap"), *_holder_options(network=False), *_box(network=False)]
    return [*outer, "sh", "-c", _PROBE, "sh", *inner]


def _limit(limits: Limits) -> str:
    """In a holder, the kernel counts processes for all commands together, memory and file size for each process."""
    sizes = f"-d {limits.memory_mb * KB} -f {limits.disk_mb * KB}"  # of KB
    # Where the machine's or the sandbox's memory runs out, a command goes, and neither the holder nor the host's own.
    return f"ulimit -c 0 -u {limits.processes} {sizes} && echo 1000 > /proc/self/oom_score_adj"


def _as_sandbox_user() -> list[str]:
    """As root, another user first: the kernel's uid 0 passes checks even without capabilities."""
    if os.geteuid() != 0:
        return []
    # It unshares nothing here, and drops the groups too, in half the time of `setpriv`.
    return [program("unshare"), f"--setuid={NOBODY}", f"--setgid={NOBODY}", "--"]


def _holder_options(network: bool) -> list[str]:
    own = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", *([] if network else ["--unshare-net"])]
    privileges = ["--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    bwrap = ["--ro-bind", os.path.realpath(program("bwrap")), _INNER_BWRAP]
    folders = ["--dir", "/tmp"]
    ending = ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv", "--setenv", "PATH", PATH]
    return [*own, *privileges, *_system(), *bwrap, *folders, *ending]


def _box(network: bool) -> list[str]:
    """Where all files of a sandbox are, its /etc among them: a command is shown that at once, not file by file."""
    names = _ETC + (_NETWORK_ETC if network else ())
    etc = [part for n in names for part in ("--ro-bind-try", os.path.realpath(f"/etc/{n}"), f"/box/etc/{n}")]
    return ["--tmpfs", "/box", "--dir", "/box/etc", "--dir", "/box/etc/ssl", *etc, "--symlink", "/box/etc", "/etc"]


def _stripped() -> list[str]:
    own = ["--unshare-user", "--unshare-pid", "--unshare-cgroup-try", "--uid", str(_USER), "--gid", str(_USER)]
    nested = ["--disable-userns"] if "--disable-userns" in _known_options(program("bwrap")) else []
    return [*own, *nested, "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]


@functools.cache
def _known_options(bwrap: str) -> str:
    return subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=10).stdout


def _system() -> list[str]:
    """A read-only system without the host's own files."""
    arguments = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        if os.path.islink(f"/{name}"):
            arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    return arguments


def _mounts(spec: SandboxSpec) -> list[str]:
    arguments = []
    for number, mount in enumerate(spec.mounts):
        private = ["--bind", f"/box/{number}/all", mount.target]
        arguments += private if mount.mode == "private" else ["--ro-bind", f"/lower/{number}", mount.target]
    return arguments
