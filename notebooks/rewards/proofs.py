"""proofs.py - proofs checked by Coq, inside bubblewrap (chapter 9.5)."""

import math
import shutil
import subprocess
import tempfile
from pathlib import Path

MAX_PROOF = 2**24  # bytes of one compiled proof


def verify_proof(statement: str, proof: str, header="", timeout=30.0, memory_mb=2048) -> dict:
    """Return {"proved": bool, "why": str}: does the model's Coq proof prove the statement?

    statement: a proposition, `forall n : nat, n + 0 = n`; proof: `Proof. ... Qed.` or the tactics alone;
    header: what both need, such as `Require Import Arith.`; timeout: seconds for each of two runs of
    coqc. Raises FileNotFoundError without coqc and bwrap, RuntimeError if bwrap cannot start.

    A model's file that compiles proves nothing: it may define the theorem away. So a second file, which
    the first cannot write to, states the theorem *before* it loads the first and takes the proof from
    it. Then it asks Coq what the proof assumes: this reveals Admitted, axioms and disabled checks. Lean
    is not supported, because its proofs are programs that can change what Lean prints.
    """
    proof = proof if "Qed." in proof else f"Proof.\n{proof}\nQed."
    written = f"{header}\nTheorem goal : {statement}.\n{proof}\n"
    compiled, messages = _coqc({"Solution.v": written.encode()}, timeout, memory_mb)
    if not compiled:
        return {"proved": False, "why": messages[-500:] or "timeout"}
    check = (
        f"{header}\nDefinition what_was_asked : Prop := {statement}.\nRequire Solution.\n"
        "Theorem goal : what_was_asked.\nProof.\nexact Solution.goal.\nQed.\nPrint Assumptions goal.\n"
    )
    both = {"Solution.vo": compiled, "Check.v": check.encode()}
    checked, messages = _coqc(both, timeout, memory_mb)
    proved = bool(checked) and messages == "Closed under the global context"
    return {"proved": proved, "why": "proved" if proved else messages[-500:] or "timeout"}


# The log and the compiled file are cut inside the sandbox, so nothing unbounded reaches the trainer's memory.
_COMPILE = """
cp /in/* . && ulimit -v {memory} && ulimit -t {seconds} && echo started >&2 || exit 1
coqc -q -R . "" {name}.v >log 2>&1
status=$?
head -c 20000 log >&2
[ $status = 0 ] && head -c {most} {name}.vo"""


def _coqc(files, timeout, memory_mb):
    """Compile the last of the files inside bubblewrap -> (the compiled file or b"", Coq's messages).

    The sandbox has read-only system folders, the files, and an empty /work in memory that vanishes at
    the end. It has no network, no other processes, no home and no environment. When bwrap ends,
    everything in it ends.
    """
    for program, package in {"coqc": "coq", "bwrap": "bubblewrap"}.items():
        if not shutil.which(program):
            missing = f"verify_proof does not find {program} (apt install {package}) on the PATH"
            raise FileNotFoundError(missing)
    name = [*files][-1].removesuffix(".v")
    script = _COMPILE.format(
        name=name, memory=memory_mb * 1024, seconds=math.ceil(timeout) + 1, most=MAX_PROOF
    )
    home = Path(shutil.which("coqc")).resolve().parents[1]  # /usr, or where opam has put Coq
    readable = "/usr /bin /lib /lib64 /etc/ocamlfind.conf /etc/ocamlfind.conf.d".split()
    fence = "--unshare-all --die-with-parent --new-session --cap-drop ALL --clearenv".split()
    for path in [*readable, str(home)]:
        fence += ["--ro-bind-try", path, path]
    fence += ["--setenv", "PATH", f"{home}/bin:/usr/bin:/bin", "--setenv", "HOME", "/work"]
    fence += "--proc /proc --dev /dev".split()
    work = ["--size", str(2**28), *"--tmpfs /work --chdir /work".split()]
    with tempfile.TemporaryDirectory() as given:
        for file, content in files.items():
            Path(given, file).write_bytes(content)
        command = ["bwrap", *fence, "--ro-bind", given, "/in", *work, "sh", "-c", script]
        try:
            run = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return b"", "timeout"
    started, mark, messages = run.stderr.decode("utf-8", "replace").partition("started\n")
    if not mark or started:  # no result: bwrap itself has failed
        raise RuntimeError(f"verify_proof: bubblewrap cannot start here: {started.strip()[:300]}")
    return run.stdout, messages.strip()
