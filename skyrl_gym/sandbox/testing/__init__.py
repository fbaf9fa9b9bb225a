"""The conformance kit: tests that every backend passes, of this package or of another.

A backend's own test module says how one of its sandboxes is opened, and pytest does the rest::

    from skyrl_gym.sandbox.testing import SandboxContract, SandboxSecurity

    class TestMine(SandboxContract):
        async def open(self, spec, ledger, snapshot=None):
            return await MySandbox(spec, ledger).start(snapshot)

    class TestMineIsSecure(SandboxSecurity):
        open = TestMine.open

`SandboxContract` holds no attack, and may be run on a backend that does not isolate. `SandboxSecurity` may not.
"""

import pytest

# Before they are imported, so that they say what they found.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("commands", "security", "shells", "snapshots")))

from skyrl_gym.sandbox.testing.commands import CommandTests  # noqa: E402
from skyrl_gym.sandbox.testing.harness import Harness, reachable_folder, survivors  # noqa: E402
from skyrl_gym.sandbox.testing.security import SecurityTests  # noqa: E402
from skyrl_gym.sandbox.testing.shells import ShellTests  # noqa: E402
from skyrl_gym.sandbox.testing.snapshots import SnapshotTests  # noqa: E402

__all__ = ["Harness", "SandboxContract", "SandboxSecurity", "SnapshotTests", "reachable_folder", "survivors"]


class SandboxContract(CommandTests, ShellTests, SnapshotTests):
    """Commands, files, the shell, snapshots, and that nothing is left behind."""


class SandboxSecurity(SecurityTests):
    """What no command may reach, for backends that isolate."""
