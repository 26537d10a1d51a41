"""Build a trust store for the bundled Java: its own roots plus this machine's certificates.

A Java installed with the system trusts what the system trusts. The one from PyPI only knows the
public roots, and could fetch nothing behind a proxy that signs with a company's certificate. Java
cannot read PEM files, so the certificates are written as a key store of type JKS, the only type
that needs no encryption.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Certificate files of Debian, Alpine and Arch; of Fedora and RHEL; of openSUSE; of macOS and BSD.
#: Python's own default may be another path, set when Python was built.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----")
_PASSWORD = "changeit"


def machine_certificates() -> list[bytes]:
    """Read the certificates that programs on this machine trust, in DER, each once.

    Skip files that cannot be read and blocks that are not Base64.
    """
    found: dict[bytes, None] = {}
    for path in dict.fromkeys(map(os.path.realpath, _files())):
        try:
            text = Path(path).read_bytes()
        except OSError:
            continue
        found.update(dict.fromkeys(_decode(text)))
    return list(found)


def store(java_home: Path, certificates: list[bytes]) -> bytes:
    """Write a key store of a Java's own roots and the certificates that it can read.

    Java refuses a store with a certificate that it cannot read, so each is tried first: with
    OpenSSL, which is fast, and then with Java.
    """
    tool = java_home / "bin" / "keytool"
    listed = _keytool(tool, "-list", "-rfc", "-cacerts")
    own = list(_decode(listed)) if listed is not None else []
    new = [one for one in certificates if one not in set(own) and _parses(one)]
    return _key_store([*own, *_readable(tool, new)])


def _files() -> Iterator[str]:
    """Yield the files that may contain certificates. OpenSSL's variables come first."""
    default = ssl.get_default_verify_paths()
    yield os.environ.get(default.openssl_cafile_env) or default.openssl_cafile
    folders = os.environ.get(default.openssl_capath_env) or default.openssl_capath
    for folder in folders.split(os.pathsep):
        try:
            yield from sorted(entry.path for entry in os.scandir(folder) if entry.is_file())
        except OSError:
            continue
    yield from BUNDLES


def _decode(text: bytes) -> Iterator[bytes]:
    """Yield the certificates of a PEM file."""
    for block in _PEM.findall(text):
        try:
            yield base64.b64decode(b"".join(block.split()), validate=True)
        except binascii.Error:
            continue


def _parses(certificate: bytes) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate)
    except ssl.SSLError:
        return False
    return True


def _readable(tool: Path, certificates: list[bytes]) -> list[bytes]:
    """Drop certificates that Java cannot read, by halving the list until a bad one is alone."""
    if not certificates:
        return []
    with tempfile.NamedTemporaryFile(suffix=".jks") as file:
        file.write(_key_store(certificates))
        file.flush()
        if _keytool(tool, "-list", "-keystore", file.name) is not None:
            return certificates
    middle = len(certificates) // 2
    if not middle:
        return []
    return _readable(tool, certificates[:middle]) + _readable(tool, certificates[middle:])


def _keytool(tool: Path, *arguments: str) -> bytes | None:
    """Run Java's `keytool`. Return what it prints, or None if it fails."""
    command = [str(tool), *arguments, "-storepass", _PASSWORD]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _key_store(certificates: Iterable[bytes]) -> bytes:
    """Write trusted certificates in the format of Java's `KeyStore` of type JKS."""
    entries = [
        struct.pack(">I", 2)
        + _utf(hashlib.sha256(certificate).hexdigest())
        + struct.pack(">Q", 0)  # the time of entry: constant, so that the bytes are, too
        + _utf("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
        for certificate in certificates
    ]
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body)
    return body + digest.digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
