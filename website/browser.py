"""The built site, served on this machine, and the browser that looks at it."""

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator

from website.sources import ROOT

SITE = ROOT / "site"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--num-raster-threads=1",
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves without a word."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(port: int = 0) -> Iterator[str]:
    """Serve the site on a port, a free one unless given, and give its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def chromium() -> str:
    """Give the path of the browser: the one without windows first, which is quicker. Raises OSError."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise OSError("this needs Chromium, and none was found; apt-get install chromium-headless-shell")
    return path
