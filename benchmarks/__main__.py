"""Runs every benchmark: `python -m benchmarks`."""

from benchmarks import asynchronous, overhead, policy, sandbox, summary, training_step

if __name__ == "__main__":
    for module in (overhead, policy, sandbox, summary, training_step, asynchronous):
        print(f"\n== {module.__name__}: {(module.__doc__ or '').splitlines()[0]}")
        module.main()
