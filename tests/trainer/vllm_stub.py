"""Stands in for the program `vllm`: answers with random ids, and does nothing in an order that a GPU would not survive.

What it was told is in a file of its own in `$VLLM_STUB_NOTES`: its environment, then a line for each call. On a GPU
that is shared, memory that was given away holds nothing and must not be touched.
"""

import hashlib
import json
import os
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

WORDS = sys.argv[1:]
END, FIRST, LAST = 2, 60, 350


class Engine:
    """Which memory it has, and whether weights are in it."""

    def __init__(self) -> None:
        self.memory = {"weights", "kv_cache"}
        self.loaded = self.going = True
        self.lock = threading.Lock()

    def do(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        """The answer to a call.

        Raises:
            RuntimeError: it came in the wrong order.
        """
        match path:
            case "/v1/completions":
                self.need(self.memory == {"weights", "kv_cache"} and self.loaded and self.going)
                return sampled(body)
            case "/pause" | "/resume":
                self.going = path == "/resume"
            case "/sleep":
                self.need("--enable-sleep-mode" in WORDS and query["level"] == ["2"] and not self.going)
                self.memory, self.loaded = set(), False
            case "/wake_up":
                self.need(query["tags"] == ["weights"] or self.loaded)
                self.memory |= set(query["tags"])
            case "/collective_rpc":
                self.need("weights" in self.memory and not self.going)
                self.loaded = True
                return {"read": digest(Path(body["kwargs"]["weights_path"]))}
            case "/reset_prefix_cache":
                pass
            case _:
                raise RuntimeError(f"no such call: {path}")
        return {}

    def need(self, held: bool) -> None:
        if not held:
            raise RuntimeError(f"out of order: {self.memory}, loaded {self.loaded}, going {self.going}")


def digest(folder: Path) -> str:
    """Of the weights in a folder."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def sampled(body: Any) -> Any:
    rng = random.Random(body["seed"])
    ids = [rng.randint(FIRST, LAST) for _ in range(rng.randint(1, 4))] + [END]
    choice = {"text": "", "token_ids": ids, "finish_reason": "stop", "logprobs": {"token_logprobs": [-5.0] * len(ids)}}
    return {"choices": [choice]}


def note(**what: Any) -> None:
    with (Path(os.environ["VLLM_STUB_NOTES"]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


class Handler(BaseHTTPRequestHandler):
    engine = Engine()

    def do_GET(self) -> None:
        names = WORDS[WORDS.index("--served-model-name") + 1 :]
        self.answer(200 if self.path == "/v1/models" else 404, {"data": [{"id": name} for name in names]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        parts = urlsplit(self.path)
        with self.engine.lock:
            try:
                if parts.path == os.environ.get("VLLM_STUB_FAILS_AT"):
                    raise MemoryError("no memory to wake up in")
                found, status = self.engine.do(parts.path, parse_qs(parts.query), body), 200
            except MemoryError as error:
                found, status = {"error": str(error)}, 500
            except RuntimeError as error:
                found, status = {"error": str(error)}, 400
            note(call=self.path, status=status, read=found.get("read"))
        self.answer(status, found)

    def answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    note(environment=dict(os.environ), words=WORDS, pid=os.getpid())
    ThreadingHTTPServer(("127.0.0.1", int(WORDS[WORDS.index("--port") + 1])), Handler).serve_forever()
