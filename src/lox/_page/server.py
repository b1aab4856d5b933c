"""`serve`: the page of a store that is being written, for the browser of this machine.

Only data of the store is readable: requests name keys and numbers of runs, never files.
The server answers GET and HEAD, for its own host name, so that another web page cannot
read anything by DNS rebinding. Addresses other than the loopback need a token.
"""

import contextlib
import copy
import hmac
import http
import http.cookies
import http.server
import ipaddress
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from lox._errors import LoxError, LoxValueError, StoreError

from .chart_requests import CannotExtendError
from .charts import chart
from .document import document, policy_of
from .index import index_of
from .media import media
from .packing import pack, plain
from .requests import (
    MAX_TARGET,
    BadRequestError,
    NotFoundError,
    Query,
    chart_request,
    key_of,
    parse_query,
    since_of,
)
from .source import StoreSource
from .summary import summary_table

DEFAULT_PORT = 6070
REFRESH_SECONDS = 2.0  # how often a page asks for what is new
_COOKIE = "lox_token"
_MIN_TOKEN = 16  # characters
_MAX_CONNECTIONS = 64
_MAX_COMPUTING = 2
_IDLE_SECONDS = 30.0
_INTERRUPT_POLL_SECONDS = 0.1  # how long Ctrl-C may take
_STORE_POLL_SECONDS = 0.1  # how often the store is checked, however many pages ask
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}


