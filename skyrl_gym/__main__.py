"""`python -m skyrl_gym` is `skyrl`."""

from skyrl_gym.cli import main

if __name__ == "__main__":
    main()
