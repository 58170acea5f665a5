"""results.py - no number is typed by hand: pages take their tables from the files that measuring commands wrote.

    python -m notebooks.results                  what is measured, in how many minutes, and what of it is stale
    python -m notebooks.results --run [NAMES]    measure what is stale; after Ctrl-C the same command goes on
    python -m notebooks.results --write          put the tables into the pages
    python -m notebooks.results --check          exit code 1 if a page says something else than its result
    python -m notebooks.results --stale          what was measured with other code than today's, and in which files

A measurement is one or more commands. Each prints a JSON object as its last line: "columns" and "rows" are the table
(rows of several commands stand below each other), "sentences" are for the text of a page, "seeds" may be there, and
whatever else it holds is kept too. The result is notebooks/results/NAME.json. A page asks for it between two marks:

    <!-- results: ranks -->                                          the table
    <!-- end -->
    accuracy rises <!-- results: main sampled -->..<!-- end -->      the sentence "sampled"

A result is stale if its commands, or the code of a script that they use, are no longer those that were measured;
comments, docstrings and formatting are no code. Its tables then say so themselves, and --check lets them.
"""

import argparse
import ast
import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


RESULTS = ROOT / "notebooks" / "results"
PAGES = [ROOT / page for page in ("README.md", "notebooks/README.md", "notebooks/MEASURED.md")]
FOLDERS = [ROOT / name for name in (".", "tests")]

# ---- 1. What is measured ---------------------------------------------------------------------------


@dataclass
class Measurement:
    """One table of results/measurements.toml, where the fields are explained."""

    commands: list
    minutes: float
    also: str = ""
    runs_of: str = ""


def measurements():
    tables = tomllib.loads((ROOT / "notebooks" / "results" / "measurements.toml").read_text())
    return {name: Measurement(**fields) for name, fields in tables.items()}


MEASUREMENTS = measurements()

# ---- 2. Is a result stale? -------------------------------------------------------------------------


def outline(node):
    """A syntax tree as nested lists, without docstrings; the same in every version of Python."""
    if isinstance(node, list):
        return [outline(item) for item in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        if ast.get_docstring(node, clean=False) is not None:
            fields["body"] = node.body[1:]
    told = [[name, outline(value)] for name, value in fields.items() if value not in (None, [])]
    return [type(node).__name__, *told]


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


@functools.cache
def read_code(text):
    """A script -> the hash of its code, and the modules that it imports."""
    tree = ast.parse(text)
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return digest(json.dumps(outline(tree)).encode()), names


def read_file(path):
    """-> the hash of a file, of a script that of its code; the files that it imports, or names as flags."""
    if path.suffix == ".py":
        code, names = read_code(path.read_text())
        names = [name.replace(".", "/") for name in names]
        return code, [folder / f"{name}.py" for name in names for folder in FOLDERS]
    uses = files_in(path.read_text()) if path.suffix == ".txt" else []
    return digest(path.read_bytes()), uses


def files_in(text):
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"-m (notebooks[\w.]+)", text)]
    return [ROOT / name for name in [*modules, *re.findall(r"[\w/]+\.(?:py|txt|jsonl)\b", text)]]


def scripts_of(name):
    """{file: hash} of all that a measurement depends on."""
    measurement = MEASUREMENTS[name]
    found = scripts_of(measurement.runs_of) if measurement.runs_of else {}
    todo = files_in(" ".join(measurement.commands))
    for pattern in measurement.also.split():
        todo += ROOT.glob(pattern)
    while todo:
        path = todo.pop().resolve()
        if path.is_file() and str(path.relative_to(ROOT)) not in found:
            found[str(path.relative_to(ROOT))], uses = read_file(path)
            todo += uses
    return dict(sorted(found.items()))


def load(name):
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def changed_since(name):
    """What a result was measured without: [] if it is as of today."""
    result = load(name)
    if not result:
        return ["not measured yet"]
    before = result["scripts"]
    now = scripts_of(name)
    changed = [file for file in sorted({*before, *now}) if before.get(file) != now.get(file)]
    return changed + ["its commands"] * (result["commands"] != MEASUREMENTS[name].commands)


# ---- 3. Measure ------------------------------------------------------------------------------------


def runs_folder(name):
    """Of one state of the code. seeds.py only looks at runs: another look needs no other runs."""
    owner = MEASUREMENTS[name].runs_of or name
    code = {k: v for k, v in scripts_of(owner).items() if not k.endswith("claims/seeds.py")}
    return f"runs/results/{owner}-{digest(json.dumps(code).encode())[:8]}"


