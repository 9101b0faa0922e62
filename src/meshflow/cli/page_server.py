"""Pages of profiles, served to this machine alone."""

from __future__ import annotations

import http.server
import posixpath
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from meshflow.files import gfile

__all__ = ["serve"]


def serve(
    path: str, port: int, say: Callable[[str], None], traces: Mapping[str, str] | None = None
) -> None:
    """Serves a page and the traces beside it to this machine, until interrupted.

    Args:
      path: the page.
      port: where; 0 for a free port.
      say: is told the address.
      traces: files by the page's links to them.
    """
    # Browsers take steps upwards out of a link, and stay at the top.
    files = {"/": path} | {
        posixpath.normpath(f"/{link}"): file for link, file in (traces or {}).items()
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = files.get(urllib.parse.unquote(self.path.partition("?")[0]))
            # Pages of the network that give themselves this machine's address are not answered.
            known = self.headers.get("Host", "").rpartition(":")[0] in ("127.0.0.1", "localhost")
            if file is None or not known:
                self.send_error(404)
                return
            with gfile.GFile(file, "rb") as opened:
                content = opened.read()
            self.send_response(200)
            page = file == path
            self.send_header(
                "Content-Type", "text/html; charset=utf-8" if page else "application/gzip"
            )
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Requests are not worth lines."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        say(f"http://127.0.0.1:{server.server_port}/ (this machine only; Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
