"""HTTP server for profile pages that accepts requests from this machine only."""

from __future__ import annotations

import http.server
import posixpath
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from meshflow.files import gfile


def serve_page(
    path: str, port: int, notify: Callable[[str], None], traces: Mapping[str, str] | None = None
) -> None:
    """Serve a page and its traces to this machine until interrupted.

    Args:
      path: File of the page.
      port: Port to listen on; 0 selects a free port.
      notify: Function that receives the address as text.
      traces: Trace files by the links to them in the page.
    """
    # Browsers resolve leading `..` segments of a link against the root.
    files = {"/": path} | {
        posixpath.normpath(f"/{link}"): file for link, file in (traces or {}).items()
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = files.get(urllib.parse.unquote(self.path.partition("?")[0]))
            # A remote page could resolve its own host name to this machine (DNS rebinding), so
            # other hosts are refused.
            is_local = self.headers.get("Host", "").rpartition(":")[0] in ("127.0.0.1", "localhost")
            if file is None or not is_local:
                self.send_error(404)
                return
            with gfile.GFile(file, "rb") as opened:
                content = opened.read()
            self.send_response(200)
            kind = "text/html; charset=utf-8" if file == path else "application/gzip"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Do not log requests."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        notify(f"http://127.0.0.1:{server.server_port}/ (this machine only; press Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
