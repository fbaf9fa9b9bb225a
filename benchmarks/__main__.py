"""Runs every benchmark: `python -m benchmarks`."""

from benchmarks import asynchronous, dispatch, overhead, policy, prefixes, sandbox, streaming, summary, training_step

if __name__ == "__main__":
    for module in (dispatch, overhead, streaming, policy, sandbox, summary, training_step, prefixes, asynchronous):
        print(f"\n== {module.__name__}: {(module.__doc__ or '').splitlines()[0]}")
        module.main()
