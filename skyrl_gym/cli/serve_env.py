"""`skyrl serve-env ENV`: an environment for trainers in other processes."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.registration import make_env

EXAMPLES = """
skyrl serve-env skyrl/memory-v0
skyrl serve-env skyrl/swe-v0 --port 9000 --sessions 16 --set split=test
"""


def run(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id of `skyrl list`.")],
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine only with $SKYRL_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8_000,
    sessions: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 32,
    idle: Annotated[float, typer.Option(min=1.0, help="Seconds after which an unused session is closed.")] = 600.0,
    settings: SetOption = None,
) -> None:
    """Serve an environment over HTTP: reset, step and close, with a session an episode.

    `skyrl_gym.serve.RemoteEnv` is its client, a Gymnasium environment; docs/serving.md describes the protocol.
    """
    from skyrl_gym.serve.env_server import env_app
    from skyrl_gym.serve.http import check_host, serve

    token = os.environ.get("SKYRL_TOKEN")
    check_host(host, token)
    kwargs = parse_settings(settings)
    make_env(env, **kwargs).close()
    console = Console(highlight=False)
    app = env_app(lambda: make_env(env, **kwargs), sessions=sessions, idle_s=idle, token=token)
    serve(app, host, port, lambda url: console.print(f"{env} at {url}", markup=False, soft_wrap=True))
