"""TLS between all parties, without a certificate authority.

A node's certificate is signed with its own Ed25519 identity and listed in the directory; a caller
trusts exactly that certificate. TLS only encrypts. Peers are authenticated by the session's MACs
with or without TLS, so nodes that nobody calls (the clients of a cell) need no certificate.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from quorumcast.core.errors import UsageError
from quorumcast.crypto.identity import Identity

#: Long: a certificate is valid as long as the directory lists it, whatever its own dates.
_YEARS = 50


def make_certificate(identity: Identity) -> str:
    """A self-signed certificate for this identity, as PEM."""
    from cryptography import x509  # slow to load, and needed for TLS only
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name[:64])])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(identity.signing_key.public_key())
        .serial_number(int.from_bytes(identity.verify_key[:16], "big") >> 1 or 1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(identity.signing_key, algorithm=None)
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def server_context(identity: Identity, certificate: str) -> ssl.SSLContext:
    """The TLS settings of a node that listens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load_certificate(context, identity, certificate)
    return context


def load_certificate(context: ssl.SSLContext, identity: Identity, certificate: str) -> None:
    """Show this certificate in all later handshakes of a node that listens."""
    from cryptography import x509

    pinned = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    if pinned.public_bytes(*raw) != identity.verify_key:
        raise UsageError(
            f"the certificate listed for {identity.name} was made for another key: have a new one "
            "listed, made from this identity"
        )
    key = identity.signing_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # The ssl module reads keys from files only; this one is private and removed at once.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        Path(file.name).write_bytes(key + certificate.encode())
        context.load_cert_chain(file.name)


def client_context(certificate: str) -> ssl.SSLContext:
    """The TLS settings of a caller: only this certificate is trusted, whatever the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context
