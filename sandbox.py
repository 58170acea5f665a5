"""sandbox.py - run a model's program against tests.  One door: run_tests(code, tests, timeout, memory).

A model's program has to be run, and it will try everything that pays. Three questions, each opened by a hack:
    B.1  Who reports?          print("passed"); exit(0)             who reports on himself reports success
    B.2  What may cross?       an object that equals everything     and so does who is asked what he is equal to
    B.3  What may it touch?    os.kill(trainer), open(dataset)      and what no verdict shows is done all the same
Open: bugs of the kernel or of CPython; timing; weak tests (see check_tests), and tests that ask the program for its
own opinion (a boolean method of its class, == between two of its objects) or evaluate what it wrote.

`python -I -S sandbox.py` is the server that run_tests starts: a fresh interpreter that holds nothing of ours.
"""

import ast
import builtins
import collections
import contextlib
import ctypes
import datetime
import functools
import json
import operator
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
from decimal import Decimal
from fractions import Fraction

# ---- B.1 Who reports? ----------------------------------------------------------------------------
# The work is divided, and no process is told more than it needs:
#     trainer  -- code, then test by test -->  judge  -- f, 3 -->  player           (and back: 9, then the verdict)
# The player runs the program. For `assert f(3) == 9` the judge, which runs the test, sends it the call f(3), gets plain
# data back and compares. The player never holds a test, an expected value or the channel of the verdicts. Judges are
# forked by a server, a fresh interpreter that runs this file alone.

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_locks, _server, _control = collections.defaultdict(threading.Lock), None, None


def run_tests(code, tests, timeout, memory):
    """-> (for each test a verdict {"passed", "why", "compared"}, seconds that the program had)."""
    todo, verdicts, spent, failures = _read_tests(tuple(tests)), [], 0.0, 0
    while len(verdicts) < len(tests) and (left := 4 * timeout - spent) > 0 and failures < 4:
        began = loaded = None
        try:
            with _connect() as channel, channel.makefile("rwb") as judge:
                _send(
                    judge, {"code": code[: 2**20], "limit": timeout, "left": left, "memory": memory}
                )
                _receive(judge)  # it has a core
                began = time.monotonic()
                loaded = _receive(judge)
                verdicts += [] if loaded["passed"] else [loaded] * (len(tests) - len(verdicts))
                for test in todo[len(verdicts) :]:
                    _send(judge, test)
                    verdicts.append(_receive(judge))
                    if verdicts[-1]["over"] or time.monotonic() - began > left:
                        break
                channel.shutdown(socket.SHUT_RDWR)  # not just closed: a fork may have it
        except (_Gone, ConnectionError):  # SIGALRM has ended the judge, as time was over; or else
            time.sleep(0.05)  # somebody the server, as poll can tell by now
            if began and _server.poll() is None:
                verdicts += [{"passed": False, "why": "timeout"}] * (
                    1 if loaded else len(tests) - len(verdicts)
                )
        spent, failures = spent + (time.monotonic() - began if began else 0), failures + (not began)
    if failures == 4:
        raise RuntimeError("verify_code: no program can be started on this machine")
    verdicts += [{"passed": False, "why": "no time is left"}] * (len(tests) - len(verdicts))
    # `assert True`, of which HumanEval has some, cannot ask: who passes all the others passes it.
    idle = [not test["named"] and "asks nothing" in v["why"] for test, v in zip(todo, verdicts)]
    if any(v["passed"] for v in verdicts) and all(v["passed"] or i for v, i in zip(verdicts, idle)):
        verdicts = [{**verdict, "passed": True, "why": "passed"} for verdict in verdicts]
    return verdicts, spent


