"""sandbox.py - run a model's program against tests.  One door: run_tests(..), and run_stdio(..) for
programs that print.

A model's program has to be run, and it will try everything that pays. Three questions, each opened
by a hack:

    1  Who reports?         print("passed"); exit(0)
                            who reports on himself reports success
    2  What may cross?      an object that equals everything
                            so does who is asked what he is equal to
    3  What may it touch?   os.kill(trainer), open(dataset)
                            what no verdict shows is done all the same

Open: bugs of the kernel or of CPython; timing; weak tests (see check_tests in the laboratory); tests
that ask the program for its own opinion (a boolean method of its class, == between two of its
objects) or evaluate what it wrote; and tests that compute the expected value from an argument after
the call, which the program may have changed: `y = f(x)`, then `assert y == sorted(x)`.

Not as in one process: a named tuple reaches a test as a tuple, a member of an IntEnum as a number;
a test cannot read `f.__name__` or `f.__doc__`, replace input(), call send() of a generator, or have
a context manager of the program swallow an error. The right side of an `==` in a test is worked out
before the left one. A test cannot ask for a function that is called like a built-in one, such as
sum, unless it imports it or entry_points names it. Of pytest a test has raises and approx (numbers
and lists of them), of numpy the name: more is in the laboratory's programs.py, for the data sets
that use it.

`python -I -S sandbox.py` is the server that run_tests starts: a fresh interpreter that holds nothing
of ours."""

import array
import ast
import asyncio
import builtins
import collections
import contextlib
import ctypes
import datetime
import decimal
import fractions
import functools
import inspect
import io
import json
import math
import operator
import os
import re
import select
import signal
import socket
import struct
import subprocess
import symtable
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings

# ---- 1 Who reports? ------------------------------------------------------------------------------
# The work is divided, and no process is told more than it needs:
#     trainer  -- code, then test by test -->  judge  -- f, 3 -->  player
#              <-- the verdict, each time ---         <--- 9 ----
# The player runs the program. For `assert f(3) == 9` the judge, which runs the test, sends it the
# call f(3), gets plain data back and compares. The player never holds a test, an expected value or
# the channel of the verdicts. Judges are forked by a server, a fresh interpreter that runs this
# file alone.

_WALL = 1.6  # seconds on the clock that cost as much as one of the processor
_locks = collections.defaultdict(threading.Lock)  # by process
# With more programs at once than cores, good ones would fail. By process: other trainers on this
# machine are not counted.
_turns = collections.defaultdict(lambda: threading.Semaphore(_cores()))
_server = _control = None


def run_tests(code, tests, timeout=2.0, memory=2**28, entry_points=None, before=""):
    """-> (for each test a verdict {"passed", "why", "compared"}, seconds that the program had).

    entry_points: the names that tests may ask of the program; if the data gives none, read_tests
        finds them. before: code of the data set; it runs ahead of the program, and its names in a
        test are the data's, not the program's."""
    todo = read_tests(tests, entry_points, before)
    program = {"before": before, "code": code[: 2**20], "limit": timeout, "memory": memory}
    verdicts, seconds = _run(program, todo)
    pairs = [*zip(verdicts, todo)]
    others = {
        verdict["passed"] for verdict, test in pairs if test["asks"] or not verdict["is_idle"]
    }
    for verdict, test in pairs:
        # `assert True`, of which HumanEval has some, is passed by who passes all the others.
        if verdict["is_idle"] and not test["asks"] and others == {True}:
            verdict.update(passed=True, why="passed")
        elif test["missing"] and verdict["why"].startswith("NameError"):
            verdict["why"] = (
                f"the test does not define {test['missing']}: give entry_points, or before"
            )
    return verdicts, seconds


def run_stdio(code, cases, timeout=2.0, memory=2**28, tolerance=0.0):
    """Run a program anew for each case (input, expected output) -> as run_tests."""
    program = {"before": "", "code": "", "limit": timeout, "memory": memory}
    case = {"main": code[: 2**20], "tolerance": tolerance}
    return _run(program, [{**case, "input": text, "output": output} for text, output in cases])


def same_output(output, expected, tolerance):
    """Equal line by line without trailing blanks; or, within a tolerance, word by word."""
    lines = [line.rstrip() for line in output.rstrip().splitlines()]
    if lines == [line.rstrip() for line in expected.rstrip().splitlines()]:
        return True
    with contextlib.suppress(ValueError):  # a word is no number, or there is none
        pairs = zip(output.split(), expected.split(), strict=True)
        return tolerance > 0 and all(
            a == b or _approx(float(b), tolerance, tolerance) == float(a) for a, b in pairs
        )
    return False


