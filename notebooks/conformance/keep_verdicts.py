"""keep_verdicts.py - write what an adapter gives into verdicts.json, from which notebook 9 makes its table.

    python notebooks/conformance/keep_verdicts.py ADAPTER.py [PACKAGE ..]       the packages whose versions count

Run it in a Python in which the adapter's project is installed.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

from check import check, load_adapter

KEPT = Path(__file__).resolve().parent / "verdicts.json"


def main(path, *packages):
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    offered = [result for result in check(load_adapter(path)) if result.verdict != "not offered"]
    name = path.partition(".py:")[2] or Path(path).stem
    kept[name] = {
        "versions": {package: version(package) for package in packages},
        "cases": {result.case["name"]: [result.verdict, result.what] for result in offered},
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(kept.items())]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
