"""sandbox.py - run a model's program against tests.  One door: run_tests(..), and run_stdio(..) for programs that print.

A model's program has to be run, and it will try everything that pays. Three questions, each opened by a hack:
    1  Who reports?          print("passed"); exit(0)             who reports on himself reports success
    2  What may cross?       an object that equals everything     and so does who is asked what he is equal to
    3  What may it touch?    os.kill(trainer), open(dataset)      and what no verdict shows is done all the same
Open: bugs of the kernel or of CPython; timing; weak tests (see check_tests in the laboratory), and tests that ask the
program for its own opinion (a boolean method of its class, == between two of its objects) or evaluate what it wrote.

`python -I -S sandbox.py` is the server that run_tests starts: a fresh interpreter that holds nothing of ours.
"""

import array
import ast
import asyncio
import builtins
import collections
import contextlib
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
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
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings

# ---- 1 Who reports? ------------------------------------------------------------------------------
# The work is divided, and no process is told more than it needs:
#     trainer  -- code, then test by test -->  judge  -- f, 3 -->  player           (and back: 9, then the verdict)
# The player runs the program. For `assert f(3) == 9` the judge, which runs the test, sends it the call f(3), gets plain
# data back and compares. The player never holds a test, an expected value or the channel of the verdicts. Judges are
# forked by a server, a fresh interpreter that runs this file alone.

_WALL = 2.5  # seconds on the clock that cost as much as one of the processor
_locks = collections.defaultdict(threading.Lock)
_server = _control = None


def run_tests(code, tests, timeout=2.0, memory=2**28, entry_points=None, before=""):
    """-> (for each test a verdict {"passed", "why", "compared", "asked"}, seconds that the program had).

    entry_points: the names that tests may ask of the program; if the data gives none, read_tests finds them. before:
    code of the data set; it runs ahead of the program, and its names in a test are the data's, not the program's.
    """
    todo = read_tests(tuple(tests), tuple(entry_points or ()), before)
    program = {"code": code[: 2**20], "before": before, "limit": timeout, "memory": memory}
    verdicts, seconds = _run(program, todo)
    # `assert True`, of which HumanEval has some, cannot ask: who passes all the others passes it.
    idle = [not test["asks"] and not verdict["asked"] for test, verdict in zip(todo, verdicts)]
    passed = [verdict["passed"] for verdict in verdicts]
    if any(passed) and all(map(operator.or_, passed, idle)):
        verdicts = [{**verdict, "passed": True, "why": "passed"} for verdict in verdicts]
    return verdicts, seconds


def run_stdio(code, inputs, timeout=2.0, memory=2**28):
    """Run a program once for each text on its standard input -> (verdicts with its "output", seconds). "passed" says
    only that the program came to its end: who asked compares the output, out of the program's reach."""
    program = {"code": code[: 2**20], "limit": timeout, "memory": memory, "stdio": True}
    return _run(program, [{"input": text} for text in inputs])


def task_faults(tests, entry_points=None, before="", timeout=1.0):
    """{test: why} for the tests that say nothing about a program: they are not Python, ask nothing, lack a name, or
    are passed by a program that is not there."""
    todo = read_tests(tuple(tests), tuple(entry_points or ()), before)
    names = {name for test in todo for name in test["asks"]}
    stubs = "".join(f"def {name}(*args, **_): return args[0] if args else None\n" for name in names)
    limits = {"timeout": timeout, "entry_points": entry_points, "before": before}
    stub_verdicts = run_tests(stubs, tests, **limits)[0]
    empty_verdicts = run_tests("", tests, **limits)[0]
    faults = {}
    for test, with_stubs, with_nothing in zip(tests, stub_verdicts, empty_verdicts):
        if with_nothing["passed"]:
            faults[test] = "the empty program passes it"
        elif not with_stubs["passed"] and not with_stubs["asked"]:
            faults[test] = with_stubs["why"]
    return faults


def _run(program, todo):
    """Send a judge what is to do, item by item; a new judge goes on where one was lost -> (verdicts, seconds)."""
    if not hasattr(os, "fork"):
        raise RuntimeError(
            "verify_code: programs cannot be run on this system, which has no fork: use Linux, WSL or macOS"
        )
    verdicts = []
    spent = 0.0
    failures = 0
    while len(verdicts) < len(todo) and spent < 4 * program["limit"]:
        began = loaded = False
        channel, server = _connect()
        try:
            with channel, channel.makefile("rwb") as judge:
                _send(judge, {**program, "left": 4 * program["limit"] - spent})
                began = _receive(judge) == "ready"  # it has a core
                loaded = _receive(judge)
                spent += loaded["seconds"]
                if not loaded["passed"]:
                    verdicts += [loaded] * (len(todo) - len(verdicts))
                for item in todo[len(verdicts) :]:
                    _send(judge, item)
                    verdicts.append(_receive(judge))
                    spent += verdicts[-1]["seconds"]
                    if verdicts[-1]["over"] or spent >= 4 * program["limit"]:
                        break
                channel.shutdown(socket.SHUT_RDWR)  # not just closed: a fork may have it
        except (_Gone, ConnectionError):
            time.sleep(0.05)  # somebody may have ended the server: poll can tell by now
            if began and server.poll() is None:  # else: the judge has ended itself, time was over
                spent += program["limit"]
                late = 1 if loaded else len(todo) - len(verdicts)
                verdicts += [_failed("timeout", asked=True)] * late
            else:
                failures += 1
                if failures == 4:
                    raise RuntimeError(
                        "verify_code: no program can be started on this machine"
                    ) from None
    verdicts += [_failed("no time is left", asked=True)] * (len(todo) - len(verdicts))
    return verdicts, spent


