"""Print what pip and uv may not replace in the environment, as a constraint: what the rest is built against.

The interpreter of the environment runs it, so that what an NGC image brings in is seen too. Python's own library only.
"""

import re
import sys
from importlib import metadata

CUDA = re.compile(r"nvidia-.*|cuda-.*|triton|pytorch-triton")


def normal(name: str) -> str:
    """A package's name as every index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(path: str) -> None:
    """Write a line a package: those named in the file, and all of CUDA's."""
    with open(path, encoding="utf-8") as file:
        held = {normal(line.strip()) for line in file if not line.startswith("#")}
    found = {normal(each.metadata["Name"]): each.version for each in metadata.distributions() if each.metadata["Name"]}
    for name, version in sorted(found.items()):
        if name in held or CUDA.fullmatch(name):
            sys.stdout.write(f"{name}=={version}\n")


if __name__ == "__main__":
    main(sys.argv[1])
