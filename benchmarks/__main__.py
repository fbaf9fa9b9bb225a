"""Runs every benchmark: `python -m benchmarks`."""

from benchmarks import (
    asynchronous,
    code_search,
    dispatch,
    overhead,
    policy,
    prefixes,
    sandbox,
    streaming,
    summary,
    training_step,
)

MODULES = (
    dispatch,
    overhead,
    streaming,
    policy,
    sandbox,
    code_search,
    summary,
    training_step,
    prefixes,
    asynchronous,
)

if __name__ == "__main__":
    for module in MODULES:
        print(f"\n== {module.__name__}: {(module.__doc__ or '').splitlines()[0]}")
        module.main()
