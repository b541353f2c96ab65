"""A folder served over loopback HTTP by byte ranges, which a test can slow, break and count. Imports no jax.

python -m tests.http_files FOLDER DELAY_S RATE [FAULTS STUCK_S] serves it in a process of its own: it prints the URL,
then a line of requests, bytes sent and requests that failed for each line that it reads, until there are no more.
FAULTS: what becomes of which share of requests, in HttpFiles' words, as JSON; by chance, from the request's number.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PIECE_NBYTES = 2**16


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that went away, as one that waited too long
            super().handle_error(request, client_address)


@functools.lru_cache(64)  # a benchmark of two libraries reads the files of both in turns
def _content(path: Path, mtime_ns: int) -> tuple[bytes, str]:
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


class HttpFiles:
    """what: becomes of each request, by its number, from 1: "" is served well.

    503, 403: is refused with this status; "429 1": and is to be asked again after a second. "loop": is redirected to
    the same URL. "cut": ends in the middle of its body. "stall": sends nothing until the end of the test, or for
    stuck_s; "stick": nor the second half of its body. "bend": with one bit of the body changed; "other": with a body of
    other bytes. "short": gives the first half of the range that was asked for, and says so; "shift": the range one byte
    before it, if any. "mute": does not say which range it gives; "star": not of how many bytes, and the unit with a
    capital. "stray": says seven bytes less than it gives. "whole": as of a server without ranges; "flow": and without a
    length. "bare": without ETag. 'W/"1"', '""': with this ETag, and a time of change, whatever it holds.

    has_etags: whether other answers have an ETag.

    num_requests, nbytes: that were served, bodies only. num_sent: bytes of these that are on their way by now.
    delay_s: before each answer. rate: bytes a second, of all
    bodies together.
    """

    def __init__(
        self, folder: Path, delay_s: float = 0.0, rate: float = math.inf, stuck_s: float | None = None
    ) -> None:
        self._stuck_s = stuck_s
        self.has_etags = True
        self.what: Callable[[int], str] = lambda number: ""
        self.delay_s, self._rate = delay_s, rate
        self._free_at = 0.0  # when all that was served before has gone, at this rate
        self.num_requests = self.nbytes = self.num_broken = self.num_sent = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or bodies wait 40 ms for an ACK of their headers, on a kept connection

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                server._serve(self, folder)

            do_HEAD = do_GET  # noqa: N815 - as clients of S3 ask first

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def count(self) -> tuple[int, int]:
        """Requests and bytes since it was last asked."""
        with self._lock:
            found = self.num_requests, self.nbytes
            self.num_requests = self.nbytes = 0
        return found

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, answer: BaseHTTPRequestHandler, folder: Path) -> None:
        with self._lock:
            self.num_requests += 1
            what = self.what(self.num_requests)
            self.num_broken += bool(what)
        time.sleep(self.delay_s)
        if what == "stall":
            self._ended.wait(self._stuck_s)
        if what == "loop":
            answer.send_response(302)
            answer.send_header("Location", answer.path)
            answer.send_header("Content-Length", "0")
            return answer.end_headers()
        path = folder / answer.path.partition("?")[0].lstrip("/")
        if not what and path.is_dir() and answer.path.endswith("/"):
            return self._list(answer, path)
        status, _, again_s = what.partition(" ")
        if again_s:
            answer.send_response(int(status))
            answer.send_header("Retry-After", again_s)
            answer.send_header("Content-Length", "0")
            return answer.end_headers()
        if what.isdigit() or not path.is_file() or what == "stall":
            answer.close_connection = True
            return answer.send_error(int(what) if what.isdigit() else 404)
        content, etag = _content(path, path.stat().st_mtime_ns)
        total = len(content)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", answer.headers.get("Range", ""))
        if wanted and what not in ("whole", "flow"):
            begin = int(wanted[1]) if wanted[1] else max(0, total - int(wanted[2]))
            end = min(total, int(wanted[2]) + 1 if wanted[1] and wanted[2] else total)
            if begin >= total:
                return answer.send_error(416)
            if what == "short":
                end -= (end - begin) // 2
            if what == "shift" and begin:
                begin, end = begin - 1, end - 1
            content = content[begin:end]
            answer.send_response(206)
            if what != "mute":
                said = f"Bytes {begin}-{end - 1}/*" if what == "star" else f"bytes {begin}-{end - 1}/{total}"
                answer.send_header("Content-Range", said)
        else:
            answer.send_response(200)
        if what.endswith('"'):
            answer.send_header("ETag", what)
            answer.send_header("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
        elif what != "bare" and self.has_etags:
            answer.send_header("ETag", f'"{etag}"')
        if what == "bend":
            half = len(content) // 2
            content = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        if what == "other":
            content = b"<" * len(content)
        if what != "flow":
            answer.send_header("Content-Length", str(len(content) - 7 * (what == "stray" and answer.command == "GET")))
        if answer.command == "HEAD":
            return answer.end_headers()
        with self._lock:  # before who asked has them, and asks for the count
            self.nbytes += len(content)
        answer.end_headers()
        is_halved = what in ("cut", "stick")
        self._send(answer, content[: len(content) // 2] if is_halved else content)
        if what == "stick":
            self._ended.wait(self._stuck_s)
        answer.close_connection = is_halved or what == "flow"
        return None

    def _list(self, answer: BaseHTTPRequestHandler, folder: Path) -> None:
        """A page of links, as servers of files give for a directory."""
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in sorted(folder.iterdir())]
        page = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
        answer.send_response(200)
        answer.send_header("Content-Type", "text/html")
        answer.send_header("Content-Length", str(len(page)))
        answer.end_headers()
        if answer.command == "GET":
            answer.wfile.write(page)

    def _send(self, answer: BaseHTTPRequestHandler, content: bytes) -> None:
        for begin in range(0, len(content), _PIECE_NBYTES):
            piece = content[begin : begin + _PIECE_NBYTES]
            with self._lock:
                self.num_sent += len(piece)
                self._free_at = max(time.monotonic(), self._free_at) + len(piece) / self._rate
                wait_s = self._free_at - time.monotonic()
            time.sleep(max(0.0, wait_s))
            answer.wfile.write(piece)


def by_chance(faults: Mapping[str, float]) -> Callable[[int], str]:
    """What becomes of requests, of each kind of fault its share."""
    kinds, shares = ["", *faults], [1 - sum(faults.values()), *faults.values()]
    return lambda number: random.Random(number).choices(kinds, shares)[0]


if __name__ == "__main__":
    folder, delay_s, rate, faults, stuck_s = (*sys.argv[1:], *("{}", "60")[len(sys.argv) - 4 :])
    files = HttpFiles(Path(folder), float(delay_s), float(rate), float(stuck_s))
    files.what = by_chance(json.loads(faults))
    print(files.url, flush=True)
    for _ in sys.stdin:
        print(files.num_requests, files.num_sent, files.num_broken, flush=True)
    files.close()