def _run(program, todo):
    """Send a judge what is to do, item by item; a new judge goes on where one was
    lost -> (verdicts, seconds)."""
    if not hasattr(os, "fork"):
        raise RuntimeError(
            "verify_code: programs cannot be run on this system, which has no fork: use Linux, WSL or macOS"
        )
    verdicts = []
    spent = 0.0
    budget = 4 * program["limit"]
    failures = 0
    while len(verdicts) < len(todo) and spent < budget:
        late = len(todo) - len(verdicts)  # how many verdicts this judge owes
        channel, server = _connect()
        try:
            with _turns[os.getpid()], channel, channel.makefile("rwb") as judge:
                _send(judge, program)
                loaded = _receive(judge)
                spent += loaded["seconds"]
                if not loaded["passed"]:
                    verdicts += [loaded] * late
                late = 1
                for item in todo[len(verdicts) :]:
                    _send(judge, item)
                    verdicts.append(_receive(judge))
                    spent += verdicts[-1]["seconds"]
                    if verdicts[-1]["is_over"] or spent >= budget:
                        break
                channel.shutdown(socket.SHUT_RDWR)  # not just closed: a fork may have it
        except (_Gone, ConnectionError):
            time.sleep(0.05)  # somebody may have ended the server: poll can tell by now
            if server.poll() is None:  # else: the judge has ended itself, time was over
                spent += program["limit"]
                verdicts += [_failed("timeout")] * late
                continue
            failures += 1
            if failures == 4:
                raise RuntimeError("verify_code: no program can be started here") from None
    verdicts += [_failed("no time is left")] * (len(todo) - len(verdicts))
    return [{**verdict} for verdict in verdicts], spent


def _failed(why):
    return {"passed": False, "why": why, "compared": False, "is_idle": False, "is_over": False}


def _connect():
    """A channel to a new judge, from the server, which is started where there is
    none -> (channel, server)."""
    global _server, _control
    ours, theirs = socket.socketpair()
    with _locks[os.getpid()], theirs:  # a fork finds that the server is not its child
        if _server is None or _server.poll() is not None:
            _server, _control = _start_server()
        with contextlib.suppress(OSError):  # if it has just ended, the channel will tell
            socket.send_fds(_control, [b"+"], [theirs.fileno()])
        return ours, _server


def _start_server():
    control, its_end = socket.socketpair()
    # Our environment may hold keys. One arena for all threads, or each would take 64 MB.
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    with its_end:
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(__file__)],
            env={"MALLOC_ARENA_MAX": "1", "LD_LIBRARY_PATH": libraries},
            cwd="/",
            stdin=its_end,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    if control.recv(1) != b"+":
        warnings.warn(
            "verify_code: without Linux and libseccomp.so.2 programs are not confined: they can read and write "
            "files, use the network and end processes as this user can; on macOS memory is not bounded either",
            stacklevel=7,
        )
    return server, control


def _serve():
    """The server: fork a judge for every channel that comes in, until the trainer is gone."""
    control = socket.socket(fileno=0)
    for module in _MODULES:
        with contextlib.suppress(ImportError):  # not every Python has every one
            __import__(module)
    tempfile.gettempdir()  # looked for once
    with contextlib.suppress(AttributeError, OSError):
        _process_control(36, 1)  # PR_SET_CHILD_SUBREAPER: a player that outlives its judge is ours
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
    while True:
        message, channels, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            try:
                control.close()
                _judge(socket.socket(fileno=channels[0]).makefile("rwb"))
            finally:
                os._exit(0)
        os.close(channels[0])


def _judge(trainer):
    """One program. The trainer sends a test when the one before is done, so none is in this
    process, or on its way here, when the player is forked."""
    program = _receive(trainer)
    ours, theirs = socket.socketpair()
    player = os.fork() or _play(theirs, program)
    theirs.close()
    line = _Line(ours.makefile("rwb"), _Clock(player, program["limit"], ours))
    # Memory: it computes with what the program returns.
    _confine(2 * program["memory"], 4 * program["limit"])
    sys.stdin = io.StringIO()
    _stand_in_for_packages()
    # subtle: NotImplemented is true: who returns a string would pass `assert f(1).__lt__(41)`. And
    # so is a tuple: assert (f(1) == 5, "why")
    is_true = "NotImplemented should not be used|assertion is always true"
    warnings.filterwarnings("error", message=is_true)
    test = None
    while True:  # until the trainer is gone
        _send(trainer, _verdict(test, line, program))
        test = _receive(trainer, -1)


