"""Print the entries of a locked file whose package this interpreter does not have, in any version.

Python's own library only, from 3.8 on: it runs on the interpreter of the base image.
"""

import re
import sys
from importlib import metadata

# These come with the base image's own torch and CUDA, under other names than the wheels'.
WITH_TORCH = re.compile(
    r"torch|triton|nvidia-(cublas|cuda-\w+|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink|nvshmem|nvtx)"
    r"(-cu\d+)?"
)


def normal(name: str) -> str:
    """A package's name as every index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(path: str) -> None:
    """Write what is missing to standard output, each entry as it is in the file."""
    installed = {normal(each.metadata["Name"]) for each in metadata.distributions() if each.metadata["Name"]}
    with open(path, encoding="utf-8") as file:
        entries = re.split(r"^(?=[A-Za-z0-9])", file.read(), flags=re.MULTILINE)
    for entry in entries:
        name = normal(entry.partition("==")[0])
        if "==" in entry and name not in installed and not WITH_TORCH.fullmatch(name):
            sys.stdout.write(entry)


if __name__ == "__main__":
    main(sys.argv[1])