def _failed(why, **more):
    return {"passed": False, "why": why, "compared": False, "asked": False, "over": False, **more}


def _connect():
    """A channel to a new judge, from the server, which is started where there is none -> (channel, server)."""
    global _server, _control
    ours, theirs = socket.socketpair()
    with _locks[os.getpid()], theirs:  # a fork finds that the server is not its child
        if _server is None or _server.poll() is not None:
            _server, _control = _start_server()
        with contextlib.suppress(OSError):  # if it has just ended, the channel will tell
            socket.send_fds(_control, [b"+"], [theirs.fileno()])
        return ours, _server


def _start_server():
    # Our environment may hold keys. One arena for all threads, or each would take 64 MB.
    environment = {
        "MALLOC_ARENA_MAX": "1",
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    }
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    control, its_end = socket.socketpair()
    with its_end:
        server = subprocess.Popen(
            command,
            env=environment,
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
    """One program. The trainer sends a test when the one before is done, so none is in this process, or on its way
    here, when the player is forked."""
    program = _receive(trainer)
    _take_core()
    _send(trainer, "ready")  # fails if the trainer is gone
    sys.stdin = io.StringIO()
    if program.get("stdio"):
        _judge_stdio(trainer, program)
    ours, theirs = socket.socketpair()
    player = os.fork() or _play(theirs, program)
    theirs.close()
    clock = _Clock(player, program["limit"], ours)
    line = _Line(ours.makefile("rwb"), _LENT, clock)
    _confine(2 * program["memory"], program["left"])  # it computes with what the program returns
    # subtle: NotImplemented is true: who returns a string would pass `assert f(1).__lt__(41)`.
    warnings.filterwarnings("error", message="NotImplemented should not be used")
    warnings.filterwarnings(
        "error", message="assertion is always true"
    )  # assert (f(1) == 5, "why")
    signal.setitimer = signal.alarm = signal.signal = lambda *_: None  # no test stops our clock
    unittest.main = lambda *_, **__: None  # _run_classes runs them
    test = None
    while True:  # until the trainer is gone
        verdict = _failed("")
        clock.start()
        line.asked.clear()
        try:
            if test:
                _run_test(test, line, program["before"])
            else:
                line.ask("load", program["before"], program["code"])
            verdict |= {"passed": True, "why": "passed"}
        except _Gone as error:
            verdict |= {"over": True, "why": str(error)}  # no other test can have this player
        except BaseException as error:  # but str(error) might ask the program
            text = error.args[0] if error.args and type(error.args[0]) is str else ""
            verdict["why"] = f"{type(error).__name__}: {ascii(text[:200])[1:-1]}".removesuffix(": ")
        plain = line.asked <= {"look_up", "call"}
        verdict |= {"seconds": clock.stop(), "asked": bool(line.asked), "compared": plain}
        _send(trainer, verdict)
        test = _receive(trainer)


class _Clock:
    """The time of a program: what it and its threads had of the processor, so that a crowded machine costs it nothing;
    or, of a program that sleeps, the wall clock's time divided by 2.5. When it is over the judge ends, as nothing can
    swallow that; the trainer finds it gone."""

    set_timer = signal.setitimer if hasattr(signal, "setitimer") else None

    def __init__(self, player, limit, channel=None):
        self.limit = limit
        self.channel = channel
        self.cpu_clock = (~player << 3) | 2  # Linux: the processor's time of another process

    def read(self):
        cpu = 0.0
        with contextlib.suppress(OSError):
            cpu = time.clock_gettime(self.cpu_clock)
        return cpu, time.monotonic()

    def start(self):
        self.cpu, self.wall = self.read()
        _Clock.set_timer(signal.ITIMER_REAL, _WALL * max(0.2, self.limit))  # SIGALRM ends us
        _Clock.set_timer(signal.ITIMER_PROF, max(0.2, self.limit))  # and so does our own work

    def used(self):
        cpu, wall = self.read()
        return max(cpu - self.cpu, (wall - self.wall) / _WALL)

    def stop(self):
        _Clock.set_timer(signal.ITIMER_PROF, 0)
        _Clock.set_timer(signal.ITIMER_REAL, 60)  # a trainer that stops must not hold a core
        return self.used()

    def wait(self):
        """Wait until there is something to read."""
        while not select.select([self.channel], [], [], 0.05)[0]:
            if self.used() > self.limit:
                os._exit(1)


def _play(channel, program):
    """The player: do what the judge asks for. Nothing here depends on the program's honesty."""
    os.dup2(channel.fileno(), 0)
    os.closerange(3, 2**16)  # 1 and 2 are /dev/null
    sys.stdin = None
    sys.stdout = io.StringIO()  # what it prints goes to the judge with the next answer
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution  # dataclasses look it up there
    line = _Line(socket.socket(fileno=0).makefile("rwb"), _SERVED)
    line.printed = sys.stdout
    own_input = builtins.input
    builtins.input = lambda prompt="": (
        line.ask("input", str(prompt)) if sys.stdin is None else own_input(prompt)
    )
    builtins.exit = builtins.quit = sys.exit
    if _confine(program["memory"], program["left"]) or not _serve.confined:
        while True:
            line.answer(*line.receive())


def _judge_stdio(trainer, program):
    """For each text that the trainer sends run the program anew, and send back what it printed."""
    _send(trainer, {"passed": True, "seconds": 0.0})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        files = [_file(), _file(), _file()]
        files[0].write(_receive(trainer)["input"].encode(errors="surrogateescape"))
        files[0].seek(0)
        player = os.fork() or _play_stdio(program, files)
        clock = _Clock(player, program["limit"])
        clock.start()
        ended = 0
        while not ended and clock.used() < program["limit"]:
            ended, status = os.waitpid(player, os.WNOHANG)
            time.sleep(0.002)
        seconds = clock.stop()
        if not ended:
            os.kill(player, signal.SIGKILL)
            os.waitpid(player, 0)
            _send(trainer, _failed("timeout", seconds=seconds))
            continue
        output, errors = (os.pread(file.fileno(), 2**23, 0) for file in files[1:])
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2][:200]
        verdict = _failed(last_line or "the program ended", seconds=seconds, asked=True)
        if status == 0:
            verdict |= {"passed": True, "why": "passed", "compared": True}
        _send(trainer, {**verdict, "output": output.decode(errors="replace")})