def _verdict(test, line, program):
    """Run a test, or load the program if there is no test yet -> {"passed", "why", "compared": by
    calls and plain data alone, "is_idle": it asked nothing, "is_over": the player is lost,
    "seconds"}."""
    verdict = _failed("the test asks nothing of the program")
    sys.stdout = io.StringIO()
    line.asked.clear()
    line.clock.start()
    try:
        if test is None:
            line.ask("load", program["before"], program["code"])
        elif "main" in test:
            verdict["is_over"] = True
            _run_case(test, line)
        else:
            _run_test(test, line, program["before"])
        if line.asked:
            verdict.update(passed=True, why="passed")
        else:
            verdict["is_idle"] = True
    except _Gone as error:
        verdict.update(why=str(error), is_over=True)  # no other test can have this player
    except BaseException as error:  # but str(error) might ask the program
        text = " ".join(part for part in error.args if type(part) is str)
        verdict["why"] = f"{type(error).__name__}: {ascii(text[:200])[1:-1]}".removesuffix(": ")
    return {**verdict, "seconds": line.clock.stop(), "compared": line.asked == {"call"}}


class _Clock:
    """The time of a program: what it and its threads had of the processor, so that a crowded
    machine costs it nothing; or, of a program that sleeps, the wall clock's time divided by 1.6.
    When it is over the judge ends, as nothing can swallow that; the trainer finds it gone."""

    def __init__(self, player, limit, channel):
        self.cpu_clock = (~player << 3) | 2  # Linux: the processor's time of another process
        self.limit = limit
        self.channel = channel

    def start(self):
        self.began = self.now()
        signal.setitimer(signal.ITIMER_REAL, _WALL * self.limit)  # SIGALRM ends us

    def now(self):
        cpu = 0.0
        with contextlib.suppress(OSError):
            cpu = time.clock_gettime(self.cpu_clock)
        return cpu, time.monotonic() / _WALL

    def used(self):
        return max(map(operator.sub, self.now(), self.began))

    def stop(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        return self.used()

    def wait(self):
        """Wait until there is something to read."""
        while not select.select([self.channel], [], [], 0.05)[0]:
            if self.used() > self.limit:
                os._exit(1)


def _play(channel, program):
    """The player: do what the judge asks for. Nothing here depends on the program's honesty."""
    for number in (0, 1):  # standard input and output are files that have no name
        file = tempfile.TemporaryFile()
        os.dup2(file.fileno(), number)
    os.dup2(channel.fileno(), 3)
    os.closerange(4, 2**16)
    sys.modules["solution"] = types.ModuleType("solution")  # dataclasses look it up there
    builtins.exit = builtins.quit = sys.exit
    os.fstat = lambda number: types.SimpleNamespace(st_size=2**16)  # glibc's asks for a path
    stack_size = threading.stack_size  # programs ask for 512 MB, to recurse; Python needs far less
    threading.stack_size = lambda size=0: stack_size(min(size, 2**26))
    line = _Line(socket.socket(fileno=3).makefile("rwb"))
    if _confine(program["memory"], 4 * program["limit"]) or not _serve.confined:
        while True:
            line.receive()


def _run_main(code, text):
    """Run a program as `python main.py < text` would."""
    os.pwrite(0, text.encode(errors="replace"), 0)
    sys.modules["__main__"] = types.ModuleType("__main__")
    with contextlib.suppress(SystemExit):  # what counts is what it has printed
        exec(code, vars(sys.modules["__main__"]))
    threading._shutdown()  # as the interpreter does at its end: wait for the program's threads


def _load(before, code):
    """Define the program's functions and classes, for tests to call."""
    names = vars(sys.modules["solution"])
    exec(before, names)
    exec(code, names)


# What a test may ask of the program is data (entry points), or is read off the tests: names that
# they import from the program, or use and nobody defines, if some test uses one function of that
# kind, and otherwise only classes (HumanEval's check(f) may use several). In `assert close(f(1),
# 2.5)` or `f(2) - ref(2) == 0` only the data could tell the program from its judge: if no other
# test is about f alone, this is an error of the task, and the remedy is to give entry points; so it
# is for `from solution import *` with several functions, and for `import solution as s`.


def read_tests(tests, entry_points=None, before=""):
    """-> for each test {"text", "asks": the names in it that are the program's, "missing": the names that nobody defines}."""
    asks = {*(entry_points or ())}
    given = frozenset(_read_names(before).bound - asks)
    readings = [_read_names(text, given) for text in tests]
    asks = asks.union(*(names.imported for names in readings))
    asks = asks or asks.union(*(names.sure for names in readings))
    return [
        {
            "text": text,
            "asks": sorted(asks & (names.used | names.imported)),
            "missing": ", ".join(sorted(names.free - asks)),
        }
        for text, names in zip(tests, readings)
    ]


@functools.lru_cache(1000)
def _read_names(text, given=frozenset()):
    """The names of one test. bound: it defines them; used: neither it nor the data does; free: nor
    does Python; called: f of f(x); imported: from the program; sure: the program's without a
    doubt."""
    nodes = []
    tables = []
    with contextlib.suppress(Exception):  # it is no Python: the judge will say so
        nodes += ast.walk(ast.parse(text))
        tables.append(symtable.symtable(text, "<test>", "exec"))
    called = set()
    imported = set()
    compares = []  # for each assert, whether it does
    for node in nodes:
        match node:
            case ast.Call(ast.Name(name)):
                called.add(name)
            case ast.Assert(test):
                compares.append(isinstance(test, ast.Compare))
            case ast.ImportFrom("solution", aliases):
                imported |= {alias.name for alias in aliases} - {"*"}
            case ast.Attribute(ast.Name("solution"), name) if "import solution" in text:
                imported.add(name)
    for table in tables:
        tables += table.get_children()  # and their children in turn
    symbols = [name for table in tables for name in table.get_symbols() if name.is_global()]
    bound = {name.get_name() for name in symbols if name.is_assigned() or name.is_imported()}
    used = {name.get_name() for name in symbols} - bound - given
    modules = sys.stdlib_module_names - called  # bisect(..) is no module
    free = used - {*dir(builtins)} - modules

    names = {name for name in free if name in called or not name.isupper()}  # not EPS
    names = names - {*_LIBRARY} or names
    functions = [name for name in names if not name[0].isupper()]
    is_sure = len(names) == 1 or compares
    if len(functions) > 1:
        # HumanEval's check(f) may use helpers that the prompt defines. They are not to judge, as
        # in `assert near(f(1), 2)`.
        is_check = "check" in called & bound and not re.search("True|False", text)
        is_sure = is_check and compares and all(compares)
    return types.SimpleNamespace(
        bound=bound,
        used=used,
        free=free,
        called=called,
        imported=imported,
        sure=names if is_sure else set(),
    )


_LIBRARY = "ChainMap Counter Decimal Enum Fraction IntEnum OrderedDict UserDict UserList".split()


# ---- A test in the judge -------------------------------------------------------------------------


def _run_case(case, line):
    """Run a program that prints. Its output is compared here, out of its reach."""
    line.ask("main", case["main"], case["input"])
    if not same_output(sys.stdout.getvalue(), case["output"], case["tolerance"]):
        raise AssertionError("another output")


def _run_test(test, line, before):
    """Run one test; raises whatever makes it fail."""
    main = types.ModuleType("__main__")
    solution = types.ModuleType("solution")
    sys.modules.update(__main__=main, solution=solution)
    scope = vars(main)
    exec(before, scope)
    seen = {*scope}
    for name in test["asks"]:
        value = line.ask("look_up", name)
        if type(value) is _Remote and name[0].isupper():
            vars(value)["_is_class"] = True  # so the test says, whatever the program has made of it
        scope[name] = value
        setattr(solution, name, value)
    errors = []
    threading.excepthook = lambda error: errors.append(error.exc_value)
    tree = ast.parse(test["text"])
    _work_out_expected_first(tree)
    exec(compile(tree, "<test>", "exec"), scope)
    _run_collected(main, seen)
    if errors:
        raise errors[0]


def _work_out_expected_first(tree):
    """In `assert f(x) == sorted(x)`: a program that empties x would be right."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left, [ast.Eq()], [expected]):
                node.left = expected
                node.comparators = [left]


def _run_collected(main, seen):
    """Run what pytest and unittest would find, but for what is the data's."""
    for name, value in [*vars(main).items()]:
        if name in seen or getattr(value, "__module__", "") != "__main__":
            continue
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            value()
        is_class = type(value) is type and not issubclass(value, unittest.TestCase)
        if is_class and name.startswith("Test"):
            setattr(main, f"{name}_", type(name, (value, unittest.TestCase), {}))
    unittest.defaultTestLoader.loadTestsFromModule(main).debug()


def _stand_in_for_packages():
    """What tests use of packages that the judge does not have, and modules that they forget to
    import, as in math.isclose(..)."""
    vars(builtins).update(sys.modules)
    unittest.main = lambda *_, **__: None  # _run_collected runs the classes
    unittest.case._AssertRaisesContext.value = property(lambda self: self.exception)
    sys.modules["numpy"] = types.ModuleType("numpy")  # tests of EvalPlus import it, few use it
    sys.modules["pytest"] = types.SimpleNamespace(
        approx=_approx,
        raises=lambda kind, match="": unittest.TestCase().assertRaisesRegex(kind, match),
    )


def _approx(expected, rel=1e-6, abs=1e-12):
    """What equals a number that is near; for a list, one of them for each of its numbers."""
    if isinstance(expected, (list, tuple)):
        return type(expected)(_approx(item, rel, abs) for item in expected)

    class Near:
        def __eq__(self, value):
            return math.isclose(value, expected, rel_tol=rel, abs_tol=abs)

    return Near()


# ---- 2 What may cross? ---------------------------------------------------------------------------
# An object that equals everything passes every comparison. So objects stay where they are, and what
# crosses is JSON, which runs no code where it is read, as pickle and marshal would:
#     3, "a", null             a plain value
#     {"range": [0, 3, 1]}     a copy: what its type makes of these parts
#     [7]                      number 7, which both ends know
# Two kinds of things have numbers. An object belongs to one end; the other has a stand-in for it,
# which asks the owner and equals nothing. A container, plain data that can change, is at both ends,
# and before either goes on it hears what the other has changed: so `x.sort()`, aliases and default
# arguments show in a test as in one process. Built-in types are known by name, as ["int"].


class _Gone(BaseException):
    """The other end is lost. Not an Exception, or a test that expects one might take it so."""


def _send(channel, message):
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


def _receive(channel, size=2**24):
    """size: bytes of the largest result there can be; -1 for the trainer's own data."""
    try:
        line = channel.readline(size)
        if line.endswith(b"\n"):
            return json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise _Gone("the program broke the line") from error
    raise _Gone("a result too large" if line else "the program ended")


# Not `type`: with it, the judge could be made to make a class that equals all.
_TYPES = dict(inspect.getmembers(builtins, inspect.isclass))
del _TYPES["type"]


def _kind(value):
    """The row of the tables that a value belongs to. A class of exceptions crosses as a type, or no
    test could catch it; any other class of the program is an object."""
    if isinstance(value, type):
        return type if issubclass(value, BaseException) else object
    return next(kind for kind in type(value).__mro__ if kind in _PARTS)


def _arguments(value):
    """What its constructor makes an equal value of, if pickle is to be believed."""
    return value.__reduce_ex__(2)[1]


def _error_parts(error):
    return (
        type(error),
        error.args,
        ("__cause__", error.__cause__),
        ("_text", str(error)),
        *vars(error).items(),
    )


def _make_error(kind, args, *state):
    error = kind(*args)
    BaseException.__setstate__(error, dict(state))  # an error, if it is no exception
    return error


def _make_error_type(name, base):
    return type(name, (base,), {"_text": "", "__str__": lambda error: error._text})


# What the judge takes for some built-in types: a test's `except Empty:`, if the program says that
# Empty is Exception, must not catch the test's own `assert False`.
_HARMLESS = {
    kind.__name__: _make_error_type(kind.__name__, kind) for kind in AssertionError.__mro__
}

# What crosses, and the parts that make it anew. Subclasses cross as these: an IntEnum's member as its
# number, a named tuple as a tuple.
_PLAIN = {type(None), bool, int, float, str}
_CONSTRUCTED = [
    array.array,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    frozenset,
    range,
]
_COPIED = {
    **{kind: kind.__getnewargs__ for kind in (int, float, str, complex)},
    **dict.fromkeys(_CONSTRUCTED, _arguments),
    bytes: lambda value: [value.decode("latin-1"), "latin-1"],
    tuple: iter,
}
_CONTAINERS = (
    list,
    dict,
    set,
    bytearray,
    collections.Counter,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
)
_PARTLESS = [*_CONTAINERS, object, types.GeneratorType, types.CoroutineType]
_PARTS = {
    **_COPIED,
    **dict.fromkeys(_PARTLESS, lambda value: []),  # of a container: when it is empty
    collections.defaultdict: _arguments,
    collections.deque: _arguments,
    BaseException: _error_parts,
    type: lambda kind: [kind.__name__, kind.__base__],
}
_MAKERS = {
    **{kind.__name__: kind for kind in [*_COPIED, *_CONTAINERS]},
    "tuple": lambda *items: items,
    "BaseException": _make_error,
    "type": _make_error_type,
}


def _contents(container):
    """A flat list."""
    if isinstance(container, dict):
        return [part for pair in container.items() for part in pair]
    return [*container]


def _fill(container, contents):
    """The reverse."""
    container.clear()
    if isinstance(container, dict):
        contents = dict(zip(contents[::2], contents[1::2]))
    add = getattr(container, "update", None) or container.extend
    add(contents)


class _Line:
    """One end of the line between judge and player. To ask is to wait for the answer and,
    meanwhile, to do what the other end asks: f(g) with a function g of the test calls back."""

    def __init__(self, channel, clock=None):
        self.channel = channel
        self.clock = clock  # only the judge has one
        self.lock = threading.RLock()
        self.asked = set()
        self.printed = 0  # bytes of the output that the judge has
        self.last = int(clock is None)  # number: each end gives every other one
        # number, or the name of a type -> an object, its stand-in or a container
        self.objects = {**_TYPES, **_HARMLESS} if clock else {**_TYPES}
        self.numbers = {id(kind): name for name, kind in _TYPES.items()}  # and back
        self.known = {}  # number of a container -> its contents, as the other end knows them
        self.news = []  # number and parts of what is new, or contents of what has changed, or None

    # -- what crosses

    def pack(self, value):
        if type(value) in _PLAIN:
            return value
        if type(value) is _Remote:
            return [value._number]
        number = self.numbers.get(id(value))
        if number is None:
            kind = _kind(value)
            data = {kind.__name__: [*map(self.pack, _PARTS[kind](value))]}
            if kind in _COPIED:
                return data
            self.last += 2
            number = self.last
            self.news.append([number, data])
            self.keep(number, value)
        return [number]

    def unpack(self, data, number=None):
        if type(data) in _PLAIN:
            return data
        if type(data) is list:
            return self.objects[data[0]]
        ((name, parts),) = data.items()
        if name in _STAND_INS:
            return _STAND_INS[name](_Remote(self, number))
        return _MAKERS[name](*map(self.unpack, parts))

    def keep(self, number, value):
        self.objects[number] = value
        self.numbers[id(value)] = number
        if isinstance(value, _CONTAINERS):
            self.known[number] = []
            self.compare(number)

    # -- what the other end has to hear

    def compare(self, number):
        """What has changed is news, and so is that nobody here holds it, as nobody can change it."""
        contents = _contents(self.objects[number])
        known = self.known[number]
        if len(contents) != len(known) or not all(map(operator.is_, contents, known)):
            self.known[number] = contents
            self.news.append([number, [*map(self.pack, contents)]])
        elif sys.getrefcount(self.objects[number]) <= 2:  # that of the table, and this one
            self.hear(number, None)
            self.news.append([number, None])

    def hear(self, number, news):
        if number not in self.objects:
            return self.keep(number, self.unpack(news, number))
        del self.known[number]  # an error, if it is no container
        if news is None:
            del self.numbers[id(self.objects.pop(number))]
        else:
            _fill(self.objects[number], [*map(self.unpack, news)])
            self.known[number] = _contents(self.objects[number])

    # -- talking

    def send(self, kind, content):
        for number in [*self.known]:
            self.compare(number)
        content = [*map(self.pack, content)]
        _send(self.channel, [kind, content, self.news, self.output()])
        self.news.clear()

    def output(self):
        """What the program has printed since the last message; of the judge, nothing."""
        with contextlib.suppress(Exception):  # it may be closed, or replaced
            sys.stdout.flush()
        output = os.pread(1, 2**24, self.printed)  # a file can be no larger
        self.printed += len(output)
        return output.decode(errors="replace")

    def receive(self):
        """Do what the other end asks, until it answers -> (whether with a value, the value)."""
        while True:
            if self.clock:
                self.clock.wait()
            try:
                kind, content, news, output = _receive(self.channel)
                for item in news:
                    self.hear(*item)
                content = [*map(self.unpack, content)]
                if output:
                    sys.stdout.write(output)
            except Exception as error:  # subtle: a KeyError would mean: look at the built-ins
                raise _Gone("the program broke the line") from error
            if kind in ("value", "error"):
                return kind == "value", content
            self.answer(kind, content)

    def ask(self, operation, *arguments):
        with self.lock:
            with contextlib.suppress(OSError):  # noticed when there is no answer
                self.send(operation, arguments)
            is_value, content = self.receive()
        value = content.pop()
        if operation != "look_up" or is_value and type(value) is not _Remote:
            self.asked.add(operation)  # but a name alone asks nothing
        if is_value:
            return value
        if operation == "look_up":
            raise NameError(*value.args)  # KeyError means: look at built-ins
        # subtle: StopIteration would end a loop of the test, silently: zip(map(f, xs), expected)
        ends = isinstance(value, StopIteration) and operation != "next"
        if ends or not isinstance(value, (Exception, SystemExit)):
            raise RuntimeError(*value.args)
        raise value

    def answer(self, operation, arguments):
        try:
            if self.clock:
                _check_lent(operation, *arguments)
            self.send("value", [_OPERATIONS[operation](*arguments)])
        except BaseException as error:  # of the operation, or its result cannot be sent
            self.send("error", [error.with_traceback(None)])  # which would hold the arguments


# ---- What stands for an object of the other end --------------------------------------------------


class _Remote:
    """An object of the other process. A test can call, iterate, index and print it, use its
    attributes and compare it with another. An operation with a value that the test knows (it == 7,
    it - 1.25, 7 in it) is passed on only to an object that the test has made itself, of a class: it
    would tell the program what it is compared with, and leave the verdict to it."""

    def __init__(self, line, number):
        is_made = line.clock is None  # the rule is for tests, not for programs
        vars(self).update(_line=line, _number=number, _is_class=False, _is_made=is_made)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"an object of the program has no {name} here")
        value = self._line.ask("getattr", self, name)
        if name in _QUERIES and callable(value) and not self._is_made:
            raise AttributeError(f"an object of the program is not asked for {name}")
        return value

    def __call__(self, *args, **kwargs):
        value = self._line.ask("call", self, args, kwargs)
        return _mark_as_made(value, self._is_class)

    def __exit__(self, kind, *_):
        # critical: what it returns is nobody's business, or it could swallow the test's `assert`
        self._line.ask("getattr", self, "__exit__")(kind, None, None)


