"""A pretended Windows: Linux without what Windows lacks.

    python tests/pretend_windows.py train.py --steps 2
    python tests/pretend_windows.py -m pytest -q tests/test_eval.py

What is missing or different:
  - for the project and the script: fcntl, resource and other modules of POSIX, os.fork, os.uname,
    signal.SIGKILL, .. (PyTorch's build for Linux needs some of them itself);
  - for everybody: a text file is cp1252 where no encoding is given, as are the output and input of
    a pipe; a file that is open or mapped into memory can be neither renamed nor removed; os.rename
    refuses a target that exists; a name may not hold any of <>:"|?*.
It does not show paths with drives and backslashes, names that differ by case only, locks, signals,
consoles, how processes are started, and PyTorch's build for Windows.
"""

import builtins
import io
import os
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = [str(ROOT)]  # and the folder of the script
TEXT = "cp1252"
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
GONE = {
    "os": set(
        "O_CLOEXEC O_NOFOLLOW O_NONBLOCK WIFSIGNALED WNOHANG chown chroot fork forkpty getegid "
        "geteuid getgid getloadavg getpgid getuid killpg mkfifo nice pidfd_open pipe2 "
        "posix_fadvise register_at_fork sched_getaffinity sched_setaffinity setpgid setsid "
        "statvfs sysconf uname wait4".split()
    ),
    "signal": set(
        "ITIMER_REAL SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 "
        "SIGUSR2 alarm pthread_sigmask setitimer sigwait".split()
    ),
    "socket": {"AF_UNIX"},
}


class Without(types.ModuleType):
    """A module that lacks some of its names."""

    def __init__(self, real):
        super().__init__(real.__name__)
        gone = GONE[real.__name__]
        vars(self).update({name: value for name, value in vars(real).items() if name not in gone})


def pretend_modules():
    """Let modules of the project import only what Windows has."""
    real_import = builtins.__import__
    poorer = {}

    def imported(name, globals=None, locals=None, fromlist=(), level=0):
        file = str((globals or {}).get("__file__", ""))
        ours = file.startswith(tuple(OURS)) and "site-packages" not in file  # .venv/ may stand here
        first = name.partition(".")[0]
        if ours and first in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
        module = real_import(name, globals, locals, fromlist, level)
        name = name if fromlist else first
        if not ours or name not in GONE or level:
            return module
        if name not in poorer:
            poorer[name] = Without(module)
        return poorer[name]

    builtins.__import__ = imported


def pretend_text():
    """Make text cp1252 if no encoding is given."""
    real_open = io.open

    def opened(file, mode="r", buffering=-1, encoding=None, *rest, **options):
        if "b" not in mode:
            encoding = text_encoding(encoding)
        if isinstance(file, (str, os.PathLike)) and set("wax") & set(mode):
            check_name(file)
        return real_open(file, mode, buffering, encoding, *rest, **options)

    def text_encoding(encoding, stacklevel=2):
        return TEXT if encoding in (None, "locale") else encoding

    builtins.open = io.open = opened
    io.text_encoding = text_encoding  # what pathlib, gzip, tempfile, subprocess ask
    if "PYTHONIOENCODING" not in os.environ:
        for stream in (sys.stdin, sys.stdout):
            stream.reconfigure(encoding=TEXT)
        sys.stderr.reconfigure(encoding=TEXT, errors="backslashreplace")


def check_name(path):
    wrong = set(os.fsdecode(path)) & set('<>:"|?*')
    if wrong:
        raise OSError(22, f"The filename is incorrect, it holds {wrong}", str(path))


def in_use(path):
    """Return the files at or below a path that this process has open or mapped."""
    path = os.path.realpath(path)
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the descriptor of the listing itself
            pass
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found |= {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps}
    return [name for name in found if name == path or name.startswith(path + "/")]


def pretend_files():
    """Refuse to rename or remove open files, and let os.rename replace nothing."""

    def guarded(real):
        def call(path, *args, **options):
            targets = [x for x in args if isinstance(x, (str, os.PathLike))]
            for name in [path, *targets]:
                if in_use(name):
                    raise PermissionError(32, f"The file is in use: {in_use(name)}", str(name))
            for target in targets:
                check_name(target)
                if real is real_rename and os.path.exists(target):
                    raise FileExistsError(17, "The file exists already", str(target))
            return real(path, *args, **options)

        return call

    real_rename = os.rename
    real_mkdir = os.mkdir
    shutil._use_fd_functions = False  # shutil.rmtree works by names
    for name in ("rename", "replace", "remove", "unlink"):
        setattr(os, name, guarded(getattr(os, name)))

    def mkdir(path, *args, **options):
        check_name(path)
        return real_mkdir(path, *args, **options)

    os.mkdir = mkdir


def pretend_children():
    """Start scripts and modules that run in this interpreter on the pretended Windows, too."""
    real_init = subprocess.Popen.__init__

    def init(self, command, *args, **options):
        python, *rest = [command] if isinstance(command, str) else command
        if python == sys.executable and (str(rest[0]).endswith(".py") or rest[0] == "-m"):
            command = [python, __file__, *rest]
        real_init(self, command, *args, **options)

    subprocess.Popen.__init__ = init


def pretend():
    pretend_modules()
    pretend_text()
    pretend_files()
    pretend_children()


if __name__ == "__main__":
    del sys.argv[0]
    pretend()
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path[0] = ""
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        script = Path(sys.argv[0]).resolve()
        sys.path[0] = str(script.parent)
        OURS.append(sys.path[0])
        runpy.run_path(str(script), run_name="__main__")
