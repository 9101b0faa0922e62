"""Restrictions of the current process, for parsing files of others: no network, no writing, limited memory and time.

Linux only. seccomp refuses system calls; where the kernel or libseccomp is missing, the process moves to its own network
and mount namespaces, in which all files are read-only.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

SECCOMP, NAMESPACES = "seccomp", "namespaces"
# In the order of preference.
MECHANISMS = (SECCOMP, NAMESPACES)
_PR_GET_SECCOMP = 21
_CLONE_THREAD = 0x10000
# Namespaces of mounts, communication between processes, users and networks.
_NEW_NAMESPACES = 0x20000 | 0x8000000 | 0x10000000 | 0x40000000
_MS_PRIVATE_RECURSIVE = (1 << 18) | (1 << 14)
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_TIOCSTI = 0x5412
_MAX_OPEN_FILES = 512

# System calls that the process must not make: network, other processes, changes of files, privileges.
_REFUSED_CALLS = """
    socket socketpair connect bind listen accept accept4 io_uring_setup
    execve execveat fork vfork ptrace process_vm_readv process_vm_writev
    kill tkill rt_sigqueueinfo pidfd_open pidfd_send_signal pidfd_getfd
    creat truncate rename renameat renameat2 link linkat symlink symlinkat
    unlink unlinkat mkdir mkdirat rmdir mknod mknodat chmod fchmod
    fchmodat chown fchown lchown fchownat utime utimes utimensat futimesat
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
    mount umount2 mount_setattr move_mount fsopen open_tree pivot_root chroot
    unshare setns bpf perf_event_open userfaultfd keyctl add_key request_key
    init_module finit_module delete_module kexec_load reboot swapon swapoff
    shmget msgget semget mq_open setrlimit sethostname setuid setgid
    acct quotactl open_by_handle_at name_to_handle_at personality
"""
# Numbers of calls that libseccomp may not know, the same on all processors: fchmodat2, setxattrat, removexattrat,
# open_tree_attr, file_setattr.
_REFUSED_NUMBERS = (452, 463, 466, 467, 469)
# libc falls back to older calls, the arguments of which can be checked.
_MISSING_CALLS = ("clone3", "openat2")


# Whether this process has given up its rights.
_state = {"is_isolated": False}


def is_isolated() -> bool:
    """Check whether this process is isolated."""
    return _state["is_isolated"]


class CannotIsolateError(OSError):
    """The kernel offers no mechanism to isolate a process."""


def choose_mechanism(mechanisms: Sequence[str] = MECHANISMS) -> str | None:
    """Return the first mechanism that the kernel and the installed libraries offer, or None.

    Args:
      mechanisms: Names of mechanisms, in the order of preference.
    """
    tests: dict[str, Callable[[], bool]] = {
        SECCOMP: _has_seccomp,
        NAMESPACES: lambda: os.path.exists("/proc/self/ns/user"),
    }
    if not sys.platform.startswith("linux"):
        return None
    return next((name for name in mechanisms if tests[name]()), None)


def _has_seccomp() -> bool:
    if ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return False
    try:
        # The module raises a RuntimeError where libseccomp is missing.
        importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def refuse_system_calls() -> None:
    """Make system calls for networks, processes and changes of files fail, in all threads.

    Raises:
      CannotIsolateError: If the kernel rejects the filter.
    """
    seccomp: Any = importlib.import_module("pyseccomp")
    rules = seccomp.SyscallFilter(seccomp.ALLOW)

    def refuse(name: str, *arguments: Any, code: int = errno.EPERM) -> None:
        # The number is negative for a call of another architecture, or one newer than the library.
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0:
            rules.add_rule(seccomp.ERRNO(code), name, *arguments)

    try:
        rules.set_attr(seccomp.Attr.CTL_TSYNC, 1)
        for name in _REFUSED_CALLS.split():
            refuse(name)
        for number in _REFUSED_NUMBERS:
            rules.add_rule(seccomp.ERRNO(errno.EPERM), number)
        for name in _MISSING_CALLS:
            refuse(name, code=errno.ENOSYS)
        for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
            for name, index in (("open", 1), ("openat", 2)):
                refuse(name, seccomp.Arg(index, seccomp.MASKED_EQ, flag, flag), code=errno.EROFS)
        # Threads are allowed, and so are signals to the own process, such as that of `abort`.
        refuse("clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, 0))
        refuse("tgkill", seccomp.Arg(0, seccomp.NE, os.getpid()))
        refuse("prlimit64", seccomp.Arg(2, seccomp.NE, 0))
        refuse("ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, _TIOCSTI))
        rules.load()
        _state["is_isolated"] = True
    except (OSError, RuntimeError) as error:
        raise CannotIsolateError(f"the kernel rejects the seccomp filter: {error}") from None


def enter_namespaces() -> None:
    """Move the process, which must have one thread, to namespaces without network and with read-only files.

    Raises:
      CannotIsolateError: If the kernel or its configuration refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    read_only = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    path = ctypes.c_char_p(b"/")
    for step, call in (
        ("new namespaces", lambda: libc.unshare(_NEW_NAMESPACES)),
        ("private mounts", lambda: libc.mount(None, path, None, _MS_PRIVATE_RECURSIVE, None)),
        (
            "read-only files",
            lambda: libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, read_only, 32),
        ),
    ):
        if call() != 0:
            reason = os.strerror(ctypes.get_errno())
            raise CannotIsolateError(f"the kernel refuses {step}: {reason}")
    _state["is_isolated"] = True


def limit_resources(memory: int, seconds: int, file_bytes: int) -> None:
    """Limit what the process may use from now on.

    Args:
      memory: Bytes of address space in addition to those in use.
      seconds: Processor time.
      file_bytes: Size of a file that it writes.
    """
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: used + memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