def _mark_as_made(value, is_made):
    if is_made and type(value) is _Remote:
        vars(value)["_is_made"] = True
    return value


# What either end does for the other: methods of the stand-in, by whether an operand may be a value
# that the test knows. "no" is what two objects are asked, and the answer about a value.
_METHODS = {
    "always": """abs bool delattr delitem enter float format getitem hash index int iter len neg next
        repr reversed round setattr setitem str""",
    "if made": """add sub mul truediv floordiv mod pow matmul and or xor contains
        radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul rand ror rxor""",
    "never": "lt gt le ge",
    "no": "eq instancecheck",
}


def _method(name, values):
    """A method that asks the owner of the object."""

    def method(self, *operands):
        is_made = values == "if made" and self._is_made
        has_value = any(type(operand) is not _Remote for operand in operands)
        if has_value and not is_made and values != "always":
            if values == "no":
                return False
            raise TypeError(f"{name} of an object of the program and a value of the test")
        return _mark_as_made(self._line.ask(name, self, *operands), is_made)

    return method


def _function(name):
    """What the owner does: abs is a built-in function, add an operator, enter just a method."""

    def call_method(value, *operands):
        return getattr(value, f"__{name}__")(*operands)

    return getattr(builtins, name, None) or getattr(operator, f"__{name}__", call_method)