def _play_stdio(program, files):
    """Run the program as `python main.py < input > output` would, and end."""
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    os.closerange(3, 2**16)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    builtins.exit = builtins.quit = sys.exit
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    stack_size = threading.stack_size  # programs ask for 512 MB, to recurse; Python needs far less
    threading.stack_size = lambda size=0: stack_size(min(size, 2**26))
    status = 1
    try:
        if _confine(program["memory"], program["left"]) or not _serve.confined:
            exec(compile(program["code"], "main.py", "exec"), vars(main))
        status = 0
    except SystemExit as ending:
        status = 0 if ending.code in (None, 0) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # its threads come to their end
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _file():
    """A file that has no name."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("program"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


# What a test may ask of the program is data (entry points), or is read off the tests: a name that they import from the
# program, or call and neither define nor find elsewhere. Not so a name that judges, `close` in `assert close(f(1), 2.5)`,
# or is compared with another, `ref` in `f(2) - ref(2) == 0`: its verdict would be the program's own. Where no other
# test speaks for such a name, it is an error of the task, and the remedy is to give entry points.


@functools.lru_cache(256)
def read_tests(tests, entry_points=(), before=""):
    """-> for each test {"text", "asks": names that are the program's, "missing": names that are nobody's}."""
    given = _TestNames("").read(before).bound - {*entry_points}
    readings = [_TestNames(text, given).read(text) for text in tests]
    imported = set().union(*(reading.imported for reading in readings))
    asks = {*entry_points} or imported
    if not asks:
        called = set().union(*(reading.called for reading in readings))
        sure = set().union(*(reading.sure for reading in readings))
        asks = called - set().union(*(reading.doubtful - sure for reading in readings))
        if len(asks) > 1:
            asks -= {name for name in asks if name[:1].isupper() and _in_library(name)}
    if not asks and not any(reading.free for reading in readings):
        # There are no other names: the task is to write `sum`.
        asks = set.intersection(
            *(reading.built_in for reading in readings if reading.built_in) or [set()]
        )
    return [
        {
            "text": reading.text,
            "asks": sorted(asks & (reading.free | reading.built_in | reading.imported)),
            "missing": sorted(reading.free - asks),
        }
        for reading in readings
    ]


def _in_library(name):
    return any(hasattr(module, name) for module in _LIBRARY)


_LIBRARY = [array, collections, datetime, decimal, enum, fractions, functools, itertools, math]


class _TestNames(ast.NodeVisitor):
    """The names of one test. free: neither defined nor Python's; called: free ones that the test calls or catches;
    sure: some assert is about them; doubtful: they judge another one, or are compared with it."""

    def __init__(self, text, given=()):
        self.text = text
        self.bound = {*given, "solution"}
        self.imported = set()
        self.called = set()
        self.sure = set()
        self.doubtful = set()
        self.built_in = set()
        self.values = collections.defaultdict(
            set
        )  # of a local name: what program's names it comes from

    def read(self, text):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = ast.Module([])
        nodes = [*ast.walk(tree)]
        names = {node for node in nodes if isinstance(node, ast.Name)}
        for node in nodes:
            self.bound |= {getattr(node, key, None) for key in ("name", "asname", "arg")}
            if isinstance(node, ast.alias):
                self.bound.add(node.name.partition(".")[0])
        self.bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)} - self.bound
        self.free = {name for name in used if not self.is_python(name)}
        for node in nodes:
            self.read_import(node)
        for _ in range(3):  # values pass from name to name
            self.visit(tree)
        asserts = [node.test for node in nodes if isinstance(node, ast.Assert)]
        calls = [node.value for node in nodes if isinstance(node, ast.Expr)]
        for node in asserts or calls:
            self.judge(node)
        return self

    def is_python(self, name):
        library = name in sys.stdlib_module_names and re.search(rf"\b{name}\.", self.text)
        return name in dir(builtins) or name.startswith("__") or library

    def read_import(self, node):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            self.imported |= {alias.name for alias in node.names}
            if any(alias.name == "*" for alias in node.names):
                self.imported |= self.free
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "solution":
            self.imported.add(node.attr)

    # -- what a value comes from

    def origins(self, node):
        """The outermost program's names that a value comes from: of decode(encode(x)) that is decode."""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in self.free
        ):
            return {node.func.id}
        if isinstance(node, ast.Name):
            return {node.id} & self.free or self.values[node.id]
        return set().union(*map(self.origins, ast.iter_child_nodes(node)))

    def give(self, target, value):
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.values[node.id] = self.values[node.id] | self.origins(value)

    def visit_Assign(self, node):
        for target in node.targets:
            self.give(target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        self.give(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node):
        self.give(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        self.give(node.target, node.iter)
        self.generic_visit(node)

    def visit_FunctionDef(self, node):
        self.called |= self.free & {getattr(part, "id", "") for part in node.decorator_list}
        self.values[node.name] = {argument.arg for argument in node.args.args}  # its parameters
        self.generic_visit(node)

    def visit_Call(self, node):
        name = getattr(node.func, "id", "")
        for argument in node.args:
            self.called |= self.free & {getattr(argument, "id", "")}
            if name not in self.free:
                for parameter in self.values[name] - self.free:  # of a function of the test
                    self.give(ast.Name(parameter), argument)
        self.called |= self.free & {name}
        if name in vars(builtins) and name[:1].islower():
            self.built_in.add(name)
        self.generic_visit(node)

    def visit_Attribute(self, node):
        self.called |= self.free & {getattr(node.value, "id", "")}
        self.generic_visit(node)

    def visit_ExceptHandler(self, node):
        if node.type:
            self.called |= self.free & self.origins(node.type)
        self.generic_visit(node)

    # -- what decides

    def judge(self, node):
        """Who decides whether an assert holds: for which names does it speak, and for which not?"""
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        flags = [side for side in sides if isinstance(getattr(side, "value", None), bool)]
        if isinstance(node, ast.BoolOp) or flags:
            for part in sides or node.values:
                self.judge(part)
        elif isinstance(node, ast.UnaryOp):
            self.judge(node.operand)
        elif sides:
            self.agree({name for side in sides for name in self.origins(side)})
        elif isinstance(node, ast.Call):
            self.judge_call(node)
        else:
            self.agree(self.origins(node))

    def judge_call(self, node):
        name = getattr(node.func, "id", "")
        judges = self.origins(node.func)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        others = {name for part in arguments for name in self.origins_of_data(part)} - judges
        if name in ("all", "any", "isinstance", "bool", "callable", "hasattr", "issubclass"):
            for part in arguments[: 1 if name == "isinstance" else None]:
                self.judge(part.elt if hasattr(part, "elt") else part)
        elif others and judges:
            self.doubtful |= judges
        else:
            self.agree(judges or others)

    def origins_of_data(self, node):
        """As origins, but an object that the test makes of a class, is_leaf(Tree()), is no value to be judged; what a
        parameter of the test returns, close(f(1), 2.5) in a check of any f, is one."""
        called = getattr(node, "func", None)
        if (
            isinstance(called, ast.Name)
            and called.id not in self.free
            and called.id not in vars(builtins)
        ):
            return {"?"}
        made = isinstance(node, ast.Name) or isinstance(called, ast.Name)
        return {name for name in self.origins(node) if not made or not name[:1].isupper()}

    def agree(self, names):
        functions = {name for name in names if not name[:1].isupper() or name.isupper()}
        if len(functions) > 1:
            self.doubtful |= functions
        else:
            self.sure |= names - {"?"}


# ---- A test in the judge -------------------------------------------------------------------------


def _run_test(test, line, before):
    """Run one test; raises whatever makes it fail."""
    line.ask("forget")  # the values of the test before
    line.asked.clear()
    scope = _Scope(__name__="__main__")
    scope.test = test
    scope.line = line
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["solution"] = solution = types.ModuleType("solution")
    solution.__getattr__ = scope.of_program
    solution.__all__ = test["asks"]  # from solution import *
    sys.modules["pytest"] = _pytest()
    sys.modules["numpy"] = _numpy()
    errors = []
    threading.excepthook = lambda error: errors.append(error.exc_value)
    exec(compile(before, "<before>", "exec"), scope)
    tree = _ExpectedFirst().visit(ast.parse(test["text"]))
    given = {*scope}
    code = compile(ast.fix_missing_locations(tree), "<test>", "exec")
    exec(code, scope)
    called = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for name, value in [*scope.items()]:  # as pytest does
        if name in given or name in called:
            continue
        if type(value) is types.FunctionType and name.startswith("test"):
            _call_test(value)
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            _run_classes(value)
        elif isinstance(value, type) and name.startswith("Test"):
            _run_methods(value)
    for name, value in [*scope.items()]:  # T('test_a').run() tells nobody
        if name in called and isinstance(value, type) and issubclass(value, unittest.TestCase):
            _run_classes(value)
    if errors:
        raise errors[0]
    if not line.asked:
        raise AssertionError("the test asks nothing of the program")


class _ExpectedFirst(ast.NodeTransformer):
    """`assert f(x) == sorted(x)` works out sorted(x) first: a program that empties x would be right."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        right = node.comparators[0]
        if type(node.ops[0]) is ast.Eq and len(node.ops) == 1 and self.changes(node.left, right):
            node.left, node.comparators = right, [node.left]
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        name = getattr(node.func, "attr", "")
        if name.startswith("assert") and name.endswith("Equal") and self.changes(*node.args[:2]):
            node.args[:2] = reversed(node.args[:2])
        return node

    def changes(self, left=None, right=None):
        if left is None or right is None:
            return False
        given = {
            id(part) for node in ast.walk(left) if isinstance(node, ast.Call) for part in node.args
        }
        names = {
            node.id for node in ast.walk(left) if isinstance(node, ast.Name) and id(node) in given
        }
        return bool(names & {node.id for node in ast.walk(right) if isinstance(node, ast.Name)})


def _call_test(function, *self):
    cases = getattr(function, "parameters", [{}])
    for case in cases:
        function(*self, **case)


def _run_methods(kind):
    for name in dir(kind):
        if name.startswith("test"):
            instance = kind()
            getattr(instance, "setup_method", getattr(instance, "setUp", lambda: None))()
            _call_test(getattr(kind, name), instance)


def _run_classes(kind):
    """A TestCase; one that runs nothing, or skips, or expects to fail, tests nothing."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    result = suite.run(unittest.TestResult())
    problems = [
        text
        for _, text in result.failures + result.errors + result.expectedFailures + result.skipped
    ]
    if problems or not result.wasSuccessful():
        raise AssertionError(
            problems[0].strip()[-200:] if problems else "a test succeeds unexpectedly"
        )


class _Scope(dict):
    """The global names of a test. What it does not define is the program's, if read_tests says so, or Python's."""

    def __missing__(self, name):
        if name in self.test["asks"]:
            return self.of_program(name)
        if name in self.test["missing"]:
            raise NameError(
                f"the test does not define {name}; if it is the program's, give entry_points"
            )
        if not hasattr(builtins, name) and name in sys.stdlib_module_names:
            return __import__(name)  # math.isclose(..), not imported
        raise KeyError(name)

    def of_program(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.line.ask("look_up", name)
        if type(value) is _Remote and name[:1].isupper():
            vars(value)["_is_class"] = (
                True  # so the test calls it, whatever the program has made of it
            )
        return value


def _pytest():
    """What tests use of pytest: raises, approx, mark.parametrize."""
    pytest = types.ModuleType("pytest")
    pytest.raises = _Raises
    pytest.approx = _Approx
    pytest.fail = lambda reason="": unittest.TestCase().fail(reason)
    pytest.mark = types.SimpleNamespace(parametrize=_parametrize)
    pytest.main = lambda *_, **__: 0
    return pytest


class _Raises:
    def __init__(self, expected, match=""):
        self.expected = expected
        self.match = match

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _):
        if kind is None:
            raise AssertionError("it raises nothing")
        self.type = kind
        self.value = value
        caught = issubclass(kind, self.expected)
        if caught and not re.search(self.match, str(value)):
            raise AssertionError("it raises with another text")
        return caught


class _Approx:
    def __init__(self, expected, rel=1e-6, abs=1e-12):
        self.expected = expected
        self.limits = {"rel_tol": rel, "abs_tol": abs}

    def __eq__(self, value):
        return _close(value, self.expected, **self.limits)


def _close(value, expected, **limits):
    if isinstance(expected, dict):
        same = isinstance(value, dict) and value.keys() == expected.keys()
        return same and all(_close(value[key], expected[key], **limits) for key in expected)
    if isinstance(expected, (list, tuple)):
        same = isinstance(value, (list, tuple)) and len(value) == len(expected)
        return same and all(_close(*pair, **limits) for pair in zip(value, expected))
    if isinstance(expected, (int, float)) and isinstance(value, (int, float)):
        return math.isclose(value, expected, **limits)
    return type(value) is not _Remote and value == expected


def _parametrize(names, rows, **_):
    """One name for a row of one, several for a row of several; marks on top of one another multiply."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    rows = [dict(zip(names, row if len(names) > 1 else [row])) for row in rows]

    def mark(function):
        cases = getattr(function, "parameters", [{}])
        function.parameters = [{**case, **row} for case in cases for row in rows]
        return function

    return mark


def _numpy():
    """What the tests of EvalPlus use of numpy, on plain lists."""

    def allclose(value, expected, rtol=1e-5, atol=1e-8):
        return _close(value, expected, rel_tol=rtol, abs_tol=atol)

    numpy = types.ModuleType("numpy")
    numpy.allclose = numpy.isclose = allclose
    numpy.ndarray = numpy.float32 = numpy.float64 = type("ndarray", (), {})
    return numpy


# ---- 2 What may cross? ---------------------------------------------------------------------------
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
_REDUCED = [
    range,
    slice,
    fractions.Fraction,
    decimal.Decimal,
    datetime.timedelta,
    datetime.timezone,
]
_REDUCED += [datetime.datetime, datetime.date, datetime.time]
_PLAIN = {
    int: lambda x: [int.__int__(x)],
    float: lambda x: [float.__float__(x)],
    str: lambda x: [str.__str__(x)],
    complex: lambda x: [x.real, x.imag],
    bytes: lambda x: [x.hex()],
    tuple: lambda x: [*tuple.__iter__(x)],
    frozenset: lambda x: [*frozenset.__iter__(x)],
    array.array: lambda x: [x.typecode, *x],
    **dict.fromkeys(_REDUCED, lambda x: [*x.__reduce__()[1]]),
}
_CONSTRUCTORS = {kind.__name__: kind for kind in _PLAIN}
_CONSTRUCTORS["bytes"] = bytes.fromhex
_CONSTRUCTORS["tuple"] = lambda *items: items
_CONSTRUCTORS["frozenset"] = lambda *items: frozenset(items)
_CONSTRUCTORS["array"] = lambda typecode, *items: array.array(typecode, items)

# Plain data that can change is shared: both ends have a copy of it under one number, and before either end goes on it
# is told what the other has changed. So `x.sort()`, aliases and default arguments show in a test as in one process.
_PAIRS = [collections.defaultdict, collections.Counter, collections.OrderedDict, dict]
_ITEMS = [list, set, bytearray, collections.deque]
_SHARED = {kind.__name__: kind for kind in _PAIRS + _ITEMS}
_ATOMS = {type(None), bool, int, float, str}

# Types cross by name. Not `type`: with it, the judge could be made to make a class that equals all.
_TYPES = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and kind is not type
}


def _contents(value):
    """Of a shared value, as a flat list."""
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    kind = next(kind for kind in _ITEMS if isinstance(value, kind))
    return [*kind.__iter__(value)]


def _fill(value, contents):
    """The reverse."""
    if isinstance(value, dict):
        dict.clear(value)
        dict.update(value, zip(contents[::2], contents[1::2]))
    else:
        kind = next(kind for kind in _ITEMS if isinstance(value, kind))
        kind.clear(value)
        add = kind.update if kind is set else kind.extend
        add(value, contents)


class _Line:
    """One end of the line between judge and player. To ask is to wait for the answer and, meanwhile, to do what the
    other end asks: f(g) with a function g of the test calls back into the test. Objects cross as numbers."""

    def __init__(self, channel, operations, clock=None):
        self.channel = channel
        self.operations = operations
        self.clock = clock
        self.lock = threading.RLock()
        self.printed = io.StringIO()
        self.asked = set()
        self.objects = {}  # number -> an object of this end
        self.stand_ins = {}  # number -> what stands here for an object of the other end
        self.numbers = {}  # id of a stand-in or a shared value -> its number
        self.count = itertools.count(clock is None, 2)  # the ends take turns in the numbers
        self.forget()

    def forget(self):
        self.shared = {}  # number -> value
        self.known = {}  # number -> its contents, as the other end knows them

    # -- packing

    def pack(self, value):
        if type(value) in _ATOMS:
            return value
        if type(value) is _Remote:
            return {"yours": [value._number]}
        number = self.numbers.get(id(value))
        if number is not None and self.stand_ins.get(number) is value:
            return {"yours": [number]}
        if number is not None and self.shared.get(number) is value:
            return {"same": [number]}
        for name, kind in _SHARED.items():
            if isinstance(value, kind):
                number = next(self.count)
                extra = getattr(value, "maxlen", getattr(value, "default_factory", None))
                contents = self.share(number, value)
                return {name: [number, self.pack(extra), self.pack_all(contents)]}
        return self.pack_named(value) or self.pack_object(value)

    def pack_all(self, values):
        return values if _ATOMS.issuperset(map(type, values)) else [*map(self.pack, values)]

    def pack_named(self, value):
        """What has a constructor or a name."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = [*map(str, value._fields)]
            return {"namedtuple": [type(value).__name__, fields, *self.pack_all([*value])]}
        if isinstance(value, (int, str)) and isinstance(value, enum.Enum):
            base = "int" if isinstance(value, int) else "str"
            return {"enum": [type(value).__name__, value.name, _CONSTRUCTORS[base](value.value)]}
        for kind, arguments in _PLAIN.items():
            if isinstance(value, kind):
                return {kind.__name__: self.pack_all(arguments(value))}
        if isinstance(value, type):  # by name; an exception with its own bases
            base = next(base for base in value.__mro__ if _TYPES.get(base.__name__) is base)
            if value is base or issubclass(base, BaseException):
                own = value.__mro__[: value.__mro__.index(base)]
                self.objects |= {id(kind): kind for kind in own}
                return {"type": [base.__name__, *map(id, own), value.__name__]}

    def pack_object(self, value):
        self.objects[id(value)] = value  # it lives as long as the line, so the id stays its own
        if isinstance(value, BaseException):
            state = [[*value.args], vars(value), value.__cause__]
            return {"exception": [id(value), self.pack(type(value)), *self.pack_all(state)]}
        if isinstance(value, types.GeneratorType):
            return {"generator": [id(value)]}
        if isinstance(value, types.CoroutineType):
            return {"coroutine": [id(value)]}
        return {"mine": [id(value)]}

    def unpack(self, data):
        if type(data) is not dict:
            return data
        ((key, content),) = data.items()
        if key in _SHARED:
            return self.unpack_shared(_SHARED[key], *content)
        content = self.unpack_all(content)
        if key in _CONSTRUCTORS:
            return _CONSTRUCTORS[key](*content)
        if key == "yours":
            return self.objects[content[0]]
        if key == "same":
            return self.shared[content[0]]
        if key == "type":
            return self.type_of(*content)
        if key == "namedtuple":
            return _named_tuple(content[0], tuple(self.unpack_all(content[1])))(*content[2:])
        if key == "enum":
            return _enum(*content)
        if content[0] not in self.stand_ins:  # one object, one reference: `is` works
            self.stand_in(content[0], _STAND_INS[key](self, *content))
        return self.stand_ins[content[0]]

    def unpack_all(self, content):
        return [self.unpack(item) if type(item) is dict else item for item in content]

    def unpack_shared(self, kind, number, extra, contents):
        value = kind()
        if kind is collections.deque:
            value = kind(maxlen=extra)
        if kind is collections.defaultdict:
            value.default_factory = self.unpack(extra)
        self.share(number, value)
        _fill(value, self.unpack_all(contents))
        self.known[number] = _contents(value)
        return value

    def stand_in(self, number, value):
        self.stand_ins[number] = value
        self.numbers[id(value)] = number
        return value

    def type_of(self, name, *numbers_and_name):
        *numbers, own_name = numbers_and_name
        kind = _TYPES[name]
        if self.clock and issubclass(AssertionError, kind) and numbers + [own_name] != [name]:
            numbers = *numbers, name  # a subclass: else a test's `except Empty:`, if the program
        elif self.clock and issubclass(AssertionError, kind):
            numbers = [name]  # defines Empty, could catch the test's own `assert False`
        for number in reversed(numbers):
            if number not in self.stand_ins:
                self.stand_in(number, type(own_name, (kind,), {}))
            kind = self.stand_ins[number]
        return kind

    # -- what is shared

    def share(self, number, value):
        contents = _contents(value)
        self.shared[number] = value
        self.known[number] = contents
        self.numbers[id(value)] = number
        return contents

    def drop(self, number):
        self.known.pop(number, None)
        value = self.shared.pop(number, None)
        self.numbers.pop(id(value), None)

    def changes(self):
        """-> [number, contents] of what has changed since the other end heard of it."""
        changed = []
        for number, value in [*self.shared.items()]:
            contents = _contents(value)
            known = self.known[number]
            if len(contents) != len(known) or not all(map(operator.is_, contents, known)):
                self.known[number] = contents
                changed.append([number, self.pack_all(contents)])
        return changed

    def unused(self):
        """The numbers of what nobody here holds any more, so nobody can change it."""
        numbers = []
        for number in [*self.shared]:
            if sys.getrefcount(self.shared[number]) <= _HELD_BY_TABLE:
                self.drop(number)
                numbers.append(number)
        return numbers

    # -- talking

    def send(self, kind, content):
        content = self.pack_all(content)
        changes = self.changes()
        message = [kind, content, changes, self.unused(), self.printed.getvalue()]
        self.printed.seek(0)
        self.printed.truncate()
        _send(self.channel, message)

    def receive(self):
        if self.clock:
            self.clock.wait()
        message = _receive(self.channel)
        try:
            kind, content, changes, unused, printed = message
            content = self.unpack_all(content)
            for number, contents in changes:
                _fill(self.shared[number], self.unpack_all(contents))
                self.known[number] = _contents(self.shared[number])
            for number in unused:
                self.drop(number)
            sys.stdout.write(printed)
        except Exception as error:  # subtle: a KeyError would mean: look at the built-ins
            raise _Gone("the program broke the line") from error
        return kind, content

    def ask(self, operation, *arguments):
        with self.lock:
            with contextlib.suppress(OSError):  # noticed when there is no answer
                self.send(operation, arguments)
            kind, content = self.receive()
            while kind not in ("value", "error"):
                self.answer(kind, content)
                kind, content = self.receive()
        if len(content) != 1 or kind == "error" and not isinstance(content[0], BaseException):
            raise _Gone("the program broke the line")
        value = content[0]
        if operation != "forget" and (
            operation != "look_up" or kind == "value" and type(value) is not _Remote
        ):
            self.asked.add(operation)  # but a name alone asks nothing
        if kind == "value":
            return value
        if operation == "look_up":
            raise NameError(*value.args)  # KeyError means: look at built-ins
        # subtle: StopIteration would end a loop of the test, silently: zip(map(f, xs), expected)
        ends = isinstance(value, (StopIteration, StopAsyncIteration)) and operation not in (
            "next",
            "send",
        )
        if ends or not isinstance(value, (Exception, SystemExit)):
            raise RuntimeError(*value.args)
        raise value

    def answer(self, operation, arguments):
        try:
            kind = "value"
            content = [self.operations[operation](self, *arguments)]
        except BaseException as error:
            kind = "error"
            content = [error.with_traceback(None)]  # which would hold the arguments
        arguments.clear()
        try:
            self.send(kind, content)
        except (TypeError, ValueError, RecursionError, AttributeError) as error:
            self.send(
                "error", [ValueError(f"a result that cannot be read: {type(error).__name__}")]
            )


_table = {0: []}
_HELD_BY_TABLE = sys.getrefcount(_table[0])


@functools.lru_cache(1000)
def _named_tuple(name, fields):
    return collections.namedtuple(name, fields)


@functools.lru_cache(1000)
def _enum(name, member, value):
    if member.startswith("_") or member == "mro":
        return value
    return enum.Enum(name, {member: value}, type=type(value))[member]


# ---- What stands for an object of the other end --------------------------------------------------


class _Remote:
    """An object of the other process. A test can call, iterate, index and print it, use its attributes and compare it
    with another. An operation with a value that the test knows (it == 7, it - 1.25, 7 in it) is passed on only to an
    object that the test has made itself, of a class: it would tell the program what it is compared with, and leave the
    verdict to it."""

    def __init__(self, line, number):
        is_judge = line.clock is not None
        vars(self).update(_line=line, _number=number, _is_class=False, _is_made=not is_judge)

    def __getattr__(self, name):
        if name.startswith("__") or name in _QUERIES and not self._is_made:
            raise AttributeError(f"an object of the program has no {name} here")
        return self._line.ask("getattr", self, name)

    def __call__(self, *args, **kwargs):
        value = self._line.ask("call", self, [*args], kwargs)
        if self._is_class and type(value) is _Remote:
            vars(value)["_is_made"] = True
        return value

    def __eq__(self, other):
        return type(other) is _Remote and self._line.ask("eq", other, self) is True

    def __ne__(self, other):
        return not self == other

    def __instancecheck__(self, other):
        return type(other) is _Remote and self._line.ask("isinstance", other, self) is True

    def __contains__(self, item):
        return self._with("contains", self, item) is True

    def __enter__(self):
        return self._line.ask("enter", self)

    def __exit__(self, kind, error, _):
        swallowed = self._line.ask("exit", self, kind and kind.__name__)
        # critical: a program must not swallow the assert of a test
        return swallowed is True and not issubclass(kind, (AssertionError, _Refused, _Gone))

    def _with(self, operation, left, right):
        ours = [side for side in (left, right) if type(side) is _Remote]
        if len(ours) == 1 and not ours[0]._is_made:
            raise _Refused(f"{operation} of an object of the program and a value of the test")
        value = self._line.ask(operation, left, right)
        if type(value) is _Remote and all(side._is_made for side in ours):
            vars(value)["_is_made"] = True
        return value

    __name__ = property(lambda self: self._line.ask("getattr", self, "__name__"))
    __doc__ = property(lambda self: self._line.ask("getattr", self, "__doc__"))


class _Refused(TypeError):
    pass


# What built-in types answer about a value: where a list was due, the program's object would answer itself.
_CHANGES = "append insert add pop popitem push update extend sort reverse copy clear keys values items setdefault".split()
_QUERIES = {
    name
    for kind in (str, bytes, float, int, list, tuple, set, dict)
    for name in dir(kind)
    if name not in _CHANGES and name not in ("real", "imag", "numerator", "denominator")
}
_ALONE = "setattr next len iter str repr hash bool abs neg getitem setitem delitem".split()
_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and_ or_ xor".split()
_ORDER = "lt gt le ge".split()


def _method(name):
    return lambda self, *operands: self._line.ask(name, self, *operands)


def _arithmetic(name):
    return lambda self, other: self._with(name, self, other)


def _reflected(name):
    return lambda self, other: self._with(name, other, self)


def _order(name):
    def method(self, other):
        if type(other) is not _Remote:
            raise _Refused(f"{name} of an object of the program and a value of the test")
        return self._line.ask(name, self, other)

    return method


for _name in _ALONE:
    setattr(_Remote, f"__{_name}__", _method(_name))
for _name in _ARITHMETIC:
    setattr(_Remote, f"__{_name.strip('_')}__", _arithmetic(_name))
    setattr(_Remote, f"__r{_name.strip('_')}__", _reflected(_name))
for _name in _ORDER:
    setattr(_Remote, f"__{_name}__", _order(_name))


def _exception(line, number, kind, args, attributes, cause):
    error = kind(*args)
    vars(error).update(attributes)
    error.__cause__ = cause
    return error


def _generator(line, number):
    source = _Remote(line, number)

    def generate():
        sent = None
        while True:
            try:
                item = line.ask("send", source, sent)
            except StopIteration as end:
                return end.value
            sent = yield item

    return generate()


def _coroutine(line, number):
    source = _Remote(line, number)

    async def wait():
        return line.ask("await", source)

    return wait()


_STAND_INS = {
    "mine": _Remote,
    "generator": _generator,
    "coroutine": _coroutine,
    "exception": _exception,
}


# ---- What either end does for the other ----------------------------------------------------------


def _lend(line, function, args, kwargs):
    """The judge calls a function of the test. Not format: '{0.attribute}' of a string of the program would look into the
    judge."""
    if getattr(function, "__name__", "") in ("format", "format_map"):
        raise TypeError("format is not lent")
    return function(*args, **kwargs)


def _open_to_program(value):
    """May the program see attributes of this object of the test? Only if the test has written its class."""
    if type(value).__module__ != "__main__":
        raise AttributeError("this object is not open to the program")
    return value


def _lent_attribute(line, value, name):
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(_open_to_program(value), name)


def _lent_change(line, value, name, new):
    if name.startswith("_"):
        raise AttributeError(name)
    setattr(_open_to_program(value), name, new)


def _lent(function):
    return lambda line, value, *rest: function(_open_to_program(value), *rest)


def _load(line, before, code):
    names = vars(sys.modules["solution"])
    exec(compile(before, "<before>", "exec"), names)
    exec(compile(code, "<solution>", "exec"), names)


def _leave(line, value, kind):
    """Tell a context manager of the program how its block ended."""
    error = _TYPES.get(kind, Exception if kind else None)
    return value.__exit__(error, error and error(), None)


def _any_end(function):
    return lambda line, *arguments: function(*arguments)


_BOTH = {
    name: _any_end(getattr(builtins, name, None) or getattr(operator, name, None))
    for name in _ALONE
}
_BOTH |= {
    name: _any_end(getattr(operator, name)) for name in [*_ARITHMETIC, *_ORDER, "eq", "contains"]
}
# what the player may ask of the judge
_LENT = {
    "call": _lend,
    "getattr": _lent_attribute,
    "setattr": _lent_change,
    "iter": _any_end(iter),
    "next": _any_end(next),
    "send": lambda line, source, value: source.send(value),
    "input": lambda line, prompt: input(prompt),
    **{
        name: _lent(getattr(builtins, name, None) or getattr(operator, name))
        for name in "len bool str repr hash eq lt getitem setitem contains".split()
    },
}
# and the judge of the player
_SERVED = {
    **_BOTH,
    "forget": lambda line: line.forget(),
    "load": _load,
    "look_up": lambda line, name: getattr(sys.modules["solution"], name),
    "call": lambda line, function, args, kwargs: function(*args, **kwargs),
    "getattr": _any_end(getattr),
    "isinstance": _any_end(isinstance),
    "enter": lambda line, value: value.__enter__(),
    "exit": _leave,
    "send": lambda line, source, value: source.send(value),
    "await": lambda line, coroutine: asyncio.run(coroutine),
}


# ---- 3 What may it touch? ------------------------------------------------------------------------
# os.kill(trainer, 9), open(dataset): a program that cannot forge the verdict may end the run, or read the answers. So
# judge and player give up, for good, everything but computing, threads, time and asyncio: the kernel refuses all other
# system calls, files and imports (done before) too, and some but in one form: threads, sockets as a pair of their own.

_ALLOWED = """read write close fstat lseek mmap munmap mremap mprotect brk futex exit exit_group getrandom
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
        what = getattr(resource, f"RLIMIT_{name}")
        with contextlib.suppress(OSError, ValueError):  # macOS knows some only by name
            hard = resource.getrlimit(what)[1] % 2**64
            resource.setrlimit(what, [min(value, hard)] * 2)
    with contextlib.suppress(OSError, AttributeError):
        _process_control(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
        seccomp, rules = _filter()
        return seccomp.seccomp_load(rules) == 0
    return False


def _process_control(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _take_core():
    """Wait for a core: with more programs than cores good ones would fail. Each core is a byte of a file, for one
    process to lock; the lock ends with the process, however that ends."""
    import fcntl

    path = f"/tmp/rlvr-cores-{os.getuid()}"
    cores = _cores()
    with contextlib.suppress(OSError):  # no place for files: no turns
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        for n in range(cores + 1):  # look for a free one, then queue for the first
            how = fcntl.LOCK_EX | fcntl.LOCK_NB * (n < cores)
            with contextlib.suppress(BlockingIOError, PermissionError):
                return fcntl.lockf(file, how, 1, (os.getpid() + n) % cores)


def _cores():
    """How many programs run at once: the cores that we may use, or as many as the cgroup pays for."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or its quota is "max"
        quota, period = open("/sys/fs/cgroup/cpu.max").read().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


if __name__ == "__main__":
    _serve()
    os._exit(0)
