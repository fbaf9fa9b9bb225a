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

from skyrl_gym.sandbox.testing.commands import CommandTests
from skyrl_gym.sandbox.testing.harness import Harness, reachable_folder, survivors
from skyrl_gym.sandbox.testing.shells import ShellTests
from skyrl_gym.sandbox.testing.snapshots import SnapshotTests

__all__ = ["Harness", "SandboxContract", "SnapshotTests", "reachable_folder", "survivors"]


class SandboxContract(CommandTests, ShellTests, SnapshotTests):
    """Commands, files, the shell, snapshots, and that nothing is left behind."""
