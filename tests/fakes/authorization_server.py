"""An OAuth authorization server on this machine: a token endpoint, and the keys by which brokers check its tokens."""

import base64
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote_plus

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class AuthorizationServer(ThreadingHTTPServer):
    """Gives tokens (RS256) that name the client as their subject; use it as a context manager.

    `clients` are the secrets of the clients, `lifetime_s` how long the next tokens are good, `given` and `refused` how
    many requests there were.
    """

    daemon_threads = True

    def __init__(self, clients: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.clients = clients
        self.lifetime_s = 3600
        self.given = self.refused = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "AuthorizationServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def token_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"

    @property
    def keys_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/keys"

    @property
    def keys(self) -> dict[str, object]:
        """The public key, as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        number = {name: _encoded(value.to_bytes((value.bit_length() + 7) // 8)) for name, value in
                  (("n", numbers.n), ("e", numbers.e))}  # fmt: skip
        return {"keys": [{"kty": "RSA", "kid": "one", "alg": "RS256", "use": "sig", **number}]}

    def token(self, subject: str, lifetime_s: float | None = None) -> str:
        """A token, good for `lifetime_s` from now on."""
        now_s = int(time.time())
        ends_s = now_s + int(self.lifetime_s if lifetime_s is None else lifetime_s)
        claims = {"sub": subject, "aud": AUDIENCE, "iat": now_s, "exp": ends_s, "jti": uuid.uuid4().hex}
        head = {"alg": "RS256", "typ": "JWT", "kid": "one"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class _Handler(BaseHTTPRequestHandler):
    server: AuthorizationServer

    def do_GET(self) -> None:
        """The keys."""
        self._answer(200, self.server.keys)

    def do_POST(self) -> None:
        """A token for a client that proves who it is."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        client, secret = map(unquote_plus, login.split(":", 1))
        if form.get("grant_type") != ["client_credentials"] or self.server.clients.get(client) != secret:
            self.server.refused += 1
            self._answer(401, {"error": "invalid_client"})
            return
        self.server.given += 1
        token = self.server.token(client)
        self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": self.server.lifetime_s})

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Nothing is logged."""
