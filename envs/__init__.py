"""The environments, one folder a suite."""
