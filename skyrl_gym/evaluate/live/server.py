"""A small web server for one person on this machine; it only reads, and answers nobody else."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.live.site import Site

__all__ = ["ViewServer"]

POLICY = (
    "default-src 'none'; img-src data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts and styles from this server's own two files and nothing else, whatever a trajectory holds."""


class ViewServer(ThreadingHTTPServer):
    """Serves a site from a thread until it is closed; use it as a context manager.

    Args:
        site: what it answers.
        port: 0 takes a free one.

    Raises:
        ConfigError: the port is taken.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, site: Site, port: int = 0) -> None:
        self.site = site
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigError(f"can't listen on port {port}: {error.strerror}; --port takes another") from None
        self._stop = threading.Event()
        self._workers = [
            threading.Thread(target=self.serve_forever, args=(0.1,), name="view-server", daemon=True),
            threading.Thread(target=site.watch, args=(self._stop,), name="view-index", daemon=True),
        ]

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self) -> Self:
        for thread in self._workers:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self.shutdown()
        for thread in self._workers:
            thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answers, unless the request is meant for another name: a page elsewhere may have pointed it here."""
        host = self.headers.get("host", "")
        if host not in (f"127.0.0.1:{self.server.server_port}", f"localhost:{self.server.server_port}"):
            self._send(b"This server answers to 127.0.0.1 alone.", "text/plain", 403)
            return
        asked = urlsplit(self.path)
        response = self.server.site.respond(asked.path, dict(parse_qsl(asked.query, keep_blank_values=True)))
        self._send(response.body, response.kind, response.status)

    def _send(self, body: bytes, kind: str, status: int) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": kind,
            "content-length": str(len(body)),
            "content-security-policy": POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
