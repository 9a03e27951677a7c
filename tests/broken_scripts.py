"""What somebody did in a container before they validated there: scripts for the rows of broken_environments.CASES."""

from __future__ import annotations

RUNS = "/var/lib/trackbed/runs"
# As the training writes checkpoints (train/checkpoint.py): two whole ones, of which the newest is then cut off.
TRUNCATED = f"""
mkdir -p {RUNS}/demo/checkpoints && cd {RUNS}/demo/checkpoints && touch ../job.yaml
for step in 2 4; do
    mkdir step-0000000$step && head -c 4096 /dev/zero >step-0000000$step/random-rank00000.pt
    hash=$(sha256sum step-0000000$step/random-rank00000.pt | cut -d' ' -f1)
    printf '{{"step": %d, "world": 1, "files": {{"random-rank00000.pt": {{"bytes": 4096, "sha256": "%s"}}}}}}' \\
        $step $hash >step-0000000$step/manifest.json
done
echo step-00000004 >latest
truncate -s 1000 step-00000004/random-rank00000.pt
"""
PASS_OVER = f"mv {RUNS}/demo/checkpoints/step-00000004 {RUNS}/demo/checkpoints/bad-step-00000004"
HALF_WRITTEN = f"""
mkdir -p {RUNS}/demo/checkpoints/.step-00000004.partial && cd {RUNS}/demo && touch job.yaml
head -c 3145728 /dev/zero >checkpoints/.step-00000004.partial/random-rank00000.pt
touch -d '3 hours ago' checkpoints/.step-00000004.partial/random-rank00000.pt checkpoints/.step-00000004.partial
"""
BUILD = "/tmp/.cache/torch_extensions/py311_cpu/cpu_adam"
STALE_LOCK = f"mkdir -p {BUILD} && touch -d '2 hours ago' {BUILD}/lock"
LIBGOMP = "/opt/venv/lib/python3.11/site-packages/torch/lib/libgomp.so.1"
SHADOW = f"mkdir /tmp/other && cp {LIBGOMP} /tmp/other/"
LISTENING = """
python3 -m http.server 29500 >/dev/null 2>&1 & server=$!
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 29500))' 2>/dev/null; do sleep 0.1; done
"""
PIP = "PIP_CONSTRAINT= pip install --quiet --disable-pip-version-check --no-deps"
# As the remedy prints it, with this release's own number.
PINNED_PROTOBUF = "pip install --quiet --disable-pip-version-check --no-deps $(grep -x 'protobuf==.*' $PIP_CONSTRAINT)"
INSTALL = "apt-get update -qq >&2 && apt-get install -qq --no-install-recommends"
COMPILER = f"{INSTALL} g++ python3-dev >&2"
# Root's part ends with the installation.
AS_USER = "exec setpriv --reuid 1000 --regid 0 --clear-groups"
SOCKET = "/var/run/docker.sock"
AS_ITS_GROUP = f"exec setpriv --reuid 1000 --regid 0 --groups $(stat -c %g {SOCKET})"
# Debian's library that moves the clock of one process tree, and nobody else's.
FAKETIME = f"{INSTALL} faketime >&2"
AN_HOUR_AHEAD = f"""{FAKETIME}; {AS_USER} env LD_PRELOAD=$(find /usr/lib -name libfaketime.so.1) FAKETIME=+1h \\
    NO_FAKE_STAT=1 VALIDATE"""
