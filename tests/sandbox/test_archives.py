"""What an archive from a sandbox may and may not do."""

import io
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.archives import pack, unpack

FILE, LINK, HARD, FOLDER, FIFO, DEVICE = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
)


def archive(*members: tuple[str, bytes, str], size: int | None = None) -> bytes:
    """Of (name, type, link target, or content of a file)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == FILE:
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
            else:
                member.linkname = text
                tar.addfile(member)
    return packed.getvalue()


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder" / "empty").mkdir(parents=True)
    (source / "folder" / "script").write_text("#!/bin/sh")
    (source / "folder" / "script").chmod(0o755)
    (source / "-rf").write_bytes(bytes(range(256)))
    (source / "folder" / "up").symlink_to("../-rf")
    os.link(source / "-rf", source / "same")
    where, packed = pack(source, PurePosixPath("/work/x"), max_bytes=10_000)
    assert where == PurePosixPath("/work/x")
    unpack(packed, ".", tmp_path / "target", max_bytes=10_000)

    def described(root: Path) -> list[Any]:
        paths = sorted(root.rglob("*"))
        return [(p.relative_to(root), p.lstat().st_mode, p.read_bytes() if p.is_file() else b"") for p in paths]

    assert described(tmp_path / "target") == described(source)


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/x", FILE, "1")],
        [("top/../../x", FILE, "1")],
        [("other", FILE, "1")],
        [("top", FOLDER, ""), ("top/link", LINK, "/etc")],
        [("top", FOLDER, ""), ("top/link", LINK, "//etc/passwd")],
        [("top", FOLDER, ""), ("top/link", LINK, "//.")],
        [("top", FOLDER, ""), ("top/link", LINK, "..")],
        [("top", FOLDER, ""), ("top/link", LINK, "a/../../..")],
        [("top", FOLDER, ""), ("top/link", LINK, "")],
        [("top", LINK, "elsewhere")],
        [("top/a", LINK, "."), ("top/a/x", FILE, "1")],
        [("top/a", FIFO, "")],
        [("top/a", DEVICE, "")],
        [("top/a", HARD, "/etc/passwd")],
        [("top/a", HARD, "top/none")],
        [("top/l", LINK, "x"), ("top/a", HARD, "top/l")],
        [("top/a", FILE, "1"), ("top/a", FILE, "2")],
        [("top/a", FILE, "1"), ("top/a/b", FILE, "2")],
        [("top/a", FOLDER, ""), ("top/a", LINK, "b")],
        [("top/" + "a/" * 300, FOLDER, "")],
        [],
    ],
    ids=str,
)
def test_what_could_lead_outside_or_is_no_file_is_refused(members: Any, tmp_path: Path) -> None:
    with pytest.raises(SandboxError):
        unpack(archive(*members), "top", tmp_path / "new" / "target", max_bytes=1_000)
    assert os.listdir(tmp_path / "new") == []


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b" + b"0" * 600, archive(("top", FILE, "x" * 99))[:520]])
def test_what_is_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(SandboxError):
        unpack(data, "top", tmp_path / "target", max_bytes=1_000)
    assert os.listdir(tmp_path) == []


def test_bombs_are_refused_by_size_and_by_number(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="larger than 1000 bytes"):
        unpack(archive(("top", FILE, "x" * 1_001)), "top", tmp_path / "t", max_bytes=1_000)
    many = archive(*((f"top/{n}", FILE, "") for n in range(20)))
    with pytest.raises(SandboxError, match="more than 19 files"):
        unpack(many, "top", tmp_path / "t", max_bytes=1_000, max_files=19)
    sparse = archive(("top", FILE, ""))
    huge = tarfile.TarInfo("top")
    huge.size = 10**15
    with pytest.raises(SandboxError, match="larger than"):
        unpack(huge.tobuf() + sparse[512:], "top", tmp_path / "t", max_bytes=1_000)
    assert os.listdir(tmp_path) == []


def test_a_file_of_negative_size_does_not_send_the_reader_round_in_circles(tmp_path: Path) -> None:
    header = bytearray(archive(("top", FILE, ""))[:512])
    header[124:136] = b"\xff" * 10 + (-1024 & 0xFFFF).to_bytes(2, "big")
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(SandboxError):
        unpack(archive(("top/a", FILE, "1"))[:1024] + bytes(header), "top", tmp_path / "t", max_bytes=1_000)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(FileExistsError):
        unpack(archive(("top", FILE, "1")), "top", tmp_path / "target", max_bytes=1_000)


names = st.lists(st.sampled_from(["top", "a", "b", "..", ".", ""]), min_size=1, max_size=5).map("/".join)
members = st.tuples(names, st.sampled_from([FILE, LINK, LINK, HARD, FOLDER]), names)


@settings(max_examples=400, deadline=None)
@given(st.lists(members, max_size=6))
def test_whatever_the_archive_nothing_outside_is_touched_and_no_link_leads_there(
    tmp_path_factory: pytest.TempPathFactory, held: list[tuple[str, bytes, str]]
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    (outer / "a").write_text("mine")
    held = [(f"top/{name}", kind, text) for name, kind, text in held]
    try:
        unpack(archive(("top", FOLDER, ""), *held), "top", outer / "target", max_bytes=1_000)
    except SandboxError:
        assert os.listdir(outer) == ["a"]
    assert (outer / "a").read_text() == "mine"
    assert set(os.listdir(outer)) <= {"a", "target"}
    for path in (outer / "target").rglob("*"):
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):  # a link to nothing, or to itself
            continue
        assert real.is_relative_to(outer / "target")
        assert real.stat().st_nlink == 1 or real.is_dir()


def test_what_is_too_large_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1_001)
    with pytest.raises(SandboxError, match="larger than 1000"):
        pack(tmp_path, PurePosixPath("x"), max_bytes=1_000)
    assert pack(tmp_path / "file", PurePosixPath("in/x"), max_bytes=1_001)[0] == PurePosixPath("in")
