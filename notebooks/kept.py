"""kept.py - numbers that stay true: a result says what measured it, and a page links to it.

    python -m notebooks.kept                     pages that say something else than a result; results of older code
    python -m notebooks.kept --write             put the results' numbers into the pages
    python -m notebooks.kept --run ranks sums    measure again; after Ctrl-C the same command goes on

notebooks/results/NAME.json holds the commands, their commit, machine and the hash of each script that they reach
(comments, docstrings and formatting are no code). A command prints a JSON object as its last line: "columns" and "rows"
are the table (rows of several commands stand below each other), "sentences" are for the text of a page, "seeds" may be
there. Whatever else it holds is not kept. In a command {runs} is a folder for runs, of another name when the code
is another. A page quotes a result by a link to it:

    | .. |
                                                                        the table above this link:
    [Measured on 2026-11-23 ..](results/ranks.json)
    accuracy rises [from .213 to .764](results/sums.json#sampled)       its sentence "sampled"

Behind the link stands (older code) if the commands, or scripts that they use, are no longer those that were measured.
A new result begins as a file with its "commands", and "also", patterns of files that they use without naming them. With
"computed": true its link says "Computed on".

What was computed stands between <!-- computed until results/NAME.json --> and <!-- end -->. Once there is such a result,
--write puts its table in that place.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "notebooks" / "results"
PAGES = [ROOT / page for page in ("README.md", "notebooks/MEASURED.md")]
FOLDERS = [ROOT / name for name in (".", "tests")]
TRAINS = " ".join(f"notebooks/{name}/*" for name in "methods rewards tasks recipes tiny".split())
# The hash of a script -> of the one that was measured, where what differs changes no result (MEASURED.md says more).
SAME = {
    # rlvr.py, eval.py, train.py, entropy.py: without --sample-tokens a GPU is asked what fits
    "5750f6d0a0478ae4": "b11e120d454b2233",  # and rlvr.py: what is read after a reply of an environment
    "1ca3171cff3a845d": "1108eb08fbd65772",
    "854f4836d935f813": "3e577a5f55ba24d7",
    "204e860b3321a2a0": "169960c210d14438",
    "951d43804b01f0b6": "74b8ed9196d1361d",  # bench_sampling.py: what only a GPU has
    "ae3e72e635f01099": "e150718c124506f7",  # bench_training.py: cards; on a GPU an update is timed three times
    "e4acd037b26ac6b4": "878b3263e350a708",  # grading.py: a truth of two units or numbers
    "1664e75e47d94b70": "0938c0d3bb5afa8f",  # verifiers.py: bad tests of programs are refused; no idle threads
    "eacd1c85220b6d4a": "7a9ff5b56dbd9e40",  # model.py: which errors of a template are explained
    "c525ce818274e9eb": "17275366968fbdc4",  # gdpo.py: a failed verifier
    "b44f83f4590b8f90": "52bcbf4e2565b596",  # pass_at_k.py: where its k is checked
}

# ---- 1. A result, and whether the code is still the one that measured it ---------------------------


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
        return SAME.get(code, code), [folder / f"{name}.py" for name in names for folder in FOLDERS]
    return digest(path.read_bytes()), files_in(path.read_text()) if path.suffix == ".txt" else []


def files_in(text):
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"-m (notebooks[\w.]+)", text)]
    return [ROOT / name for name in [*modules, *re.findall(r"[\w./-]+\.(?:py|txt|jsonl)\b", text)]]


def hashes(commands, also=""):
    """{file: hash} of what commands name, of what that imports, and of the files of the patterns in `also`."""
    found = {}
    todo = files_in(" ".join(commands))
    for pattern in also.split():
        todo += ROOT.glob(pattern)
    while todo:
        path = todo.pop().resolve()
        name = str(path).removeprefix(f"{ROOT}/")
        if path.is_file() and name not in found:
            found[name], uses = read_file(path)
            todo += uses
    return dict(sorted(found.items()))


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def changed_since(name):
    """What a result was measured without: [] if it is as of today."""
    result = load(name)
    before = result.get("scripts", {})
    now = hashes(result["commands"], result.get("also", ""))
    return [file for file in sorted({*before, *now}) if before.get(file) != now.get(file)]


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
    partial = path.with_suffix(".partial")  # whoever is stopped leaves the old file or the new one
    partial.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")
    partial.replace(path)


# ---- 2. Measure ------------------------------------------------------------------------------------


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
    line = ""
    for line in process.stdout:
        print(line if len(line) < 2000 else "(its result)\n", end="", flush=True)
    if process.wait() != 0:
        raise SystemExit(f"exit code {process.returncode}: {command}")
    try:
        output = json.loads(line)
        return {**output, "columns": [*output["columns"]], "rows": [*output["rows"]]}
    except (ValueError, TypeError, KeyError):
        raise SystemExit(f"the last line is no object with a table: {command}") from None


def measure(name):
    """Run the commands of a result that have not been run with today's code, and write it."""
    result = load(name)
    scripts = hashes(result["commands"], result.get("also", ""))
    folder = ROOT / "runs" / "results"
    runs = folder / digest(json.dumps(hashes(["python train.py"], TRAINS)).encode())
    state = folder / f"{name}-{digest(json.dumps(scripts).encode())}.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(state.read_text()) if state.exists() else {}
    for command in result["commands"]:
        if command not in done:
            done[command] = last_object(command.replace("{runs}", str(runs.relative_to(ROOT))))
            state.write_text(json.dumps(done))
    outputs = [done[command] for command in result["commands"]]
    asked = {key: result[key] for key in ("commands", "also", "computed") if key in result}
    write_json(RESULTS / f"{name}.json", asked | origin(scripts) | joined(outputs))
    state.unlink()