def _connect():
    """A channel to a new judge, from the server, which is started where there is none."""
    global _server, _control
    ours, theirs = socket.socketpair()
    with _locks[os.getpid()], theirs:  # a fork finds that the server is not its child
        if _server is None or _server.poll() is not None:
            # Our environment may hold keys. One arena for all threads, or each would take 64 MB.
            env = {
                "MALLOC_ARENA_MAX": "1",
                "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
            }
            command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
            _control, its_end = socket.socketpair()
            with its_end:
                _server = subprocess.Popen(
                    command,
                    env=env,
                    cwd="/",
                    stdin=its_end,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            if _control.recv(1) != b"+":
                warnings.warn(
                    "verify_code: without Linux and libseccomp.so.2 programs are not confined: they can read "
                    "and write files, use the network and end processes as this user can",
                    stacklevel=4,
                )
        socket.send_fds(_control, [b"+"], [theirs.fileno()])
    return ours


def _serve():
    """The server: fork a judge for every channel that comes in, until the trainer is gone."""
    control = socket.socket(fileno=0)
    for module in _MODULES:
        __import__(module)
    with contextlib.suppress(OSError):  # made once: the forks find it
        _filter()
    trial = os.fork() or os._exit(0 if _confine(2**30, 9) else 1)
    _serve.confined = os.waitpid(trial, 0)[1] == 0
    control.send(b"+" if _serve.confined else b"-")
    os.dup2(1, 2)  # errors of the start were to be seen
    sys.set_int_max_str_digits(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the judges
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not as it may be inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    while (received := socket.recv_fds(control, 1, 1))[0]:
        if os.fork() == 0:
            try:
                control.close()
                _judge(socket.socket(fileno=received[1][0]).makefile("rwb"))
            finally:
                os._exit(0)
        os.close(received[1][0])


def _judge(trainer):
    """One program: fork the player, then run test after test as the trainer sends them. It sends a test when the one
    before is done, so none is in this process, or on its way here, when the player is forked."""
    program = _receive(trainer)
    _take_core()
    _send(trainer, "ready")  # fails if the trainer is gone
    ours, theirs = socket.socketpair()
    os.fork() or _play(theirs, program)
    theirs.close()
    line = _Line(ours.makefile("rwb"), _LENT)
    _confine(2 * program["memory"], program["left"])  # it computes with what the program returns
    # subtle: NotImplemented is true: who returns a string would pass `assert f(1).__lt__(41)`.
    warnings.filterwarnings("error", message="NotImplemented should not be used")
    set_timer = signal.setitimer
    signal.setitimer = signal.alarm = signal.signal = lambda *_: None  # no test stops our clock
    test, seconds = None, max(0.5, program["limit"])
    while True:  # until the trainer is gone
        verdict = {"passed": False, "over": False}  # over: no other test can have this player
        set_timer(signal.ITIMER_REAL, seconds)  # SIGALRM ends us: nothing can swallow that
        try:
            _run_test(test, line) if test else line.ask("load", program["code"])
            verdict |= {"passed": True, "why": "passed"}
        except _Gone as error:
            verdict |= {"over": True, "why": str(error)}
        except BaseException as error:  # but str(error) might ask the program
            text = error.args[0] if error.args and type(error.args[0]) is str else ""
            verdict["why"] = f"{type(error).__name__}: {ascii(text[:200])[1:-1]}".removesuffix(": ")
        set_timer(signal.ITIMER_REAL, 60)  # a trainer that stops must not hold a core
        _send(trainer, {**verdict, "compared": line.asked <= {"look_up", "call"}})
        test, seconds = _receive(trainer), program["limit"]


def _run_test(test, line):
    """Run one test; raises whatever makes it fail."""
    line.asked.clear()
    scope = _Scope(__name__="__main__")
    scope.test, scope.line = test, line
    sys.modules["solution"] = solution = types.ModuleType("solution")  # from solution import f
    solution.__getattr__ = lambda name: (
        line.ask("look_up", name) if name[:2] != "__" else getattr(None, name)
    )
    exec(compile(test["text"], "<test>", "exec"), scope)
    for name, value in list(scope.items()):  # as pytest does; not if the test calls it
        if (
            type(value) is types.FunctionType
            and name[:4] == "test"
            and test["text"].count(f"{name}(") == 1
        ):
            value()
    if not line.asked:
        raise AssertionError("the test asks nothing of the program")


class _Scope(dict):
    """The global names of a test: what it does not define and is not built in, is the program's."""

    def __missing__(self, name):
        if name.startswith("__") or hasattr(builtins, name) and name not in self.test["own"]:
            raise KeyError(name)
        if name in sys.stdlib_module_names and f"{name}." in self.test["text"]:
            return __import__(name)  # math.isclose(..), not imported
        if name in self.test["missing"]:  # or the program's would return True
            raise NameError(f"the test does not define {name}")
        return self.line.ask("look_up", name)


def _play(channel, program):
    """The player: do what the judge asks for. Nothing here depends on the program's honesty."""
    os.dup2(channel.fileno(), 0)
    os.closerange(3, 2**16)  # 1 and 2 are /dev/null
    sys.stdin = None
    sys.modules["solution"] = types.ModuleType("solution")  # dataclasses look it up there
    line = _Line(socket.socket(fileno=0).makefile("rwb"), _SERVED)
    if _confine(program["memory"], program["left"]) or not _serve.confined:
        while True:
            line.answer(*_receive(line.channel))


@functools.lru_cache(1024)
def _read_tests(tests):
    """-> for each test {"text", "named", "free", "own", "missing"}: has it names; which does it not define; which
    built-in ones are the program's (if there are no others, the task is to write `sum`); which are helpers that it
    forgot, whose verdict would be the program's: close in `assert close(f(1), 2.5)`. Of two free names (if no class)
    that is one which in an assert judges values, is compared with the other or stands before a dot, and only so."""

    def under(nodes):
        return {part for node in nodes for part in ast.walk(node)}

    todo, asked, own = [], set(), {*dir(builtins)}
    for text in tests:
        try:
            nodes = under([ast.parse(text)])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            nodes = set()
        names = {node for node in nodes if isinstance(node, ast.Name)}
        bound = {getattr(node, key, "") for node in nodes for key in ("name", "asname", "arg")}
        bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        free = {node.id for node in names} - bound
        own = own & free if free <= {*dir(builtins)} else set()
        free -= {*dir(builtins), *sys.stdlib_module_names}
        if sum(name[0].islower() or name[1:].isupper() for name in free) > 1:
            sides = {
                node: [node.left, *node.comparators]
                for node in nodes
                if isinstance(node, ast.Compare)
            }
            theirs = {name for name in names if name.id in free}
            judging = under(node for node in nodes if isinstance(node, ast.Assert)) or nodes
            judging -= under(
                node
                for node in sides
                if not any(
                    type(side) is ast.Constant and type(side.value) is bool for side in sides[node]
                )
            )
            names -= {
                node.func
                for node in judging
                if isinstance(node, ast.Call) and len(names & under([node])) > 1
            }
            names -= {node.value for node in nodes if isinstance(node, ast.Attribute)}
            names -= under(
                node
                for node in sides
                if sum(bool(theirs & under([side])) for side in sides[node]) > 1
            )
        asked |= {node.id for node in names}
        todo.append({"text": text, "named": bool(bound - {"", None} or names), "free": [*free]})
    return [{**test, "own": [*own], "missing": [*{*test["free"]} - asked]} for test in todo]


# ---- B.2 What may cross? -------------------------------------------------------------------------
# An object that equals everything passes every comparison. So objects stay where they are: plain data crosses, as JSON
# (pickle and marshal run code where they are read); of the rest the other end gets a reference that equals nothing.


class _Gone(BaseException):
    """The other end is lost. Not an Exception, or a test that expects one might take it so."""


def _send(channel, message):
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


def _receive(channel):
    try:
        line = channel.readline(2**24)  # bytes: the largest result there can be
        if line.endswith(b"\n"):
            return json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise _Gone("the program broke the line") from error
    raise _Gone("a result too large" if line else "the program ended")


# Plain data that JSON does not know: what its constructor makes it from. Subclasses come first, and cross as these.
_PLAIN = {
    int: lambda x: [int.__int__(x)],
    float: lambda x: [float.__float__(x)],
    str: lambda x: [str.__str__(x)],
    complex: lambda x: [x.real, x.imag],
    collections.Counter: lambda x: [dict(x)],
    collections.OrderedDict: lambda x: [dict(x)],
    dict: lambda x: [[[*item] for item in x.items()]],
    **dict.fromkeys(
        [list, tuple, set, frozenset, bytes, bytearray, collections.deque], lambda x: [[*x]]
    ),
    **dict.fromkeys(
        [
            range,
            slice,
            Fraction,
            Decimal,
            datetime.datetime,
            datetime.date,
            datetime.time,
            datetime.timedelta,
        ],
        lambda x: [*x.__reduce__()[1]],
    ),
}
_CONSTRUCTORS = {kind.__name__: kind for kind in _PLAIN}
# Types cross by name. Not `type`: with it, the judge could be made to make a class that equals all.
_TYPES = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and kind is not type
}


class _Line:
    """One end of the line between judge and player. To ask is to wait for the answer and, meanwhile, to do what the
    other end asks: f(g) with a function g of the test calls back into the test. Objects cross as numbers."""

    def __init__(self, channel, operations):
        self.channel, self.operations, self.lock = channel, operations, threading.RLock()
        self.objects, self.theirs, self.asked = {}, {}, set()

    def pack(self, value):
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is list:
            return [self.pack(item) for item in value]
        if type(value) is _Remote:
            return {"yours": [value._number]}
        for kind, arguments in _PLAIN.items():
            if isinstance(value, kind):
                return {kind.__name__: self.pack(arguments(value))}
        if isinstance(value, type):  # by name; an exception with its own bases
            base = next(base for base in value.__mro__ if _TYPES.get(base.__name__) is base)
            if value is base or issubclass(base, BaseException):
                own = value.__mro__[: value.__mro__.index(base)]
                self.objects |= {id(kind): kind for kind in own}
                return {"type": [base.__name__, *map(id, own)]}
        self.objects[id(value)] = value  # it lives as long as the line, so the id stays its own
        return {"mine": [id(value)]}

    def unpack(self, data):
        if type(data) is list:
            return [self.unpack(item) for item in data]
        if type(data) is not dict:
            return data
        ((key, content),) = data.items()
        special = {
            "type": self.type_of,
            "yours": self.objects.get,  # one object, one reference: `is` works
            "mine": lambda number: self.theirs.setdefault(number, _Remote(self, number)),
        }
        return (special.get(key) or _CONSTRUCTORS[key])(*self.unpack(content))

    def type_of(self, name, *numbers):
        kind = _TYPES[name]
        if self.operations is _LENT and issubclass(AssertionError, kind):
            numbers = *numbers, name  # a subclass: else a test's `except Empty:`, if the program
        for number in reversed(numbers):  # defines Empty, could catch the test's own `assert False`
            kind = self.theirs.setdefault(number, type(name, (kind,), {}))
        return kind

    def ask(self, operation, *arguments):
        with self.lock:
            with contextlib.suppress(OSError):  # noticed when there is no answer
                _send(self.channel, [operation, self.pack(list(arguments))])
            while (message := _receive(self.channel))[0] not in ("value", "error"):
                self.answer(*message)
        value = self.unpack(message[-1])
        if operation != "look_up" or message[0] == "value" and type(value) is not _Remote:
            self.asked.add(operation)  # but a name alone asks nothing
        if message[0] == "value":
            return value
        kind = (
            NameError if operation == "look_up" else self.type_of(*message[1])
        )  # KeyError means: look at builtins
        # subtle: StopIteration would end a loop of the test, silently: zip(map(f, xs), expected)
        ends = issubclass(kind, (StopIteration, StopAsyncIteration)) and operation != "next"
        raise (
            RuntimeError(*value)
            if ends or not issubclass(kind, (Exception, SystemExit))
            else kind(*value)
        )

    def answer(self, operation, arguments):
        try:
            reply = "value", self.pack(self.operations[operation](*self.unpack(arguments)))
        except BaseException as error:
            reply = "error", self.pack(type(error))["type"], self.pack(list(error.args))
        _send(self.channel, reply)


class _Remote:
    """An object of the other process. A test can call, iterate, index and print it, use its attributes and compare it
    with another. An operation with a value that the test knows (it == 7, it - 1.25) is not passed on: it would tell the
    program what it is compared with, and leave the verdict to it."""

    def __init__(self, line, number):
        vars(self).update(_line=line, _number=number)

    def __getattr__(self, name):
        if name.startswith("__") or name in _YES_NO:
            raise AttributeError(f"an object of the program has no {name} here")
        return self._line.ask("getattr", self, name)

    def __call__(self, *args, **kwargs):
        value, after = self._line.ask("call", self, list(args), kwargs)
        for old, new in zip(args, after if value is None else []):  # in place, like list.sort
            if type(old) is type(new) and type(old) in (list, dict, set):
                old.clear()
                old.__init__(new)
        return value

    def __eq__(self, other, operation="eq"):
        return type(other) is _Remote and self._line.ask(operation, other, self) is True

    __instancecheck__ = functools.partialmethod(__eq__, operation="isinstance")


# What built-in types answer with yes or no: where a string was due, the program's object would answer itself.
_YES_NO = {
    name
    for kind in (str, float, set)
    for name in dir(kind)
    if name[:2] == "is" or name[-4:] == "with"
}
_ALONE = "setattr next len iter str repr hash bool abs neg mul getitem setitem delitem".split()
_AMONG_THEM = "lt gt le ge add sub truediv floordiv mod pow matmul and_ or_ xor".split()


def _forward(name):
    def method(self, *operands):
        if name in _AMONG_THEM and type(operands[0]) is not _Remote:
            raise TypeError(f"{name} of an object of the program and {type(operands[0]).__name__}")
        return self._line.ask(name, self, *operands)

    setattr(_Remote, f"__{name.strip('_')}__", method)
    return getattr(builtins, name, None) or getattr(operator, name)


_LENT = {
    "iter": iter,
    "next": next,
    "call": lambda function, args, kwargs: [  # what the player may ask of the judge
        value := function(*args, **kwargs),
        args if value is None else [],
    ],
}
_SERVED = {
    **_LENT,
    "eq": operator.eq,
    "getattr": getattr,
    "isinstance": isinstance,
    "look_up": lambda name: getattr(sys.modules["solution"], name),
    "load": lambda code: exec(compile(code, "<solution>", "exec"), vars(sys.modules["solution"])),
    **{name: _forward(name) for name in _ALONE + _AMONG_THEM},
}


# ---- B.3 What may it touch? ----------------------------------------------------------------------
# os.kill(trainer, 9), open(dataset): a program that cannot forge the verdict may end the run, or read the answers. So
# judge and player give up, for good, everything but computing, threads, time and asyncio: the kernel refuses all other
# system calls, files and imports (done before) too, and some but in one form: threads, sockets as a pair of their own.

_ALLOWED = """read write close fstat lseek mmap munmap mremap mprotect brk futex exit exit_group getrandom
rt_sigaction rt_sigprocmask rt_sigreturn restart_syscall sigaltstack set_robust_list rseq sched_yield sched_getaffinity
getpid getppid gettid uname getcwd getrusage times time gettimeofday clock_gettime clock_getres clock_nanosleep
nanosleep alarm getitimer setitimer poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait
recvfrom""".split()
_CONDITIONS = {
    "clone": [(0, 0x7E030000, 0x10000)],
    "socketpair": [(0, 2**32 - 1, 1), (1, 15, 1)],
    "sendto": [(4, 2**64 - 1, 0)],
    "ioctl": [(1, 2**32 - 1, 0x5421)],
    "madvise": [(2, 2**32 - 32, 0)],
}
_MODULES = """__future__ array asyncio bisect calendar cmath collections.abc concurrent.futures.thread csv dataclasses
difflib encodings.cp1252 encodings.rot_13 encodings.utf_16 fcntl graphlib html ipaddress pathlib pickle queue resource
secrets shlex sqlite3 statistics tempfile timeit unittest.mock urllib.parse xml.etree.ElementTree _strptime""".split()


@functools.cache
def _filter():
    """These rules (man 3 seccomp_init) -> (libseccomp, rules). OSError where it is missing."""
    allow, not_permitted, no_such_call, masked_equal = 0x7FFF0000, 0x5000D, 0x50026, 7
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(not_permitted))
    for name in [*_ALLOWED, *_CONDITIONS, "clone3"]:  # clone3 hides its flags: clone will do
        conditions = [
            struct.pack("IiQQ", i, masked_equal, *rest) for i, *rest in _CONDITIONS.get(name, [])
        ]
        verdict = no_such_call if name == "clone3" else allow
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        seccomp.seccomp_rule_add_array(
            rules, verdict, number, len(conditions), b"".join(conditions)
        )
    return seccomp, rules