def machine():
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def last_object(command):
    """Run a command -> the JSON object that is its last line. Its errors, and what it prints, are to be seen."""
    print(f"$ {command}", flush=True)
    process = subprocess.Popen(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = [""]
    for line in process.stdout:
        lines.append(line)
        print(line if len(line) < 2000 else "(its result)\n", end="", flush=True)
    if process.wait() != 0:
        raise RuntimeError(f"exit code {process.returncode}: {command}")
    try:
        output = json.loads(lines[-1])
        return {**output, "columns": [*output["columns"]], "rows": [*output["rows"]]}
    except (ValueError, TypeError, KeyError):
        raise RuntimeError(f"the last line is no object with a table: {command}") from None


def measure(name):
    """Run the commands of a measurement that have not been run with today's code, and write its result."""
    scripts = scripts_of(name)
    commands = MEASUREMENTS[name].commands
    runs = runs_folder(name)
    kept = ROOT / "runs" / "results" / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    state = json.loads(kept.read_text()) if kept.exists() else {}
    if state.get("scripts") != scripts:
        state = {"scripts": scripts, "outputs": {}}
    for command in commands:
        if command not in state["outputs"]:
            state["outputs"][command] = last_object(command.replace("{runs}", runs))
            kept.write_text(json.dumps(state))
    outputs = [state["outputs"][command] for command in commands]
    RESULTS.mkdir(exist_ok=True)
    result = {"commands": commands, **origin(scripts), "scripts": scripts, **joined(name, outputs)}
    write_json(RESULTS / f"{name}.json", result)
    kept.unlink()


def write_json(path, result):
    """A line for each field, and for each record where a field is a list of them: short, and a change of one number is
    one changed line."""
    fields = []
    for key, value in result.items():
        text = json.dumps(value, ensure_ascii=False)
        if value and isinstance(value, list) and isinstance(value[0], dict):
            records = [json.dumps(record, ensure_ascii=False) for record in value]
            text = "[\n" + ",\n".join(records) + "\n]"
        fields.append(f"{json.dumps(key, ensure_ascii=False)}: {text}")
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")


def origin(scripts):
    """Day, commit and machine. The commit is dirty if one of the scripts is not as it has it: that a result was written
    a minute before changes no other one."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout

    changed = git("status", "--porcelain", "--", *scripts, ":!notebooks/results")
    return {
        "date": str(datetime.date.today()),
        "commit": git("rev-parse", "--short", "HEAD").strip() + ("-dirty" if changed else ""),
        "machine": machine(),
    }


def joined(name, outputs):
    """What the commands printed as one result: their rows below each other, the rest one by one."""
    columns = {tuple(output["columns"]) for output in outputs}
    if len(columns) > 1:
        raise RuntimeError(f"{name}: the commands print tables with different columns")
    table = ("columns", "rows", "sentences", "seeds")
    return {
        "seeds": sorted({seed for output in outputs for seed in output.get("seeds", [])}),
        "columns": outputs[0]["columns"],
        "rows": [row for output in outputs for row in output["rows"]],
        "sentences": {k: v for output in outputs for k, v in output.get("sentences", {}).items()},
        "details": [{k: v for k, v in output.items() if k not in table} for output in outputs],
    }


def run_queue(names):
    """Measure what is stale of these (all, if there are none). One that fails does not stop the others."""
    failed = []
    for name in names or MEASUREMENTS:
        if changed_since(name):
            print(f"=== {name}: about {MEASUREMENTS[name].minutes} minutes", flush=True)
            try:
                measure(name)
            except RuntimeError as error:
                failed.append(f"{name}: {error}")
    return failed


# ---- 4. Pages --------------------------------------------------------------------------------------

MARKED = re.compile(r"(<!-- results: (\w+) ?(\w*) -->)(.*?)(<!-- end -->)", re.S)
STALE = re.compile(r"\s*\*\(Stale: [^)]*\)\*")


def source(result):
    it = result["machine"]
    seeds = f", seeds {' '.join(map(str, result['seeds']))}" if result["seeds"] else ""
    return (
        f"Measured on {result['date']} at commit {result['commit']}{seeds}, on {it['cores']} cores of {it['cpu']} "
        f"(load {it['load']}), Python {it['python']}, PyTorch {it['torch']}."
    )


def text_of(name, sentence):
    """What belongs between the marks, without a word on being stale."""
    result = load(name)
    if not result:
        raise ValueError(f"there is no notebooks/results/{name}.json: --run {name}")
    if sentence:
        return result["sentences"][sentence]
    lines = [result["columns"], ["---"] * len(result["columns"]), *result["rows"]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n{table}\n\n*{source(result)}*\n"


def filled(text, with_notes):
    """A page with all of its tables; with_notes: those that are stale say so."""

    def fill(match):
        start, name, sentence, _, end = match.groups()
        new = text_of(name, sentence)
        changed = changed_since(name) if with_notes else []
        if changed:
            note = f"*(Stale: {len(changed)} of its files have changed since.)*"
            new = f"{new} {note}" if sentence else f"{new}\n{note}\n"
        return f"{start}{new}{end}"

    return MARKED.sub(fill, text)


def without_notes(text):
    return MARKED.sub(lambda match: STALE.sub("", match[0]), text)


def differing_pages():
    """Pages that say something else than their results, but for being stale."""

    def plain(text):
        return re.sub(r"\s+", " ", without_notes(text))

    texts = {page: page.read_text() for page in PAGES}
    return [page for page, text in texts.items() if plain(text) != plain(filled(text, False))]


def overview():
    pages = {page.name: page.read_text() for page in PAGES}
    for name, measurement in MEASUREMENTS.items():
        shown = [page for page, text in pages.items() if f"<!-- results: {name} " in text]
        changed = changed_since(name)
        state = f"stale ({', '.join(changed)})" if changed else "as of today"
        print(f"{name:14} {measurement.minutes:5} min  {', '.join(shown) or '-'}: {state}")
    print(f"all: {sum(m.minutes for m in MEASUREMENTS.values()) / 60:.1f} hours of one core")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", nargs="*", metavar="NAME", choices=[*MEASUREMENTS])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stale", action="store_true")
    args = parser.parse_args(argv)
    if args.run is not None:
        failed = run_queue(args.run)
        sys.exit("\n".join(failed) or None)
    if args.write:
        texts = {page: filled(page.read_text(), with_notes=True) for page in PAGES}
        for page, text in texts.items():
            page.write_text(text)
    elif args.check:
        pages = [f"{page.relative_to(ROOT)} differs from its results" for page in differing_pages()]
        sys.exit("\n".join(pages) or None)
    elif args.stale:
        for name in MEASUREMENTS:
            if changed := changed_since(name):
                print(f"{name}: {', '.join(changed)}")
    else:
        overview()


if __name__ == "__main__":
    main()
