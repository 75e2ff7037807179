"""The wheel of the course's package, for notebooks and programs of your own.

usage: python .ci/wheel.py FOLDER      writes FOLDER/head_by_head-1.0-py3-none-any.whl

`utils` is no name for an installed package. So `utils/` and the pages from which its
exercises are read lie in a package `head_by_head`, and every import of `utils` is one
of `head_by_head.utils`. The web site has the wheel; pip installs it from there.
"""

import json
import re
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import house

PACKAGE, VERSION = "head_by_head", "1.0"
NAME = f"{PACKAGE}-{VERSION}-py3-none-any.whl"
NEEDS = ("torch", "numpy", "matplotlib", "seaborn", "platformdirs", "tqdm")
IMPORTED = re.compile(
    r"(?<![\w./])utils(?=\.\w)|(?<=\bfrom )utils(?= import\b)|(?<=\bimport )utils\b"
)


def page(path):
    """A notebook's cells without outputs and pictures: the exercises are read here."""
    cells = house.loaded(path.read_bytes())["cells"]
    kept = "cell_type", "source"
    return json.dumps({"cells": [{key: each[key] for key in kept} for each in cells]})


def files():
    """(path from the root, text) of each file that the package takes."""
    for path in sorted((house.ROOT / "utils").rglob("*.*")):
        if path.suffix in {".py", ".js", ".css"} and "tests" not in path.parts:
            yield path.relative_to(house.ROOT), path.read_text(encoding="utf-8")
    for path in house.notebooks():
        yield path.relative_to(house.ROOT), page(path)
    for path in sorted((house.ROOT / "notebooks" / "exercises").glob("*.txt")):
        yield path.relative_to(house.ROOT), path.read_text(encoding="utf-8")


def described():
    """(name, text) of the files by which pip knows the package."""
    needed = (house.ROOT / "requirements.txt").read_text(encoding="utf-8")
    lowest = re.findall(rf"^({'|'.join(NEEDS)})(>=[\d.]+)", needed, re.M)
    lines = ["Metadata-Version: 2.1", f"Name: {PACKAGE}", f"Version: {VERSION}"]
    lines += ["Summary: Attention, Head by Head: the course's package"]
    needs = ["ipython", *map("".join, lowest)]  # jupyterlab brings ipython along
    lines += ["Requires-Python: >=3.10", *(f"Requires-Dist: {x}" for x in needs)]
    yield "METADATA", "\n".join(lines) + "\n"
    lines = ["Wheel-Version: 1.0", "Generator: head_by_head", "Root-Is-Purelib: true"]
    yield "WHEEL", "\n".join([*lines, "Tag: py3-none-any"]) + "\n"
    yield "LICENSE", (house.ROOT / "LICENSE").read_text(encoding="utf-8")


def build(folder):
    """Write the wheel into a folder and return its path; equal files, equal bytes."""
    about = f"{PACKAGE}-{VERSION}.dist-info"
    made = {
        f"{PACKAGE}/__init__.py": '"""The package of *Attention, Head by Head*."""\n'
    }
    for name, text in files():
        made[f"{PACKAGE}/{name.as_posix()}"] = IMPORTED.sub(f"{PACKAGE}.utils", text)
    made |= {f"{about}/{name}": text for name, text in described()}
    record = []
    with ZipFile(Path(folder, NAME), "w", ZIP_DEFLATED) as wheel:
        for name, text in made.items():
            data = text.encode("utf-8")
            digest = urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=")
            record.append(f"{name},sha256={digest},{len(data)}\n")
            wheel.writestr(ZipInfo(name), data, ZIP_DEFLATED)
        record.append(f"{about}/RECORD,,\n")
        wheel.writestr(ZipInfo(f"{about}/RECORD"), "".join(record), ZIP_DEFLATED)
    return Path(folder, NAME)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(build(sys.argv[1]))
