"""System calls that a program may not make, as the seccomp profiles of containers have it."""

import ctypes
import errno
import os
import struct

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
IO_URING_SETUP = 425
"""The same number on every architecture."""


class Program(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid_io_uring():
    """For this process and what it starts; to be called between fork and exec."""
    steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)):
        if prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def has_io_uring():
    """Whether this machine's kernel lets us have one."""
    entries, parameters = 4, ctypes.create_string_buffer(120)
    descriptor = ctypes.CDLL(None).syscall(IO_URING_SETUP, entries, parameters)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0