def origin(scripts):
    """Day, commit, machine and scripts."""
    day = str(datetime.date.today())
    return {"date": day, "commit": commit(scripts), "machine": machine(), "scripts": scripts}


def commit(scripts):
    """Of this checkout; dirty if one of the scripts is not as it has it, and "" where there is no git."""

    def git(*words):
        try:
            return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout
        except OSError:
            return ""

    changed = git("status", "--porcelain", "--", *scripts, ":!notebooks/results")
    return git("rev-parse", "--short", "HEAD").strip() + ("-dirty" if changed else "")


def name_commit(name):
    """A result from a machine without git is of this commit if its scripts are."""
    result = load(name)
    if result.get("commit") == "" and not changed_since(name):
        write_json(RESULTS / f"{name}.json", {**result, "commit": commit(result["scripts"])})


def joined(outputs):
    """What the commands printed as one result: their rows below each other."""
    if any(output["columns"] != outputs[0]["columns"] for output in outputs):
        raise SystemExit("the commands print tables with different columns")
    return {
        "seeds": sorted({seed for output in outputs for seed in output.get("seeds", [])}),
        "columns": outputs[0]["columns"],
        "rows": [row for output in outputs for row in output["rows"]],
        "sentences": {k: v for output in outputs for k, v in output.get("sentences", {}).items()},
    }


# ---- 3. Pages --------------------------------------------------------------------------------------

INNER = r"(?:[^\[\]]|\[[^\[\]]*\])+"  # the text of a link, which may hold [0.1 - 0.2]
LINK = re.compile(
    rf"(?P<table>(?:(?:^\|.*\n)+\n)?)\[(?P<text>{INNER})\]"
    r"\((?P<path>(?:notebooks/)?results/(?P<name>\w+)\.json)(?:#(?P<sentence>\w+))?\)"
    r"(?: \(older code\))?",
    re.M,
)


def source(result):
    it = result["machine"]
    seeds = f", seeds {' '.join(map(str, result['seeds']))}" if result["seeds"] else ""
    if result.get("computed"):
        return f"Computed on {result['date']} at commit {result['commit']}"
    known = f" at commit {result['commit']}" if result["commit"] else ""
    card = f" and one {it['card']}" if "card" in it else ""
    return (
        f"Measured on {result['date']}{known}{seeds}, on {it['cores']} cores of {it['cpu']}{card} "
        f"(load {it['load']}), Python {it['python']}, PyTorch {it['torch']}"
    )


def quoted(link):
    """What belongs in place of a link, and of the table before it."""
    name = link["name"]
    result = load(name)
    old = " (older code)" if changed_since(name) else ""
    if link["sentence"]:
        said = result["sentences"][link["sentence"]]
        return f"{link['table']}[{said}]({link['path']}#{link['sentence']}){old}"
    lines = [result["columns"], ["---"] * len(result["columns"]), *result["rows"]]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{table}\n[{source(result)}]({link['path']}){old}"


COMPUTED = re.compile(r"<!-- computed until (\S+) -->\n.*?<!-- end -->\n", re.S)


def measured(text):
    """A page, with a link to a result in place of what was computed before there was one."""
    for computed in COMPUTED.finditer(text):
        if (RESULTS.parent / computed[1]).exists():
            text = text.replace(computed[0], f"[?]({computed[1]})\n")
    return text


def plain(quote):
    return " ".join(quote.removesuffix(" (older code)").split())


def differing(text):
    """The links of a page, each with its table, that say something else than their results."""
    return [link[0] for link in LINK.finditer(text) if plain(quoted(link)) != plain(link[0])]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = sorted(path.stem for path in RESULTS.glob("*.json") if "commands" in load(path.stem))
    parser.add_argument("--run", nargs="+", default=[], metavar="NAME", choices=names)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    for name in args.run:
        measure(name)
    if args.write:
        for name in names:
            name_commit(name)
    wrong = 0
    for page in PAGES:
        text = measured(page.read_text())
        if args.write:
            page.write_text(LINK.sub(quoted, text))
            continue
        for quote in differing(text):
            wrong += 1
            print(f"{page.name} says something else than its result: ..{quote[-90:]}")
    for name in names:
        if changed := changed_since(name):
            print(f"{name}: older code, of {len(changed)} files: {' '.join(changed)[:100]}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(bool(main()))
