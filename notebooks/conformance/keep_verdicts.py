"""keep_verdicts.py - write what an adapter gives into verdicts.json, from which notebook 9 makes its board.

    python notebooks/conformance/keep_verdicts.py ADAPTER.py [PACKAGE ..]       the packages whose versions count

Run it in a Python in which the adapter's project is installed, or with KIT_SRC (checkout.py). What is kept: the first
line of the adapter's docstring up to its colon, which names the project and its commit, and what it offers.
"""

import argparse
import datetime
import json
from importlib.metadata import version
from pathlib import Path

from check import check, load_adapter

KEPT = Path(__file__).resolve().parent / "verdicts.json"


def cases_of(adapter):
    """{case: its verdict, and what it says} of what the adapter offers."""
    found = {one.case["name"]: [one.verdict, one.what] for one in check(adapter)}
    return {name: kept for name, kept in found.items() if kept[0] != "not offered"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("adapter", help="a Python file, or FILE.py:CLASS")
    parser.add_argument("packages", nargs="*", help="installed packages whose versions are kept")
    flags = parser.parse_args()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    adapter = load_adapter(flags.adapter)
    kept[flags.adapter.removesuffix(".py").split("/")[-1].split(":")[-1]] = {
        "project": adapter.__doc__.split(":")[0],
        "versions": {package: version(package) for package in flags.packages},
        "date": str(datetime.date.today()),
        "cases": cases_of(adapter),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(kept.items())]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