def _confine(memory, seconds):
    """Give it up -> whether the kernel agrees. memory: bytes beyond what the interpreter has."""
    import resource  # Windows lacks it, and fcntl

    limits = {"CPU": int(seconds) + 2, "NOFILE": 64, "CORE": 0}
    with contextlib.suppress(OSError):
        limits["AS"] = (
            memory + int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        )
    for name, value in limits.items():
        what = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(what, [min(value, resource.getrlimit(what)[1] % 2**64)] * 2)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
        seccomp, rules = _filter()
        return seccomp.seccomp_load(rules) == 0
    return False


def _take_core():
    """Wait for a core: time is wall time, and with more programs than cores good ones would fail. Each core is a byte
    of a file, for one process to lock; the lock ends with the process, however that ends."""
    import fcntl

    with contextlib.suppress(OSError):  # no place for files: no turns
        file = os.open(
            f"/tmp/rlvr-cores-{os.getuid()}", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600
        )
        for n in range(_CORES + 1):  # look for a free one, then queue for the first
            with contextlib.suppress(BlockingIOError, PermissionError):
                return fcntl.lockf(
                    file,
                    fcntl.LOCK_EX | fcntl.LOCK_NB * (n < _CORES),
                    1,
                    (os.getpid() + n) % _CORES,
                )


if __name__ == "__main__":
    _serve()
    os._exit(0)
