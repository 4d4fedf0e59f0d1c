"""Signatures of manifests: who does not have the key cannot make a checkpoint that is loaded."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from typing import Any, Mapping, Optional

from paddle_resume.errors import CheckpointError, ConfigError

__all__ = ["SHORTEST_KEY", "check_name", "sign", "sign_key", "verify"]

SHORTEST_KEY = 16
"""Bytes: below that a key can be guessed."""

_PURPOSE = b"paddle_resume manifest\n"  # a signature made for something else is none of a manifest
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
_HOW = "make a key with `openssl rand -hex 32`"


def check_name(name: Any) -> None:
    """Checks that an argument `sign_key` can be the name of a variable.

    Args:
        name: the argument; None for no signatures.

    Raises:
        ConfigError: it cannot; it is not shown, for it may be the key itself.

    Example:
        >>> check_name("RUN_KEY")
        >>> check_name("s3cret!")
        Traceback (most recent call last):
        paddle_resume.errors.ConfigError: sign_key: the name of an environment variable expected, \
such as "PADDLE_RESUME_KEY"; the key itself is that variable's value, never in a script or a file
    """
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigError(
            'sign_key: the name of an environment variable expected, such as "PADDLE_RESUME_KEY"; '
            "the key itself is that variable's value, never in a script or a file"
        )


def sign_key(
    name: Optional[str], environment: Optional[Mapping[str, str]] = None
) -> Optional[bytes]:
    """Reads the key that signs the checkpoints of a run.

    Args:
        name: of the environment variable that holds it; None for no signatures.
        environment: `os.environ` where None.

    Returns:
        The key; None for no signatures.

    Raises:
        ConfigError: the variable is not set, empty, or too short to be a key.

    Example:
        >>> sign_key("RUN_KEY", {"RUN_KEY": "a key of 16 byte"})
        b'a key of 16 byte'
        >>> sign_key("RUN_KEY", {})
        Traceback (most recent call last):
        paddle_resume.errors.ConfigError: sign_key='RUN_KEY': the environment variable RUN_KEY is \
not set. Set it to the key that signs the checkpoints (make a key with `openssl rand -hex 32`)
    """
    check_name(name)
    if name is None:
        return None
    value = (os.environ if environment is None else environment).get(name)
    if not value:
        state = "not set" if value is None else "empty"
        raise ConfigError(
            f"sign_key={name!r}: the environment variable {name} is {state}. Set it to the key "
            f"that signs the checkpoints ({_HOW})"
        )
    key = os.fsencode(value)
    if len(key) < SHORTEST_KEY:
        raise ConfigError(
            f"sign_key={name!r}: the key in the environment variable {name} has {len(key)} bytes, "
            f"which can be guessed; at least {SHORTEST_KEY} expected ({_HOW})"
        )
    return key


def sign(manifest: bytes, key: bytes) -> str:
    """Signs a manifest.

    Args:
        manifest: its content, in the one form that its checksum is made of.
        key: what `sign_key` returned.

    Returns:
        HMAC-SHA256, in hex.

    Example:
        >>> len(sign(b"{}", b"a key of 16 byte"))
        64
    """
    return hmac.new(key, _PURPOSE + manifest, hashlib.sha256).hexdigest()


def verify(manifest: bytes, signature: Any, key: bytes) -> None:
    """Checks the signature of a manifest, in a time that tells nothing about the right one.

    Args:
        manifest: as for `sign`.
        signature: whatever stands in its place; None where there is none.
        key: what `sign_key` returned.

    Raises:
        CheckpointError: it is not what this key gives.
    """
    if signature is None:
        raise CheckpointError(
            "it has no signature, and with sign_key only signed checkpoints are used: it was "
            "written without sign_key, or put here by someone else"
        )
    given = signature.encode("utf-8", "replace") if isinstance(signature, str) else b""
    if not hmac.compare_digest(given, sign(manifest, key).encode()):
        raise CheckpointError(
            "its signature is not that of sign_key's key: it was signed with another key, or "
            "changed by someone who does not have this one"
        )
