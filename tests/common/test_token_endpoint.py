"""Tokens from an endpoint: asked for over real sockets, and kept by a clock by hand."""

import base64
import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote_plus

import pytest

from kafka_throttle.common import token_endpoint
from kafka_throttle.common.login_secrets import SecretHeldBack, SecretUnusable
from kafka_throttle.common.token_endpoint import ClientRefused, Issued, TokenEndpoint, Tokens, TokenUnavailable, issued
from tests.support.certificates import Authority, server_context
from tests.support.timeouts import TIMEOUT_S

SECRET = "se:cret/%+ü"


class Server(ThreadingHTTPServer):
    """An endpoint with answers that are set by the test; `asked` are the requests."""

    daemon_threads = True

    def __init__(self, context=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.answer, self.asked = (200, {"access_token": "a.b.c", "expires_in": 3600}), []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_port}/oauth2/token"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, dict(self.headers), parse_qs(body)))
        status, answer = self.server.answer
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        yield server
        server.shutdown()


@pytest.fixture
def endpoint(server, tmp_path):
    return endpoint_at(server.url, tmp_path)


def endpoint_at(url, folder, **settings):
    (folder / "secret").write_text(f"{SECRET}\n")
    return TokenEndpoint(url, "kafka:proxy", str(folder / "secret"), **settings)


