"""The image's entrypoint: hooks, the program in its place, the banner's verdicts. All hardware here is a fixture."""

from __future__ import annotations

import itertools
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import ROOT

IMAGE = ROOT / "image"
SCRIPTS = [IMAGE / "entrypoint", *sorted((IMAGE / "entrypoint.d").glob("*.sh"))]
PATIENCE = 60
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Jan 10 20:00:00 UTC 2025\nGCC version:  11.4.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (me@U22-I3)\nGCC version:  12.2.0\n"
ELSEWHERE = OPEN.format("580.95.05").encode().replace(b"(me@U22-I3)", b"\xd1\xe1 29 \xe8\xfe\xed")
GPU = {"TRACKBED_VARIANT": "gpu"}
CPU = {"TRACKBED_VARIANT": "cpu"}


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        return self.stdout + self.stderr


@dataclass(frozen=True)
class Box:
    """A folder that stands for a container: an entrypoint with its hooks, and what is asked of the machine."""

    folder: Path
    entrypoint: Path
    prefix: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def hooks(self) -> Path:
        return self.entrypoint.parent / "entrypoint.d"

    def hook(self, name: str, text: str) -> Path:
        path = self.hooks / name
        path.write_text(text, "utf-8")
        return path

    def command(self, *words: str) -> list[str]:
        return [*self.prefix, "/bin/sh", str(self.entrypoint), *words]

    def start(self, *words: str, stdin: str = "", **environment: str) -> Done:
        done = subprocess.run(
            self.command(*words), input=stdin, env={**self.environment, **environment}, cwd=self.folder,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def banner(self, **environment: str) -> list[str]:
        """The banner's lines; the start itself must go on, whatever the verdicts are."""
        done = self.start("echo", "started", TRACKBED_BANNER="always", **environment)
        assert (done.code, done.stdout) == (0, "started\n"), done.stderr
        return done.stderr.splitlines()

    def verdict(self, word: str, **environment: str) -> str:
        """The one verdict that has this word in it; "" when there is none."""
        lines = [line for line in self.banner(**environment)[1:-1] if word in line]
        assert len(lines) <= 1, lines
        return "".join(lines)


def on_terminal(box: Box, *words: str, streams: str = "stdout stderr", **environment: str) -> Done:
    """Started with a pseudo-terminal as stdin and as these streams."""
    ours, theirs = pty.openpty()
    stdout, stderr = (theirs if name in streams.split() else subprocess.PIPE for name in ("stdout", "stderr"))
    shown: list[bytes] = []
    with subprocess.Popen(
        box.command(*words), stdin=theirs, env={**box.environment, **environment}, cwd=box.folder,
        stdout=stdout, stderr=stderr, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        reader = threading.Thread(target=drain, args=(ours, shown))
        reader.start()
        out, err = process.communicate(timeout=PATIENCE)
        reader.join(PATIENCE)
    os.close(ours)
    screen = b"".join(shown).decode().replace("\r\n", "\n")
    return Done(process.returncode, screen if out is None else out.decode(), screen if err is None else err.decode())


def drain(terminal: int, shown: list[bytes]) -> None:
    """Reads a pseudo-terminal until the last program on its other end is gone, which Linux reports as an error."""
    try:
        while block := os.read(terminal, 65536):
            shown.append(block)
    except OSError:
        return


def tool(box: Box, name: str, text: str) -> None:
    """FIXTURE: a program that wins over the system's own of that name."""
    path = box.folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)


def shared_memory(box: Box, kilobytes: str) -> None:
    """FIXTURE: `df` as it shows a /dev/shm of this size."""
    tool(box, "df", f"printf '1K-blocks\\n%s\\n' '{kilobytes}'")


def devices(box: Box, *names: str) -> None:
    """FIXTURE: files that stand for NVIDIA's device nodes."""
    for name in names:
        (box.folder / "dev" / name).touch()


def driver(box: Box, text: str | bytes) -> None:
    """FIXTURE: what the kernel says of the NVIDIA driver."""
    path = box.folder / "proc" / "driver" / "nvidia" / "version"
    path.parent.mkdir(parents=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def make_box(folder: Path, entrypoint: Path) -> Box:
    for name in ("bin", "dev/shm", "proc", "runs", "cache", "tmp"):
        (folder / name).mkdir(parents=True)
    environment = {
        "PATH": f"{folder}/bin:/usr/local/bin:/usr/bin:/bin",
        "TRACKBED_DEV": str(folder / "dev"),
        "TRACKBED_PROC": str(folder / "proc"),
        "TRACKBED_RUNS": str(folder / "runs"),
        "TRACKBED_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
    }
    box = Box(folder=folder, entrypoint=entrypoint, environment=environment)
    shared_memory(box, "4194304")
    return box


@pytest.fixture
def bare(tmp_path: Path) -> Box:
    """The entrypoint with no hooks but those a test writes; its path has a space and a pattern in it."""
    image = tmp_path / "an image [1]"
    (image / "entrypoint.d").mkdir(parents=True)
    shutil.copy(IMAGE / "entrypoint", image)
    return make_box(tmp_path / "box", image / "entrypoint")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """The entrypoint with the image's own hooks, on a machine of fixtures that is in order and has no GPU."""
    return make_box(tmp_path / "box", IMAGE / "entrypoint")


def read_only(box: Box, folder: Path) -> Box:
    """Takes the write permission of a folder away, and from root the power to write in spite of it."""
    folder.chmod(0o555)
    if not os.access(folder, os.W_OK):
        return box
    return Box(box.folder, box.entrypoint, ["setpriv", "--bounding-set=-all", "--inh-caps=-all"], box.environment)


# The program.


def test_the_program_takes_the_shells_place_and_gets_the_signals(box: Box) -> None:
    program = (
        "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(43)); "
        "print(os.getpid(), flush=True); signal.pause()"
    )
    command = box.command(sys.executable, "-c", program)
    with subprocess.Popen(command, env=box.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 43


@pytest.mark.parametrize("code", [0, 1, 2, 77, 255])
def test_the_programs_exit_code_is_the_containers(box: Box, code: int) -> None:
    assert box.start("sh", "-c", f"exit {code}") == Done(code, "", "")


def test_the_programs_words_input_and_output_are_its_own(bare: Box) -> None:
    bare.hook("10-reads.sh", "cat >/dev/null\n")
    words = ["a b", "", "*", "$HOME", "-n", "it's", "two\nlines"]
    shown = bare.start("sh", "-c", 'cat; printf "<%s>" "$@"', "sh", *words, stdin="given\n")
    assert shown == Done(0, "given\n" + "".join(f"<{word}>" for word in words), "")


def test_the_program_has_no_files_open_but_its_own(box: Box) -> None:
    assert box.start("sh", "-c", "ls /proc/$$/fd").stdout.split() == ["0", "1", "2"]


def test_group_0_may_write_what_the_container_wrote(bare: Box) -> None:
    bare.hook("10-umask.sh", "umask 0077\n")
    assert bare.start("sh", "-c", "umask").stdout.strip() == "0002"


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("--help", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_started_is_named(box: Box, program: str, code: int) -> None:
    done = box.start(program, "argument")
    assert done.code == code
    assert f"error: {program}: this program was not found" in done.stderr
    assert "  mend:   " in done.stderr


def test_without_a_program_there_is_help(box: Box) -> None:
    tool(box, "trackbed", 'echo "trackbed $*"')
    assert box.start() == Done(0, "trackbed --help\n", "")
    assert on_terminal(box, streams="stderr", TRACKBED_BANNER="never").stdout == "trackbed --help\n"


@pytest.mark.parametrize("shells", [["bash", "sh"], ["sh"]])
def test_without_a_program_there_is_a_shell_on_a_terminal(bare: Box, shells: list[str]) -> None:
    for shell in shells:
        tool(bare, shell, f'echo "a shell: {shell} $#"')
    (bare.folder / "bin" / "readlink").symlink_to(shutil.which("readlink") or "")
    assert on_terminal(bare, PATH=str(bare.folder / "bin")).stdout == f"a shell: {shells[0]} 0\n"


# Hooks.


def test_hooks_run_in_the_order_of_their_names(bare: Box) -> None:
    for name in ("20-second.sh", "10-first one.sh", "9-last.sh"):
        bare.hook(name, f'export ORDER="${{ORDER:-}}[{name}]"\n')
    assert bare.start("printenv", "ORDER").stdout == "[10-first one.sh][20-second.sh][9-last.sh]\n"


@pytest.mark.parametrize("path", ["{}", "more hooks*"], ids=["absolute", "relative"])
def test_hooks_of_ones_own_come_last(bare: Box, path: str) -> None:
    own = bare.folder / "more hooks*"
    own.mkdir()
    (own / "00 own.sh").write_text('export ORDER="$ORDER, own"\n', "utf-8")
    bare.hook("99-image.sh", "cd /\nexport ORDER=image\n")
    assert bare.start("printenv", "ORDER", TRACKBED_HOOKS=path.format(own)).stdout == "image, own\n"


def test_hooks_of_ones_own_that_are_not_there_are_an_error(bare: Box) -> None:
    done = bare.start("echo", "started", TRACKBED_HOOKS="/no/such folder")
    assert (done.code, done.stdout) == (2, "")
    assert "error: /no/such folder: there is no such folder" in done.stderr
    assert "TRACKBED_HOOKS" in done.stderr
    assert bare.start("echo", "started", TRACKBED_HOOKS="") == Done(0, "started\n", "")


def test_an_image_without_its_hooks_is_an_error(bare: Box) -> None:
    bare.hooks.rmdir()
    done = bare.start("echo", "started")
    assert (done.code, done.stdout) == (2, "")
    assert f"error: {bare.hooks}: there is no such folder" in done.stderr


def test_the_folder_is_beside_the_file_and_not_beside_a_link_to_it(bare: Box) -> None:
    bare.hook("10-here.sh", "export HERE=yes\n")
    link = bare.folder / "link"
    link.symlink_to(bare.entrypoint)
    assert Box(bare.folder, link, environment=bare.environment).start("printenv", "HERE").stdout == "yes\n"


FAILING = {
    "returns": ("return 3\n", 3),
    "exits": ("exit 4\n", 4),
    "its last command fails": ("false\n", 1),
    "a command in its middle fails": ("false\nexport REACHED=1\n", 1),
    "a variable is not set": ('echo "$no_such_variable"\n', 2),
    "it is not sh": ("if then\n", 2),
    "it calls what is not there": ("no-such-command\n", 127),
    "it has a trap of its own": ("trap 'exit 0' USR1\ntrap 'echo bye >&2' EXIT\nfalse\n", 1),
}


@pytest.mark.parametrize(("text", "code"), FAILING.values(), ids=FAILING)
def test_a_hook_that_fails_stops_the_start(bare: Box, text: str, code: int) -> None:
    hook = bare.hook("50 my hook.sh", text)
    bare.hook("60-later.sh", "echo later\n")
    done = bare.start("echo", "started")
    assert (done.code, done.stdout) == (2, "")
    assert f"error: {hook}: this start hook failed with exit code {code}," in done.stderr
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1
    assert "\n  mend:   " in done.stderr


@pytest.mark.parametrize("text", ["exit 0\n", "exec true\n"])
def test_a_hook_that_ends_its_shell_stops_the_start(bare: Box, text: str) -> None:
    hook = bare.hook("50-ends.sh", text)
    done = bare.start("echo", "started")
    assert (done.code, done.stdout) == (2, "")
    assert f"error: {hook}: this start hook ended its shell" in done.stderr


def test_a_hook_that_is_no_file_stops_the_start(bare: Box) -> None:
    (bare.hooks / "50-link.sh").symlink_to("nowhere")
    assert bare.start("echo", "started").code == 2
    (bare.hooks / "50-link.sh").unlink()
    (bare.hooks / "50-folder.sh").mkdir()
    done = bare.start("echo", "started")
    assert (done.code, done.stdout) == (2, "")
    assert "50-folder.sh: this start hook is not a file" in done.stderr


def test_a_hook_may_return_and_say_something(bare: Box) -> None:
    bare.hook("10-returns.sh", "echo said\nexport SEEN=1\nreturn 0\nexport UNSEEN=1\n")
    assert bare.start("sh", "-c", 'echo "$SEEN${UNSEEN:-}"') == Done(0, "said\n1\n", "")


def test_a_hook_may_clean_up_after_itself(bare: Box) -> None:
    bare.hook("10-cleans.sh", "trap 'echo cleaned' EXIT\nexport SEEN=1\n")
    assert bare.start("printenv", "SEEN") == Done(0, "cleaned\n1\n", "")


def test_a_program_that_a_hook_leaves_running_does_not_hold_the_start(bare: Box) -> None:
    pipe = bare.folder / "pipe"
    os.mkfifo(pipe)
    # It ends when the program writes, so a start that waits for it never gets there.
    bare.hook("10-runs.sh", f"cat '{pipe}' >/dev/null &\n")
    assert bare.start("sh", "-c", 'echo end >"$0"; echo started', str(pipe)).stdout == "started\n"


NASTY = """
helper=changed IFS=: hook=changed _trackbed_status=9 given='given to the hook'
function_of_mine() { :; }
alias exec=false
trap '' TERM
cd /
set -- a b c
umask 0777
export TOLD='on purpose'
set -f; set +e; set +u; set -a
"""


def test_nothing_of_a_hook_reaches_the_program_but_what_it_exports(bare: Box) -> None:
    bare.hook("10-nasty.sh", NASTY)
    bare.hook("20-after.sh", 'helper_2=1\nexport FLAGS="$-"\n')
    given = {"hide": 'a\'b\n"c"\\ $x `y` \t', "empty": "", "PWD": str(bare.folder), "bytes": "\udcff\udcfe"}
    command = bare.command("env", "-0")
    shown = subprocess.run(command, env={**bare.environment, **given}, cwd=bare.folder, capture_output=True, check=True)
    program = dict(os.fsdecode(entry).split("=", 1) for entry in shown.stdout.split(b"\0")[:-1])
    flags = program.pop("FLAGS")
    assert (set("eu") & set(flags), set("xfa") & set(flags)) == (set("eu"), set())
    assert program == {**bare.environment, **given, "TOLD": "on purpose"}


def test_where_the_program_starts_is_not_where_a_hook_went(bare: Box) -> None:
    bare.hook("10-goes.sh", "cd /\n")
    assert bare.start("sh", "-c", 'echo "$PWD ${OLDPWD:-}"; pwd -P').stdout.split() == [str(bare.folder)] * 2


def test_a_hook_changes_no_signal(bare: Box) -> None:
    bare.hook("10-traps.sh", "trap '' TERM INT\n")
    ignored = bare.start("grep", "SigIgn", "/proc/self/status").stdout
    # A shell starts what runs in its background with SIGINT ignored, this test too: it has to stay as it was.
    before = re.search(r"SigIgn:\s*(\w+)", Path("/proc/self/status").read_text())
    assert before
    both = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)
    assert int(ignored.split()[1], 16) & both == int(before[1], 16) & both


def test_texts_are_printed_on_a_terminal_only(bare: Box) -> None:
    bare.hook("10 a text.txt", "read me\n")
    bare.hook("20-other.md", "not me\n")
    bare.hook("30-hook.sh.off", "false\n")
    assert bare.start("echo", "started") == Done(0, "started\n", "")
    assert on_terminal(bare, "echo", "started").stdout == "read me\nstarted\n"
    done = on_terminal(bare, "echo", "started", streams="stderr")
    assert (done.stdout, done.stderr) == ("started\n", "read me\n")


# NVIDIA_CPU_ONLY.


@pytest.mark.parametrize("device", ["nvidiactl", "dxg", "nvgpu", ""])
def test_programs_are_told_when_there_is_no_nvidia_device(box: Box, device: str) -> None:
    if device:
        devices(box, device)
    assert box.start("sh", "-c", 'echo "${NVIDIA_CPU_ONLY-unset}"').stdout == ("unset\n" if device else "1\n")


# The banner.


def test_it_is_quiet_without_a_terminal(box: Box) -> None:
    assert box.start("echo", "started", **GPU) == Done(0, "started\n", "")


def test_it_is_shown_on_a_terminal_and_leaves_stdout_alone(box: Box) -> None:
    assert "verdict: ready" in on_terminal(box, "echo", "started", **CPU).stdout
    only_stderr = on_terminal(box, "echo", "started", streams="stderr", **CPU)
    assert only_stderr.stdout == "started\n"
    assert "verdict: ready" in only_stderr.stderr
    only_stdout = on_terminal(box, "echo", "started", streams="stdout", **CPU)
    assert only_stdout.stdout == "started\n"
    assert "verdict: ready" in only_stdout.stderr


def test_it_can_be_forced_and_silenced(box: Box) -> None:
    assert "verdict: ready" in box.start("true", TRACKBED_BANNER="always", **CPU).stderr
    assert on_terminal(box, "echo", "started", TRACKBED_BANNER="never", **CPU).said == "started\nstarted\n"


def test_colour_is_for_terminals_that_want_it(box: Box) -> None:
    assert "\x1b[32mpass\x1b[0m  CPU only" in on_terminal(box, "true", **CPU).stdout
    assert "\x1b" not in on_terminal(box, "true", NO_COLOR="1", **CPU).stdout
    assert "\x1b" not in on_terminal(box, "true", streams="stdout", **CPU).stderr
    assert "\x1b" not in box.start("true", TRACKBED_BANNER="always", **CPU).stderr


def test_it_names_the_release_and_the_versions(box: Box) -> None:
    versions = {"PYTORCH_VERSION": "2.13.0", "DALI_VERSION": "2.4.0", "CUDA_VERSION": "13.0", "NCCL_VERSION": "2.29.7"}
    names = {"TRACKBED_RELEASE": "26.11", "TRACKBED_REVISION": "abc1234"}
    cpu = box.banner(**versions, **names, **CPU)
    assert cpu[0] == "Trackbed 26.11, cpu, revision abc1234"
    assert cpu[1] == "PyTorch 2.13.0, DALI 2.4.0"
    assert cpu[2].startswith("pass")
    assert box.banner(**versions, **names, **GPU)[1:3] == ["PyTorch 2.13.0, DALI 2.4.0", "CUDA 13.0, NCCL 2.29.7"]
    assert box.banner()[0] == "Trackbed of no declared release"


def test_the_sum_counts_what_is_above_it(box: Box) -> None:
    more = "  (`trackbed validate` tells more)"
    assert box.banner(**CPU)[-1] == f"verdict: ready{more}"
    shared_memory(box, "65536")
    assert box.banner(**CPU)[-1] == f"verdict: ready, 1 warning{more}"
    assert box.banner(**GPU)[-1] == f"verdict: not ready: GPU{more}"
    devices(box, "dxg")
    assert box.banner(**GPU)[-1] == f"verdict: ready, 2 warnings{more}"
    shutil.rmtree(box.folder / "runs")
    (box.folder / "runs").touch()
    assert box.banner(TRACKBED_VARIANT="")[-1] == f"verdict: not ready: variant, runs{more}"


# FIXTURES: variant, device nodes, what the verdict says.
GPU_RULE = {
    "good: cpu": ("cpu", [], "pass  CPU only, as this image is meant"),
    "good: cpu image on a GPU machine": ("cpu", ["nvidiactl", "nvidia0"], "pass  CPU only, as this image is meant"),
    "good: two": ("gpu", ["nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"], "pass  NVIDIA GPUs: 2"),
    "good: WSL": ("gpu", ["dxg"], "pass  an NVIDIA device"),
    "good: Tegra": ("gpu", ["nvgpu"], "pass  an NVIDIA device"),
    "bad: no device": ("gpu", [], "fail  no NVIDIA device in this container  ->  start it with --gpus all"),
    "bad: no GPU": ("gpu", ["nvidiactl", "nvidia-uvm"], "but no GPU in this container  ->  start it with --gpus all"),
    "garbage": ("tpu", ["nvidiactl", "nvidia0"], "fail  TRACKBED_VARIANT is 'tpu', neither cpu nor gpu  ->  "),
    "missing": ("", [], "fail  TRACKBED_VARIANT is '', neither cpu nor gpu  ->  "),
}


@pytest.mark.parametrize(("variant", "names", "says"), GPU_RULE.values(), ids=GPU_RULE)
def test_the_gpu_rule(box: Box, variant: str, names: list[str], says: str) -> None:
    devices(box, *names)
    assert says in box.banner(TRACKBED_VARIANT=variant)[1]


def test_a_gpu_that_this_user_may_not_use_is_a_fail(box: Box) -> None:
    devices(box, "nvidiactl", "nvidia0", "nvidia1")
    refused = read_only(box, box.folder / "dev" / "nvidia1")
    assert re.match(r"fail  .*/nvidia1 is not for \d+:\d+ to use  ->  .*--group-add", refused.banner(**GPU)[1])


# FIXTURES: what the kernel says, the image's minimum, what the verdict says.
DRIVER_RULE = {
    "good: open": (OPEN.format("580.95.05"), "580", "pass  driver 580.95.05, and 580 is enough"),
    "good: proprietary": (PROPRIETARY.format("550.135"), "530.30.02", "pass  driver 550.135, and 530.30.02 is enough"),
    "good: a date in another encoding": (ELSEWHERE, "580", "pass  driver 580.95.05, and 580 is enough"),
    "good: the same": (OPEN.format("530.30.02"), "530.30.02", "pass"),
    "good: the same, zeros apart": (OPEN.format("530.30"), "530.30.0", "pass"),
    "good: by number, not by letter": (OPEN.format("1000.1"), "580.65.06", "pass"),
    "good: 9 is less than 10": (OPEN.format("580.100.1"), "580.95.05", "pass"),
    "bad": (OPEN.format("525.85.12"), "530.30.02", "fail  driver 525.85.12 is older than 530.30.02  ->  update the"),
    "bad: only the last number": (OPEN.format("530.30.01"), "530.30.02", "fail"),
    "bad: the last number is missing": (OPEN.format("530.30"), "530.30.02", "fail"),
    "bad: 9 is less than 10": (OPEN.format("580.95"), "580.100", "fail"),
    "bad: 08 is no octal number": (OPEN.format("580.08"), "580.09", "fail"),
    "garbage: words": ("hello, world\n", "580", "fail  the driver's version cannot be read from "),
    "garbage: no number": (OPEN.format("new"), "580", "fail  the driver's version cannot be read from "),
    "garbage: a year is no version": (PROPRIETARY.format("new"), "580", "fail  the driver's version cannot be read"),
    "garbage: a pattern": (
        "NVRM version: NVIDIA UNIX * Kernel Module\n",
        "580",
        "fail  the driver's version cannot be",
    ),
    "garbage: dots": (OPEN.format("580..1"), "580", "fail  the driver's version cannot be read"),
    "garbage: a dot first": (OPEN.format(".580.1"), "0", "fail  the driver's version cannot be read"),
    "garbage: half a number": (OPEN.format("580."), "580", "fail  the driver's version cannot be read from "),
    "garbage: too large": (OPEN.format("99999999999999999999.1"), "580", "fail  the driver's version cannot be read"),
    "garbage: bytes": (b"\x00\xff\n\x1b[31m* $(exit) \x00", "580", "fail  the driver's version cannot be read from "),
    "missing: empty": ("", "580", "fail  the driver's version cannot be read from "),
    "garbage: minimum": (OPEN.format("580.95.05"), "new", "fail  driver 580.95.05, but CUDA_DRIVER_MINIMUM is 'new'"),
    "missing: minimum": (OPEN.format("580.95.05"), "", "fail  driver 580.95.05, but CUDA_DRIVER_MINIMUM is ''"),
}


@pytest.mark.parametrize(("text", "minimum", "says"), DRIVER_RULE.values(), ids=DRIVER_RULE)
def test_the_driver_rule(box: Box, text: str | bytes, minimum: str, says: str) -> None:
    devices(box, "nvidiactl", "nvidia0")
    driver(box, text)
    (box.folder / "999.9").touch()  # What a pattern would find where the program starts.
    said = box.banner(CUDA_DRIVER_MINIMUM=minimum, LC_ALL="C.UTF-8", **GPU)[2]
    assert said.startswith(says)
    assert said.startswith("pass") != ("  ->  " in said)


def test_a_driver_that_says_nothing_is_a_fail_only_where_it_is_used(box: Box) -> None:
    minimum = {"CUDA_DRIVER_MINIMUM": "580"}
    assert box.verdict("driver", **minimum, **GPU) == ""
    devices(box, "nvidiactl", "nvidia0")
    assert box.verdict("driver's", **minimum, **GPU).startswith("fail")
    assert box.verdict("driver", **minimum, **CPU) == ""


def test_an_old_driver_is_told_also_where_the_devices_are_not_given(box: Box) -> None:
    driver(box, OPEN.format("525.85.12"))
    said = box.banner(CUDA_DRIVER_MINIMUM="580", **GPU)
    assert said[-1].startswith("verdict: not ready: GPU, driver ")


def test_a_driver_that_is_a_folder_is_unreadable(box: Box) -> None:
    devices(box, "nvidiactl", "nvidia0")
    (box.folder / "proc" / "driver" / "nvidia" / "version").mkdir(parents=True)
    assert box.verdict("driver's", CUDA_DRIVER_MINIMUM="580", **GPU).startswith("fail")


def test_where_no_driver_file_is_kept_not_knowing_is_a_warning(box: Box) -> None:
    devices(box, "dxg")
    assert re.match("warn .* -> .*nvidia-smi shows 580", box.verdict("driver's", CUDA_DRIVER_MINIMUM="580", **GPU))


REMEDY = "  ->  start it with --shm-size=1g or --ipc=host"
# FIXTURES: what `df` says, what the verdict says.
SHARED_MEMORY_RULE = {
    "good": ("1048576", "pass  1 GB in /dev/shm"),
    "good, as df pads it": ("  25165824", "pass  24 GB in /dev/shm"),
    "bad: the default": ("65536", f"warn  64 MB in /dev/shm is little for ranks and data workers{REMEDY}"),
    "bad: nearly enough": ("1048575", "warn  1023 MB in /dev/shm"),
    "bad: nothing": ("0", "warn  0 MB in /dev/shm"),
    "garbage": ("much", "fail  the size of "),
    "garbage: negative": ("-1", "fail  the size of "),
    "garbage: too large": ("9" * 30, "fail  the size of "),
    "missing": ("", "fail  the size of "),
}


@pytest.mark.parametrize(("kilobytes", "says"), SHARED_MEMORY_RULE.values(), ids=SHARED_MEMORY_RULE)
def test_the_shared_memory_rule(box: Box, kilobytes: str, says: str) -> None:
    shared_memory(box, kilobytes)
    said = box.verdict("/shm", **CPU)
    assert said.startswith(says)
    assert said.startswith("pass") != said.endswith(REMEDY)


def test_shared_memory_that_is_not_there_or_cannot_be_asked_is_a_fail(box: Box) -> None:
    tool(box, "df", "exit 1")
    assert box.verdict("/shm", **CPU).startswith("fail  the size of ")
    (box.folder / "dev" / "shm").rmdir()
    assert box.verdict("/shm", **CPU) == f"fail  there is no {box.folder}/dev/shm{REMEDY}"


def test_shared_memory_is_read_from_the_real_df(box: Box) -> None:
    (box.folder / "bin" / "df").unlink()
    assert re.match(r"(pass|warn)  \d+ [GM]B in /dev/shm", box.verdict("/dev/shm", TRACKBED_DEV="/dev", **CPU))


# FIXTURES: the folder that may not be written, the subject in the sum.
FOLDERS = [("runs", "runs"), ("cache", "cache"), ("cache/models", "cache"), ("cache/data", "cache"), ("tmp", "tmp")]


@pytest.mark.parametrize(("name", "subject"), FOLDERS)
def test_a_folder_that_this_user_may_not_write_is_a_fail(box: Box, name: str, subject: str) -> None:
    folder = box.folder / name
    folder.mkdir(exist_ok=True)
    lines = read_only(box, folder).banner(**CPU)
    assert re.match(rf"fail  {folder}\S* is not for \d+:\d+ to write  ->  .* --user \d+:0", lines[-2])
    assert lines[-1].startswith(f"verdict: not ready: {subject} ")


def test_a_read_only_file_system_wants_a_volume(box: Box) -> None:
    # FIXTURE: `touch` as it is refused there.
    tool(box, "touch", 'echo "touch: setting times: Read-only file system" >&2; exit 1')
    for name in ("runs", "cache", "tmp"):
        closed = read_only(box, box.folder / name)
    said = closed.banner(**CPU)[-4:-1]
    assert [line.split("  ->  ")[1] for line in said] == [
        f"start it with --volume cache:{box.folder}/cache",
        f"start it with --volume runs:{box.folder}/runs",
        f"start it with --tmpfs {box.folder}/tmp",
    ]


def test_a_cache_of_two_volumes_on_a_read_only_root_is_good(box: Box) -> None:
    for name in ("models", "data"):
        (box.folder / "cache" / name).mkdir()
    assert read_only(box, box.folder / "cache").banner(**CPU)[-1].startswith("verdict: ready ")


def test_a_folder_that_is_missing_is_judged_where_it_would_be_made(box: Box) -> None:
    missing = str(box.folder / "runs" / "not" / "yet")
    assert box.banner(TRACKBED_RUNS=missing, **CPU)[-1].startswith("verdict: ready ")
    assert box.banner(TRACKBED_RUNS="not/yet", **CPU)[-1].startswith("verdict: ready ")
    assert box.banner(TRACKBED_RUNS="", TRACKBED_CACHE="", HOME=str(box.folder), **CPU)[-1].startswith(
        "verdict: ready "
    )
    closed = read_only(box, box.folder / "runs")
    assert closed.verdict("to write", TRACKBED_RUNS=missing, **CPU).startswith(f"fail  {missing} is not for ")
    closed = read_only(box, box.folder)
    assert closed.verdict("to write", TRACKBED_RUNS="not-yet", **CPU).startswith("fail  not-yet is not for ")


def test_a_missing_folder_below_the_root_is_judged_by_the_root(box: Box) -> None:
    said = read_only(box, box.folder).banner(TRACKBED_RUNS="/no-such-folder-of-runs", **CPU)
    assert any("/no-such-folder-of-runs is not for" in line for line in said) != os.access("/", os.W_OK)


def test_a_folder_that_may_be_written_but_not_entered_is_a_fail(box: Box) -> None:
    closed = read_only(box, box.folder / "runs")
    (box.folder / "runs").chmod(0o600)
    assert "/runs is not for " in closed.banner(**CPU)[-2]


@pytest.mark.parametrize("name", ["file", "file/below", "link"])
def test_a_folder_that_is_none_is_a_fail(box: Box, name: str) -> None:
    (box.folder / "file").touch()
    (box.folder / "link").symlink_to("nowhere")
    assert box.banner(TRACKBED_RUNS=str(box.folder / name), **CPU)[-2] == (
        f"fail  {box.folder / name.removesuffix('/below')} is not a folder  ->  name another path for it"
    )


WHOLE = {f"{name}_VERSION": "1" for name in ("PYTORCH", "DEEPSPEED", "DALI", "OPENMPI", "TENSORBOARD", "CUDA", "NCCL")}


@pytest.mark.parametrize("storage", [True, False], ids=["writable", "not writable"])
@pytest.mark.parametrize("versions", [WHOLE, {}, {name: "1\n2\n3" for name in WHOLE}], ids=["all", "none", "odd"])
def test_it_never_has_more_than_ten_lines(box: Box, versions: dict[str, str], storage: bool) -> None:
    shared_memory(box, "garbage\nmore\ngarbage")
    if not storage:
        for name in ("runs", "cache", "tmp"):
            box = read_only(box, box.folder / name)
    odd = {"TRACKBED_RELEASE": "a\nb\x1b[31m", "TRACKBED_REVISION": "\n\n", "CUDA_DRIVER_MINIMUM": "\n1\n"}
    nodes = [(), ("dxg",), ("nvidiactl",), ("nvidia0",)]
    for names, variant in itertools.product(nodes, ["cpu", "gpu", "", "x\ny"]):
        devices(box, *names)
        lines = box.banner(TRACKBED_VARIANT=variant, **versions, **odd)
        assert len(lines) <= 10, lines
        assert not re.search(r"[\x00-\x1f\x7f]", "".join(lines))
        assert all(re.match("pass  |(warn|fail)  .*  ->  ", line) for line in lines[1:-1] if not line[0].isupper())
        assert lines[-1].startswith("verdict: ")


def test_its_helper_variables_are_not_the_programs(box: Box) -> None:
    names = {name for path in SCRIPTS for name in re.findall(r"\b([a-z]\w*)=", path.read_text("utf-8"))}
    assert len(names) > 20
    given = dict.fromkeys(names, "of the program")
    shown = box.start("env", TRACKBED_BANNER="always", **given, **GPU).stdout.splitlines()
    assert {name for name in names if f"{name}=of the program" not in shown} == set()


def test_a_stderr_that_is_full_does_not_stop_the_start(box: Box) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            box.command("echo", "started"), env={**box.environment, **CPU, "TRACKBED_BANNER": "always"},
            stdout=subprocess.PIPE, stderr=full, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "started\n")


# The files.


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_it_is_posix_shell(script: Path) -> None:
    if not (dash := shutil.which("dash")):
        pytest.skip("there is no dash on this machine, which is the strictest sh")
    done = subprocess.run([dash, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    text = script.read_text("utf-8")
    assert re.findall(r"\[\[ |^\s*function |\blocal |<<<|\bsource |\$'|&>|==", text, re.MULTILINE) == []


def test_the_entrypoint_can_be_executed() -> None:
    assert os.access(IMAGE / "entrypoint", os.X_OK)
    assert (IMAGE / "entrypoint").read_text("utf-8").startswith("#!/bin/sh\n")
