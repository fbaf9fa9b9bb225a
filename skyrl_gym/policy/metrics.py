"""vLLM's /metrics page, read for what says how busy it is."""

from __future__ import annotations

import re

from skyrl_gym.policy.base import PolicyLoad

__all__ = ["read_load"]

_LINE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_KV_CACHE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # now, and before vLLM 0.10; both are 0 to 1


def read_load(page: str) -> PolicyLoad | None:
    """The load from a page in Prometheus' text format, over all engines of the server; None: not vLLM's."""
    values: dict[str, list[float]] = {}
    for name, value in _LINE.findall(page):
        if name in ("num_requests_running", "num_requests_waiting", *_KV_CACHE):
            values.setdefault(name, []).append(float(value))
    if "num_requests_running" not in values:
        return None
    shares = [share for name in _KV_CACHE for share in values.get(name, ())]
    return PolicyLoad(
        running=int(sum(values["num_requests_running"])),
        waiting=int(sum(values.get("num_requests_waiting", ()))),
        kv_cache=max(shares, default=None),
    )