def test_a_token_is_asked_for_as_rfc_6749_has_it(server, tmp_path):
    endpoint = endpoint_at(f"{server.url}?tenant=1", tmp_path, scope="kafka read")
    assert issued(endpoint, SECRET) == Issued("a.b.c", 3600.0)
    [(path, headers, form)] = server.asked
    assert path == "/oauth2/token?tenant=1"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    kind, _, login = headers["Authorization"].partition(" ")
    client, _, secret = base64.b64decode(login).decode().partition(":")
    assert (kind, unquote_plus(client), unquote_plus(secret)) == ("Basic", "kafka:proxy", SECRET)
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("status", "answer", "problem"),
    [
        (401, {"error": "invalid_client"}, "gives no token to 'kafka:proxy': HTTP status 401, invalid_client"),
        (400, {"error": "invalid_scope", "error_description": "no\n"}, r"HTTP status 400, invalid_scope: no\n"),
        (400, {"error": "invalid_client", "error_description": f"not {SECRET}"}, "status 400, invalid_client: not ..."),
        (302, b"<html>", "HTTP status 302, no reason"),
        (500, b"[1]", "HTTP status 500, no reason"),
        (200, b"{", "its answer has no access_token that can be sent"),
        (200, {"access_token": "a\1b"}, "its answer has no access_token that can be sent"),
        (200, {"access_token": 5}, "its answer has no access_token that can be sent"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_named_with_its_reason(server, endpoint, status, answer, problem):
    server.answer = status, answer
    with pytest.raises(TokenUnavailable) as unavailable:
        issued(endpoint, SECRET)
    assert str(unavailable.value).startswith(f"{server.url}: ")
    assert str(unavailable.value).endswith(problem)
    assert isinstance(unavailable.value, ClientRefused) == ("invalid_client" in problem)
    assert SECRET not in str(unavailable.value)


@pytest.mark.parametrize(
    ("lifetime", "taken_s"),
    [("60", 60), (0, 300), (-1, 300), (None, 300), ("soon", 300), (1.5, 1.5), (10**400, 300), (float("nan"), 300)],
)
def test_the_lifetime_of_a_token_is_what_the_endpoint_says_or_five_minutes(server, endpoint, lifetime, taken_s):
    server.answer = 200, {"access_token": "a.b.c", "expires_in": lifetime}
    assert issued(endpoint, SECRET).lifetime_s == taken_s
    server.answer = 200, {"access_token": "a.b.c"}
    assert issued(endpoint, SECRET).lifetime_s == 300


def test_the_endpoint_must_have_a_certificate_of_a_trusted_authority(tmp_path):
    authority = Authority(tmp_path)
    with Server(server_context(authority.issue("127.0.0.1", name="node"))) as server:
        trusting = endpoint_at(server.url, tmp_path, ca_file=str(authority.file))
        assert issued(trusting, SECRET).token == "a.b.c"
        with pytest.raises(TokenUnavailable, match="TLS: unable to get local issuer certificate"):
            issued(endpoint_at(server.url, tmp_path), SECRET)
        with pytest.raises(TokenUnavailable, match="No such file"):
            issued(endpoint_at(server.url, tmp_path, ca_file=str(tmp_path / "none.pem")), SECRET)
        server.shutdown()
    assert len(server.asked) == 1


def test_an_endpoint_that_is_not_there_is_named(server, endpoint):
    server.shutdown()
    server.server_close()
    with pytest.raises(TokenUnavailable, match="Connection refused"):
        issued(endpoint, SECRET)


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_an_endpoint_that_does_not_come_to_an_end_is_given_up(tmp_path, monkeypatch, words):
    """Neither silence nor a byte now and then holds a login up for longer."""
    monkeypatch.setattr(token_endpoint, "_WITHIN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        is_over = threading.Event()

        def dribble():
            sock, _ = listener.accept()
            with contextlib.suppress(OSError), sock:
                while not is_over.wait(0.05):
                    sock.sendall(words or b"")
                    if words:
                        sock.sendall(b"x")

        threading.Thread(target=dribble, daemon=True).start()
        try:
            with pytest.raises(TokenUnavailable, match=r"no answer within 0\.5 s"):
                issued(endpoint_at(f"http://127.0.0.1:{listener.getsockname()[1]}/", tmp_path), SECRET)
        finally:
            is_over.set()


def test_what_is_not_http_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(TIMEOUT_S)
                sock.recv(10_000)
                sock.sendall(b"\0\0\0\4kafka\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(TokenUnavailable, match="its answer is not HTTP"):
            issued(endpoint_at(f"http://127.0.0.1:{listener.getsockname()[1]}/", tmp_path), SECRET)


# ------------------------------------------------------------------ tokens that are kept


class Kept:
    """Tokens by a clock by hand, from an endpoint that gives 1, 2, 3 and so on, for 100 s, or raises `failure`."""

    def __init__(self, folder):
        self.now_s, self.given, self.failure, self.folder = 1000.0, 0, None, folder
        self.secrets = []
        url = f"http://127.0.0.1/{folder.name}"  # another account each time
        self.tokens = Tokens(endpoint_at(url, folder), lambda: self.now_s, self.issue)

    def issue(self, _endpoint, secret):
        self.secrets.append(secret)
        if self.failure is not None:
            raise self.failure
        self.given += 1
        return Issued(str(self.given), 100.0)

    @property
    def token(self):
        return self.tokens.begin().secret


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path)


def test_a_token_is_used_by_all_logins_and_renewed_before_its_end(kept):
    assert [kept.token for _ in range(3)] == ["1"] * 3
    kept.now_s += 79
    assert kept.token == "1"
    kept.now_s += 1
    assert [kept.token for _ in range(3)] == ["2"] * 3


def test_while_there_is_no_next_token_the_last_one_is_used_to_its_end(kept):
    assert kept.token == "1"
    kept.failure = TokenUnavailable("down")
    kept.now_s += 85
    assert [kept.token for _ in range(3)] == ["1"] * 3
    assert len(kept.secrets) == 2  # it is not asked again at once
    kept.now_s += 15
    with pytest.raises(SecretUnusable, match="down"):
        _ = kept.token
    kept.failure = None
    with pytest.raises(SecretUnusable, match="down"):
        _ = kept.token
    kept.now_s += 5
    assert kept.token == "2"


def test_a_token_that_was_refused_is_replaced_at_once_but_not_again_and_again(kept):
    attempt = kept.tokens.begin()
    kept.now_s += 50
    assert attempt.refused("no")
    attempt = kept.tokens.begin()
    assert attempt.secret == "2"
    assert not attempt.refused("no")
    with pytest.raises(SecretUnusable, match="was refused"):
        kept.tokens.begin()
    kept.now_s += 5
    assert kept.token == "3"


def test_what_came_of_a_login_is_noted_while_the_endpoint_is_asked(kept):
    """An event loop notes it, which must not wait for an answer over HTTP."""
    attempt, is_asked, may_answer = kept.tokens.begin(), threading.Event(), threading.Event()
    issue = kept.issue

    def slowly(endpoint, secret):
        is_asked.set()
        assert may_answer.wait(TIMEOUT_S)
        return issue(endpoint, secret)

    kept.tokens._issued_by = slowly
    kept.now_s += 90
    renewing = threading.Thread(target=kept.tokens.begin, daemon=True)
    renewing.start()
    assert is_asked.wait(TIMEOUT_S)
    attempt.refused("no")
    may_answer.set()
    renewing.join(TIMEOUT_S)
    assert kept.token == "2"


def test_a_wrong_secret_of_the_client_is_not_sent_again_and_again_and_a_new_one_at_once(kept):
    kept.failure = ClientRefused("invalid_client")
    for _ in range(20):
        with pytest.raises(SecretUnusable, match="invalid_client"):
            _ = kept.token
        kept.now_s += 5.1
    assert len(kept.secrets) == 1  # the clock of its pause is the real one
    with pytest.raises(SecretHeldBack):
        _ = kept.token
    (kept.folder / "secret").write_text("other")
    kept.failure, kept.now_s = None, kept.now_s + 6
    assert kept.token == "1"
    assert kept.secrets == [SECRET, "other"]


def test_an_answer_that_differs_only_in_its_words_is_told_in_those_of_the_first(server, endpoint):
    """Some servers put the time, and a number of the request, into each answer: the log would have a line for each."""
    now_s = 0.0
    tokens = Tokens(endpoint, lambda: now_s)
    said = []
    for status, code, words in ((400, "a", "1"), (400, "a", "2"), (400, "b", "3"), (503, "b", "4"), (503, "b", "5")):
        server.answer = status, {"error": code, "error_description": words}
        with pytest.raises(TokenUnavailable) as unavailable:
            tokens.begin()
        said.append(str(unavailable.value).rpartition(": ")[2])
        now_s += 5
    assert said == ["1", "1", "3", "4", "4"]
    assert len(server.asked) == 5
    server.answer = 200, {"access_token": "t"}
    assert tokens.begin().secret == "t"


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_no_host_can_have_gives_no_token(tmp_path, host):
    endpoint = endpoint_at(f"https://{host}/token", tmp_path)
    with pytest.raises(TokenUnavailable, match="there can be no such host name"):
        issued(endpoint, SECRET)