def serve(
    store: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Shows the runs of a store in a browser, live, until it is interrupted.

    Args:
        store: the directory or URL of a store, or of a single run. The store may still
            be empty.
        host: the address to listen on. For an address other than the loopback, the
            browser needs a token, which is part of the printed URL.
        port: the port; 0 for any that is free.
        token: the token; by default, a random one if the address needs one.
        ready: is called with the URL; by default, it is printed.
    """
    server = PageServer(store, host, port, token)
    try:
        with _interruptible(server):
            (ready or _announce)(server.url)
            server.serve_forever(_INTERRUPT_POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


@contextlib.contextmanager
def _interruptible(server: "PageServer") -> Iterator[None]:
    """Inside, Ctrl-C ends `serve_forever`, or raises if it was pressed before.

    Python ignores a `KeyboardInterrupt` in a finalizer or in the callback of a weak
    reference, and the main thread of a server runs those of its other threads.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        if server.interrupted:
            raise KeyboardInterrupt
        server.interrupted = True

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _announce(url: str) -> None:
    print(f"{url} shows the runs. Press Ctrl-C to stop.", flush=True)


class PageServer(http.server.ThreadingHTTPServer):
    """The server of a page; `serve_forever` runs it.

    Args:
        store: the directory or URL of a store, or of a single run.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        token: the token; None for none at the loopback, and a random one elsewhere.
        refresh: after how many seconds a page asks for what is new.

    Attributes:
        url: where the page is, with the token if there is one.
        interrupted: whether `serve_forever` should raise a `KeyboardInterrupt`.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        store: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        refresh: float = REFRESH_SECONDS,
    ) -> None:
        self.interrupted = False
        self.refresh = refresh
        self.host = host.strip("[]")
        self.token = _token_for(self.host, token)
        self.source = StoreSource(store)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        # more in parallel would only take more memory
        self._computing = threading.BoundedSemaphore(_MAX_COMPUTING)
        self._open: set[Any] = set()
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        if ":" in self.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((self.host, port), _Handler)
        except (OSError, OverflowError) as error:
            self.source.close()
            raise LoxValueError(
                f"cannot listen on {host}, port {port}: {error}. Pass another "
                "`port` (`--port` of the command), or 0 for one that is free."
            ) from error
        self.source.follow()

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        query = "" if self.token is None else f"?token={self.token}"
        return f"http://{name}:{self.server_address[1]}/{query}"

    def allows_host(self, header: str | None) -> bool:
        """Whether a request is for this server, by its `Host` header."""
        if self.token is not None:  # which another web page does not have
            return header is not None
        if header is None:
            return False
        name = header if header.endswith("]") else header.rpartition(":")[0] or header
        return name.lower() in {*_LOOPBACK_NAMES, self.host.lower()}

    def has_token(self, given: str | None) -> bool:
        if self.token is None:
            return True
        return given is not None and hmac.compare_digest(
            given.encode("utf-8", "replace"), self.token.encode()
        )

    # --- connections -------------------------------------------------------------

    def service_actions(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open.add(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, which would release it
            self._free.release()
            raise

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stops listening, and closes all connections."""
        super().server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.source.close()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    # --- answers -----------------------------------------------------------------

    def answer(self, path: str, query: Query, nonce: str) -> tuple[str, bytes]:
        """The type and the content of an answer."""
        with self._lock:  # `refresh` is not thread-safe; what it has read is
            self._refresh()
            source = copy.copy(self.source)
        with self._computing:
            if path == "/":
                index = {**index_of(source), "refresh": self.refresh}
                page = document(
                    f"{source.name} · lox",
                    index,
                    "startLive();",
                    nonce=nonce,
                    fallback=summary_table(source),
                )
                return "text/html; charset=utf-8", page.encode("utf-8")
            if path == "/index":
                since = since_of(query)
                index = {"version": source.version}
                if since != source.version:
                    index = index_of(source, since)
                return "application/json", json.dumps(plain(index)).encode()
            if path == "/chart":
                request = chart_request(query, source)
                _check_key(source, request.key)
                try:
                    content = chart(source, request)
                except CannotExtendError:
                    content = {"refetch": True}
                return "application/octet-stream", pack(content)
            if path == "/media":
                key = key_of(query)
                _check_key(source, key)
                return "application/octet-stream", pack(media(source, key))
        raise NotFoundError("there is no such page")

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._looked >= _STORE_POLL_SECONDS:
            self._looked = now
            self.source.refresh()


def _check_key(source: StoreSource, key: str) -> None:
    if not any(key in run.signals for run in source.runs.values()):
        raise NotFoundError("no run has this key")


def _token_for(host: str, token: str | None) -> str | None:
    """The token that requests need; None for the loopback, unless one was given."""
    if token is not None:
        if len(token) < _MIN_TOKEN or not token.isascii() or not token.isalnum():
            raise LoxValueError(
                f"`token` must have at least {_MIN_TOKEN} letters and digits, and no "
                "other characters."
            )
        return token
    return None if _is_loopback(host) else secrets.token_hex(16)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "lox"
    sys_version = ""
    timeout = _IDLE_SECONDS
    # without it, small answers of a connection that is kept open wait for each other
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond()

    def _refuse_method(self) -> None:
        self._send(http.HTTPStatus.METHOD_NOT_ALLOWED, [("Allow", "GET, HEAD")])

    do_POST = do_PUT = do_PATCH = do_DELETE = _refuse_method  # noqa: N815
    do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method  # noqa: N815

    def _respond(self) -> None:
        status = http.HTTPStatus
        if len(self.path) > MAX_TARGET:
            return self._send(status.REQUEST_URI_TOO_LONG)
        if self.headers.get("Content-Length", "0") != "0" or (
            "Transfer-Encoding" in self.headers
        ):
            return self._send(status.BAD_REQUEST)
        if not self.server.allows_host(self.headers.get("Host")):
            return self._send(status.MISDIRECTED_REQUEST)
        try:
            target = urllib.parse.urlsplit(self.path)
        except ValueError:  # such as for `http://[`
            return self._send(status.BAD_REQUEST)
        is_cross_site = self.headers.get("Sec-Fetch-Site", "") == "cross-site"
        if is_cross_site and target.path != "/":
            return self._send(status.FORBIDDEN)
        nonce = secrets.token_urlsafe(16)
        try:
            query = parse_query(target.query)
            if not self._is_allowed(target.path, query):
                return None
            kind, content = self.server.answer(target.path, query, nonce)
        except BadRequestError as error:
            return self._send(status.BAD_REQUEST, text=str(error))
        except NotFoundError as error:
            return self._send(status.NOT_FOUND, text=str(error))
        except (LoxError, StoreError, OSError) as error:
            return self._send(status.SERVICE_UNAVAILABLE, text=str(error))
        except Exception as error:  # a bug in lox: reported on the page and on stderr
            self.server.handle_error(self.request, self.client_address)
            text = f"{type(error).__name__}: {error}"
            return self._send(status.INTERNAL_SERVER_ERROR, text=text)
        policy = policy_of(f"'nonce-{nonce}'", f"'nonce-{nonce}'", "'self'")
        headers = [("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")]
        return self._send(status.OK, headers, kind=kind, content=content)

    def _is_allowed(self, path: str, query: Query) -> bool:
        """Checks the token; answers the request itself if it is missing or new."""
        server = self.server
        if server.token is None:
            return True
        given = query.get("token", [None])[0]
        if path == "/" and given is not None and server.has_token(given):
            # from now on in a cookie, so that it is not in the URL, nor in a bookmark
            cookie = f"{_COOKIE}={server.token}; HttpOnly; SameSite=Strict; Path=/"
            headers = [("Location", "/"), ("Set-Cookie", cookie)]
            self._send(http.HTTPStatus.SEE_OTHER, headers)
            return False
        if server.has_token(self._cookie()):
            return True
        self._send(
            http.HTTPStatus.FORBIDDEN,
            text="This page needs the token of the URL that `serve` has printed.",
        )
        return False

    def _cookie(self) -> str | None:
        try:
            cookies = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        except http.cookies.CookieError:
            return None
        found = cookies.get(_COOKIE)
        return None if found is None else found.value

    def _send(
        self,
        status: http.HTTPStatus,
        headers: list[tuple[str, str]] | None = None,
        text: str = "",
        kind: str = "text/plain; charset=utf-8",
        content: bytes | None = None,
    ) -> None:
        if content is None:
            content = f"{text or status.phrase}\n".encode("utf-8", "backslashreplace")
        self.send_response(status)
        always = [
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        ]
        if status >= http.HTTPStatus.BAD_REQUEST:
            # a body that was not read must not become the next request
            always.append(("Connection", "close"))
            self.close_connection = True
        for name, value in (*always, *(headers or ())):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Called by the base class for requests that are not HTTP."""
        if not hasattr(self, "command"):
            self.command = ""
        self._send(http.HTTPStatus(code))

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no log."""