_OPERATIONS = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "await": asyncio.run,
    "look_up": lambda name: getattr(sys.modules["solution"], name),
    "load": _load,
    "main": _run_main,
}
for _values, _names in _METHODS.items():
    for _name in _names.split():
        _OPERATIONS[_name] = _function(_name)
        setattr(_Remote, f"__{_name}__", _method(_name, _values))

# What built-in types answer about a value: where a list was due, the program's object would answer
# itself.
_CHANGES = """append insert add pop popitem push update extend sort reverse copy clear keys values
items setdefault real imag numerator denominator""".split()
_BUILT_IN = (str, bytes, float, int, list, tuple, set, dict)
_QUERIES = {name for kind in _BUILT_IN for name in dir(kind)} - {*_CHANGES}


def _generator(remote):
    with contextlib.suppress(StopIteration):
        while True:
            yield next(remote)


async def _coroutine(remote):
    return remote._line.ask("await", remote)


_STAND_INS = {"object": lambda remote: remote, "generator": _generator, "coroutine": _coroutine}


def _check_lent(operation, value, *rest):
    """What the program may do with what is the test's: call what it was given, iterate it, and use
    what is public of an object of a class that the test has written."""
    is_ours = not hasattr(_Remote, f"__{operation}__")  # to load a program, and the like
    # '{0.attribute}'.format(..) of a string of the program would look into the judge
    is_format = getattr(value, "__name__", "") in ("format", "format_map")
    is_given = operation in ("call", "iter", "next") and not is_format
    is_private = operation.endswith("attr") and rest[0].startswith("_")
    if is_ours or is_private or not is_given and type(value).__module__ != "__main__":
        raise AttributeError("this object is not open to the program")


