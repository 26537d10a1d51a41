"""A trust store for the bundled Java: its own roots and the certificates that this machine trusts.

A Java that comes with a system is set up to trust what the system trusts. The one from PyPI knows
only the public roots, and behind a proxy that signs with a company's certificate it could fetch
nothing. Java reads no PEM files, so the certificates are written as a key store of the type JKS,
the only one that needs no encryption.
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

#: The bundles of Debian, Alpine and Arch; of Fedora and RHEL; of openSUSE; of macOS and the BSDs.
#: Python's own default may be none of them: it was set where Python was built.
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
    """Read the certificates that programs on this machine trust, in DER, without repetitions.

    Files that cannot be read and blocks that are no Base64 are left out.
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
    """Write a key store of a Java's own roots and these certificates, except for damaged ones.

    Java refuses a store with a certificate that it cannot read, so it is asked about them first;
    and OpenSSL before it, which is quick.
    """
    tool = java_home / "bin" / "keytool"
    listed = _keytool(tool, "-list", "-rfc", "-cacerts")
    own = list(_decode(listed)) if listed is not None else []
    new = [one for one in certificates if one not in set(own) and _parses(one)]
    return _key_store([*own, *_readable(tool, new)])


def _files() -> Iterator[str]:
    """Give the files in which the certificates may be. OpenSSL's variables come first."""
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
    """Give the certificates of a PEM file."""
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
    """Leave out what Java cannot read: halve the list until a bad certificate is alone."""
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
    """Run Java's tool for key stores; give what it prints, or None if it fails."""
    command = [str(tool), *arguments, "-storepass", _PASSWORD]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _key_store(certificates: Iterable[bytes]) -> bytes:
    """Write trusted certificates as Java's `KeyStore` of type JKS does."""
    entries = [
        struct.pack(">I", 2)
        + _utf(hashlib.sha256(certificate).hexdigest())
        + struct.pack(">Q", 0)  # when it was added: always the same, so that the bytes are
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
