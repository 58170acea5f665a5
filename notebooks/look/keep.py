"""keep.py - stores results with their origin, and puts them into the pages.

run the commands of the result "ranks" again:
    python -m notebooks.look.keep ranks
add a result, or give it another command:
    python -m notebooks.look.keep ranks -- COMMAND ..
only put the stored numbers into the pages:
    python -m notebooks.look.keep

The output of a command must end with a JSON object. Its "columns" and "rows"
are a table (the rows of several commands are joined), its "sentences" are for
the text of a page, and "seeds" is optional. The result is stored with
commands, day, commit and machine in results/tables.json. A page quotes it by a
link; write a new one as [?](..). This link has its table above it:

    | .. |

    [On 2026-11-26 ..](results/tables.json#ranks)

and this one is the sentence "sampled" of the result "sums":

    accuracy rises [from 0.213 to 0.782](results/tables.json#sums.sampled)
"""

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError, git_commit
from notebooks.command import parser_of, run_command

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "notebooks" / "results"
PAGES = [
    ROOT / "README.md",
    *map((ROOT / "notebooks").joinpath, ("MEASURED.md", "BUGS.md", "RACE.md")),
]

# ---- 1. Results ------------------------------------------------------------------------------------


def as_text(value):
    """Return JSON with one line for each record of a list, and for each field of an object that
    has lists or objects in it."""
    if isinstance(value, dict) and any(isinstance(item, (dict, list)) for item in value.values()):
        fields = [f"{json.dumps(key)}: {as_text(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(fields) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        records = [json.dumps(record, ensure_ascii=False) for record in value]
        return "[\n" + ",\n".join(records) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def write_json(path, result):
    partial = path.with_suffix(".partial")  # if stopped here, the old file is still whole
    partial.write_text(as_text(result) + "\n", encoding="utf-8")
    partial.replace(path)


def tables():
    return json.loads((RESULTS / "tables.json").read_text(encoding="utf-8"))


def load(name):
    """Return a result of tables.json, or of its own file."""
    own = RESULTS / f"{name}.json"
    return json.loads(own.read_text(encoding="utf-8")) if own.exists() else tables()[name]


# ---- 2. Where they come from -----------------------------------------------------------------------


def origin(*commands):
    """Return commands, date, commit and machine. The commit is "" if there is no git."""
    known = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", known.read_text()) if known.exists() else None
    return {
        "commands": [*commands],
        "date": str(datetime.date.today()),
        "commit": git_commit() or "",
        "machine": {"cpu": named[1] if named else platform.machine(), "cores": os.cpu_count()},
    }


def output_of(command):
    """Return the JSON object at the end of a command's output."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    last = done.stdout[done.stdout.rfind("\n{") + 1 :]
    if done.returncode or not last.startswith("{"):
        raise SystemExit(f"exit code {done.returncode}, or no JSON object at the end: {command}")
    return json.loads(last)


def measure(commands):
    """Run the commands and return their result. An output may give its own origin, as
    gpu_day.py's does."""
    outputs = [output_of(command) for command in commands]
    result = origin(*commands)
    result |= {key: outputs[0][key] for key in result if outputs[0].get(key)}
    result |= {"seeds": [], "columns": outputs[0]["columns"], "rows": [], "sentences": {}}
    for output in outputs:
        result["seeds"] = sorted({*result["seeds"], *output.get("seeds", [])})
        result["rows"] += output["rows"]
        result["sentences"] |= output.get("sentences", {})
        result |= {"curves": output["curves"]} if "curves" in output else {}
    return result


# ---- 3. Pages --------------------------------------------------------------------------------------

INNER = r"(?:[^\[\]]|\[[^\[\]]*\])+"  # the text of a link, which may contain [0.1 - 0.2]
LINK = re.compile(
    rf"(?P<table>(?:(?:^\|.*\n)+\n)?)\[(?P<text>{INNER})\]"
    r"\((?P<path>(?:notebooks/)?results/tables\.json#(?P<name>\w+)(?:\.(?P<sentence>\w+))?)\)",
    re.M,
)


def source(result):
    it = result["machine"]
    seeds = f", seeds {' '.join(map(str, result['seeds']))}" if result["seeds"] else ""
    place = it.get("card", f"{it['cores']} cores of {it['cpu']}")
    return f"On {result['date']} at commit {result['commit']}{seeds}, on {place}"


def quoted(link):
    """Return what replaces a link and the table before it."""
    result = load(link["name"])
    if link["sentence"]:
        said = result["sentences"][link["sentence"]]
        return f"{link['table']}[{said}]({link['path']})"
    lines = [result["columns"], ["---"] * len(result["columns"]), *result["rows"]]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{table}\n[{source(result)}]({link['path']})"


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("name", nargs="?", help="name of a result")
    parser.add_argument("command", nargs="*", help="after --; quote it if it has | or ; or --")
    args = parser.parse_args(argv)
    if args.name:
        if not args.command and args.name not in tables():
            why = f"there is no result {args.name}: give its command after --, or choose one of"
            raise DataError(f"{why} {', '.join(tables())}")
        commands = [" ".join(args.command)] if args.command else load(args.name)["commands"]
        result = measure(commands)
        write_json(RESULTS / "tables.json", {**tables(), args.name: result})
    for page in PAGES:
        page.write_text(LINK.sub(quoted, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