# ---- 3 What may it touch? ------------------------------------------------------------------------
# os.kill(trainer, 9), open(dataset): a program that cannot forge the verdict may end the run, or
# read the answers. So judge and player give up, for good, everything but computing, threads, time
# and asyncio: the kernel refuses all other system calls, files and imports (done before) too, and
# some but in one form: threads, sockets as a pair of their own.

_ALLOWED = """read write pread64 pwrite64 close fstat lseek mmap munmap mremap mprotect brk futex exit exit_group getrandom
rt_sigaction rt_sigprocmask rt_sigreturn restart_syscall sigaltstack set_robust_list rseq sched_yield
getpid getppid gettid uname getcwd getrusage times time gettimeofday clock_gettime clock_getres clock_nanosleep
nanosleep alarm getitimer setitimer poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait
recvfrom""".split()
_CONDITIONS = {
    "clone": [(0, 0x7E030000, 0x10000)],
    "socketpair": [(0, 2**32 - 1, 1), (1, 15, 1)],
    "sendto": [(4, 2**64 - 1, 0)],
    "ioctl": [(1, 2**32 - 1, 0x5421)],
    "madvise": [(2, 2**32 - 32, 0)],
    "sched_getaffinity": [(0, 2**32 - 1, 0)],
}
_MODULES = """__future__ _colorize _pydatetime _pydecimal _pylong _strptime annotationlib argparse base64 bisect bz2
calendar cmath code codecs collections.abc colorsys concurrent.futures.thread configparser copy csv dataclasses difflib
dis doctest email.message encodings.cp1252 encodings.cp437 encodings.idna encodings.latin_1 encodings.punycode
encodings.rot_13 encodings.utf_16 encodings.utf_32 encodings.utf_8_sig fcntl fnmatch getpass glob graphlib gzip hashlib
heapq hmac html html.entities html.parser inspect ipaddress keyword linecache locale logging lzma marshal multiprocessing
numbers optparse pathlib pickle platform pprint queue random reprlib resource sched secrets shlex shutil sqlite3
statistics string textwrap timeit token tokenize traceback tracemalloc typing unicodedata unittest.mock urllib.parse uuid
weakref xml.dom.minidom xml.etree.ElementTree zipfile zlib zoneinfo""".split()


@functools.cache
def _filter():
    """These rules (man 3 seccomp_init) -> (libseccomp, rules). OSError where it is missing."""
    allow = 0x7FFF0000
    not_permitted = 0x5000D
    no_such_call = 0x50026
    masked_equal = 7
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

    signal.setitimer(signal.ITIMER_REAL, _WALL * (seconds + 2))  # for systems without PDEATHSIG
    limits = {"CPU": int(seconds) + 2, "NOFILE": 64, "CORE": 0, "FSIZE": 2**24}
    with contextlib.suppress(OSError):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limits["AS"] = memory + used
    for name, value in limits.items():
        with contextlib.suppress(OSError, ValueError):  # lower already, or macOS has only its name
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), [value, value])
    with contextlib.suppress(OSError, AttributeError):
        _process_control(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        seccomp, rules = _filter()
        return seccomp.seccomp_load(rules) == 0
    return False


def _process_control(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _cores():
    """How many programs run at once: the cores that we may use, or as many as the cgroup pays for;
    the processes of torchrun share them."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or its quota is "max"
        quota, period = open("/sys/fs/cgroup/cpu.max").read().split()
        cores = min(cores, round(int(quota) / int(period)))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


if __name__ == "__main__":
    _serve()
