"""Certificates for tests, by nothing but the standard library: a machine with Python alone need not have openssl.

X.509 version 3 with ECDSA over P-256 (FIPS 186-5, RFC 5280, RFC 5915), written out in DER. The arithmetic takes no care of
timing: these keys protect nothing.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

__all__ = ["Authority", "Identity"]

Point = tuple[int, int]

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Point = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_EC_KEY, _P256, _ECDSA_SHA256 = "1.2.840.10045.2.1", "1.2.840.10045.3.1.7", "1.2.840.10045.4.3.2"
_COMMON_NAME, _CONSTRAINTS, _ALT_NAME = "2.5.4.3", "2.5.29.19", "2.5.29.17"


class Identity(NamedTuple):
    """A certificate with its private key, both PEM."""

    certificate: str
    key: str

    def write(self, folder: Path) -> tuple[Path, Path]:
        """The files of the two. Only the owner can read the key: Postgres insists on it."""
        folder.mkdir()
        files = folder / "certificate.pem", folder / "key.pem"
        for file, text in zip(files, self, strict=True):
            file.touch(mode=0o600)
            file.write_text(text)
        return files


class Authority:
    """Signs certificates, the first one its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._secret = _new_secret()
        self.certificate = _pem("CERTIFICATE", self._signed(name, self._secret, _is_authority()))

    def issue(self, name: str, addresses: Sequence[str] = ("localhost", "127.0.0.1")) -> Identity:
        """For a server that is reached at these addresses."""
        secret = _new_secret()
        certificate = self._signed(name, secret, _alternative_names(addresses))
        return Identity(_pem("CERTIFICATE", certificate), _pem("PRIVATE KEY", _private_key(secret)))

    def write(self, file: Path) -> Path:
        file.write_text(self.certificate)
        return file

    def _signed(self, subject: str, secret: int, extension: bytes) -> bytes:
        algorithm = _sequence(_oid(_ECDSA_SHA256))
        now = datetime.now(UTC)
        body = _sequence(
            _tlv(0xA0, _integer(2)),  # version 3
            _integer(secrets.randbits(63)),
            algorithm,
            _distinguished(self._name),
            _sequence(_time(now - timedelta(days=1)), _time(now + timedelta(days=30))),
            _distinguished(subject),
            _sequence(_sequence(_oid(_EC_KEY), _oid(_P256)), _bits(_public(secret))),
            _tlv(0xA3, _sequence(extension)),
        )
        return _sequence(body, algorithm, _bits(_signature(body, self._secret)))


def _is_authority() -> bytes:
    return _sequence(_oid(_CONSTRAINTS), _tlv(0x01, b"\xff"), _tlv(0x04, _sequence(_tlv(0x01, b"\xff"))))


def _alternative_names(addresses: Sequence[str]) -> bytes:
    return _sequence(_oid(_ALT_NAME), _tlv(0x04, _sequence(*map(_address, addresses))))


def _address(text: str) -> bytes:
    try:
        return _tlv(0x87, ipaddress.ip_address(text).packed)
    except ValueError:
        return _tlv(0x82, text.encode())


# --- the curve


def _new_secret() -> int:
    return secrets.randbelow(_N - 1) + 1


def _signature(message: bytes, secret: int) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest())
    once = _new_secret()
    r = _times(once, _G)[0] % _N
    return _sequence(_integer(r), _integer(pow(once, -1, _N) * (digest + r * secret) % _N))


def _public(secret: int) -> bytes:
    x, y = _times(secret, _G)
    return b"\x04" + x.to_bytes(32) + y.to_bytes(32)


def _times(factor: int, point: Point) -> Point:
    result: Point | None = None
    while factor:
        if factor & 1:
            result = point if result is None else _plus(result, point)
        point = _plus(point, point)
        factor >>= 1
    assert result is not None
    return result


def _plus(a: Point, b: Point) -> Point:
    """The sum of two points that are not each other's opposite."""
    if a == b:
        slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P)
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


# --- DER


def _private_key(secret: int) -> bytes:
    inner = _sequence(_integer(1), _tlv(0x04, secret.to_bytes(32)), _tlv(0xA1, _bits(_public(secret))))
    return _sequence(_integer(0), _sequence(_oid(_EC_KEY), _oid(_P256)), _tlv(0x04, inner))


def _distinguished(name: str) -> bytes:
    return _sequence(_tlv(0x31, _sequence(_oid(_COMMON_NAME), _tlv(0x0C, name.encode()))))


def _time(moment: datetime) -> bytes:
    return _tlv(0x17, f"{moment:%y%m%d%H%M%SZ}".encode())


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    return _tlv(0x06, bytes([40 * first + second]) + b"".join(map(_base128, rest)))


def _base128(number: int) -> bytes:
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(number & 0x7F | 0x80)
    return bytes(reversed(digits))


def _integer(number: int) -> bytes:
    return _tlv(0x02, number.to_bytes(number.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _tlv(0x03, b"\x00" + content)


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def _pem(kind: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""])
