"""Replaces itself by a command that runs as another user: `unprivileged.py UID GID COMMAND...`.

Postgres refuses to run as root. Root starts it through this script, as an ordinary user. On Linux that
user keeps one capability, CAP_DAC_OVERRIDE: the package and the data directory may lie below a folder that
only root may enter (/root, a CI workspace), and opening such folders to everyone would be worse.
Where the capability is not to be had, the command simply runs without it.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_SECUREBITS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 28, 47, 2
_SECBIT_NO_SETUID_FIXUP = 4
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522


def become(uid: int, gid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc:
        # Keeps capabilities across setuid, and lets access(2) count them, by which initdb judges its programs.
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if libc:
        _keep_only_file_access(libc)


def _keep_only_file_access(libc: ctypes.CDLL) -> None:
    mask = 1 << _CAP_DAC_OVERRIDE
    if _set_capabilities(libc, mask):
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)
    else:
        _set_capabilities(libc, 0)


def _set_capabilities(libc: ctypes.CDLL, mask: int) -> bool:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(
        mask, mask, mask, 0, 0, 0
    )  # effective, permitted, inheritable; then bits 32+
    return bool(libc.capset(ctypes.byref(header), ctypes.byref(sets)) == 0)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - no shell is wanted
