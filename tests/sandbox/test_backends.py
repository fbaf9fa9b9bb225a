"""The conformance kit on every backend that runs here."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox import Ledger, Mount, Sandbox, SandboxSpec, Snapshot, bubblewrap_problem, open_sandbox
from skyrl_gym.sandbox.cgroups import hierarchy
from skyrl_gym.sandbox.testing import Harness, SandboxContract, SandboxSecurity, SnapshotTests


@pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")
class TestBubblewrap(SandboxContract):
    async def open(self, spec: SandboxSpec, ledger: Ledger, snapshot: Snapshot | None = None) -> Sandbox:
        return await open_sandbox(spec, "bubblewrap", ledger=ledger, snapshot=snapshot)

    def left(self) -> list[str]:
        groups = hierarchy()
        return [str(folder) for folder, owner in groups.folders().items() if owner == os.getpid()] if groups else []


@pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")
class TestBubblewrapIsSecure(SandboxSecurity):
    open = TestBubblewrap.open


@pytest.mark.filterwarnings("ignore::skyrl_gym.sandbox.UnsafeSandboxWarning")
class TestProcess(SandboxContract):
    async def open(self, spec: SandboxSpec, ledger: Ledger, snapshot: Snapshot | None = None) -> Sandbox:
        return await open_sandbox(spec, "process", ledger=ledger, snapshot=snapshot)


class OnContainers(Harness):
    """On an engine that is started for these tests."""

    engine: ClassVar[str]
    image: ClassVar[str]
    cancelled_after_s = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 5.0)

    @pytest.fixture(autouse=True)
    def _on_its_engine(self, engine_address: Any, image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCKER_HOST", engine_address(self.engine))
        type(self).image = str(image_folder)

    def made_like(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, image=self.image)

    async def open(self, spec: SandboxSpec, ledger: Ledger, snapshot: Snapshot | None = None) -> Sandbox:
        return await open_sandbox(spec, "docker", ledger=ledger, snapshot=snapshot)


class TestDockerInBrief(OnContainers, SnapshotTests):
    engine = "docker"


class TestPodmanInBrief(OnContainers, SnapshotTests):
    engine = "podman"


class WithPython(OnContainers):
    def made_like(self, spec: SandboxSpec) -> SandboxSpec:
        """This machine's programs in place of the image's."""
        return super().made_like(replace(spec, mounts=(*spec.mounts, Mount("/usr", "/usr"))))


class TestDockerIsSecure(WithPython, SandboxSecurity):
    engine = "docker"


class TestPodmanIsSecure(WithPython, SandboxSecurity):
    engine = "podman"


@pytest.mark.slow
class TestDocker(OnContainers, SandboxContract):
    engine = "docker"


@pytest.mark.slow
class TestPodman(OnContainers, SandboxContract):
    engine = "podman"


@pytest.mark.filterwarnings("ignore::skyrl_gym.sandbox.UnsafeSandboxWarning")
@pytest.mark.parametrize("backend", ["bubblewrap", "process"])
def test_an_image_is_refused_where_there_are_none(backend: str) -> None:
    ledger = Ledger()
    with pytest.raises(SandboxError, match="no images"):
        asyncio.run(open_sandbox(SandboxSpec(image="python:3.12"), backend, ledger=ledger))
    assert ledger.created == 0
