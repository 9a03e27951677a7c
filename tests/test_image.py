"""The image itself: it is what its release says, says what it is, and can be changed only so that it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from conftest import Command
from containers import output, run
from trackbed.release import load, names

pytestmark = pytest.mark.container

SECRET = re.compile(r"(token|secret|passw|credential|api_?key|private_?key)\w*=|://[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)
# DeepSpeed's Adam for tensors on the CPU, and its collectives in shared memory: loaded without a compiler.
OPERATORS = """
import shutil, torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.op_builder import ShareMemCommBuilder
assert not shutil.which("gcc") and not shutil.which("c++")
weight = torch.nn.Parameter(torch.ones(100)); weight.grad = torch.ones(100)
DeepSpeedCPUAdam([weight], lr=0.5).step()
print("stepped to", round(float(weight[0]), 3), ShareMemCommBuilder().load().__name__)
"""
# fixture: what an NGC image declares of itself, in the variables and the spelling of NVIDIA's.
NGC = {
    "NVIDIA_PYTORCH_VERSION": "23.06",
    "PYTORCH_VERSION": "2.13.0",
    "DALI_VERSION": "2.4.0",
    "OPENMPI_VERSION": "4.1.4",
    "TRT_VERSION": "8.6.1.6+cuda12.0.1.011",
    "CUBLAS_VERSION": "12.1.3.1",
    "HPCX_VERSION": "2.15",
}


# fixture: an image that brings its own torch and says that it is NVIDIA's.
NGC_BASE = """
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
RUN cd /usr/local/lib/python3.11/dist-packages && mkdir torch torch-2.13.0a0+fixture.dist-info \
    && echo "__version__ = '2.13.0a0+fixture'" >torch/__init__.py \
    && printf 'Name: torch\\nVersion: 2.13.0a0+fixture\\n' >torch-2.13.0a0+fixture.dist-info/METADATA
ENV NVIDIA_PYTORCH_VERSION=26.11 PYTORCH_VERSION=2.13.0a0+fixture CUDA_VERSION=13.0.2.006
"""


@pytest.fixture(scope="module")
def changed(image: str) -> Iterator[str]:
    """The image after somebody set one of its versions with ENV."""
    name = f"{image}-changed"
    container = output("docker", "create", image, "true").strip()
    output("docker", "commit", "--change", "ENV DALI_VERSION=9.9", container, name)
    yield name
    run("docker", "rm", container)
    run("docker", "image", "rm", name)


def inside(image: str, script: str, *options: str) -> str:
    return output("docker", "run", "--rm", *options, image, "sh", "-c", script)


def test_a_fresh_image_has_no_drift_and_a_replaced_package_is_named(image: str) -> None:
    assert "no drift" in inside(image, "trackbed release check")
    said = inside(image, "pip install -q tensorboard==2.20.0; trackbed release check 2>&1; echo exit $?")
    wanted = load().components["tensorboard"].version
    assert f"error: tensorboard: 2.20.0 is loaded, the release wants {wanted}" in said
    assert f"pip install 'tensorboard=={wanted}'" in said
    assert re.findall(r"^(?:drift|missing) +(\S+)", said, re.MULTILINE) == ["tensorboard"]
    assert said.rstrip().endswith("exit 2")


def test_pip_does_not_replace_what_the_rest_is_built_against(image: str) -> None:
    said = inside(
        image, "pip install -q torch==2.12.0 2>&1; echo exit $?; python -c 'import torch; print(torch.__version__)'"
    )
    assert "exit 1" in said
    assert load().components["torch"].version in said.splitlines()[-1]


def test_an_image_is_checked_without_being_started(image: str, changed: str, trackbed: Command) -> None:
    good = trackbed("release", "check", "--image", image)
    assert (good.returncode, "no drift" in good.stdout) == (0, True), good.stderr
    bad = trackbed("release", "check", "--image", changed)
    assert bad.returncode == 2
    assert "error: dali: the image declares DALI_VERSION=9.9" in bad.stderr


def test_a_captured_release_passes_its_own_check(image: str) -> None:
    declare = [word for name, value in NGC.items() for word in ("--env", f"{name}={value}")]
    script = """
        unset TRACKBED_RELEASE TRACKBED_VARIANT
        trackbed release capture --output /tmp/r.toml && trackbed release check --release /tmp/r.toml
    """
    said = inside(image, script, *declare)
    assert "no drift" in said
    assert re.search(r"^ok +tensorrt +8\.6\.1\.6 ", said, re.MULTILINE)
    assert re.search(r"^ok +hpcx +2\.15 ", said, re.MULTILINE)


def test_deepspeeds_operators_are_built_in(image: str) -> None:
    said = output("docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp", image, "python", "-c", OPERATORS)
    assert "stepped to 0.5 deepspeed.ops.comm.deepspeed_shm_comm_op" in said


def test_a_signal_reaches_the_program_and_its_exit_code_is_the_containers(image: str) -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(43)); print('up', flush=True); signal.pause()"
    container = output("docker", "run", "--detach", image, "python", "-c", program).strip()
    try:
        while "up" not in output("docker", "logs", container):
            assert output("docker", "inspect", "--format", "{{.State.Running}}", container).strip() == "true"
        output("docker", "stop", "--time", "30", container)
        assert output("docker", "inspect", "--format", "{{.State.ExitCode}}", container).strip() == "43"
    finally:
        run("docker", "rm", "--force", container)


def test_it_changes_no_user_and_holds_no_key(image: str) -> None:
    find = "find / -xdev \\( -perm /6000 -type f -o -name 'ssh_host_*' -o -name 'id_rsa*' -o -name '*.key' \\)"
    assert inside(image, f"{find} 2>/dev/null; true", "--user", "0:0").split() == []


def test_it_says_what_it_is_and_holds_no_secret(image: str) -> None:
    config = json.loads(output("docker", "image", "inspect", image))[0]["Config"]
    history = output("docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    labels = [f"{name}={value}" for name, value in (config["Labels"] or {}).items()]
    assert config["User"] == "1000:0"
    assert [line for line in [*config["Env"], *labels, *history.splitlines()] if SECRET.search(line)] == []
    assert config["Labels"]["org.opencontainers.image.version"] == names()[-1]
    assert config["Labels"]["com.nvidia.dali.version"] == load().components["dali"].version
    assert "TENSORBOARD_PORT=6006" in config["Env"]


def test_on_an_ngc_image_only_what_is_missing_is_added(image: str) -> None:
    base, built = f"{image}-ngc-base", f"{image}-ngc"
    try:
        output("docker", "build", "--tag", base, "-", text=NGC_BASE)
        output("docker", "build", "--target", "gpu", "--build-arg", f"BASE_IMAGE={base}", "--tag", built, ".")
        said = inside(built, "python -c 'import torch; print(torch.__file__)'; env; ls /opt/venv/lib/*/*")
        assert "/usr/local/lib/python3.11/dist-packages/torch/__init__.py" in said
        assert not re.search(r"/opt/venv/\S*/(torch|triton|nvidia_nccl\S*)$|^torch$", said, re.MULTILINE)
        assert re.search(r"^nvidia_dali_cuda130-2\S+dist-info$", said, re.MULTILINE)
        assert "PYTORCH_VERSION=2.13.0a0+fixture" in said
        checked = run("docker", "run", "--rm", built, "trackbed", "release", "check")
        assert checked.returncode == 2
        assert "torch: 2.13.0a0+fixture is loaded, the release wants 2.13.0.*" in checked.stderr
        assert "error: dali" not in checked.stderr
    finally:
        run("docker", "image", "rm", "--force", built, base)
