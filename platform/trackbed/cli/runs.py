"""`trackbed demo`, `submit`, `train` and `monitor`: from a job to a run, and a look at it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trackbed.cli import console as looks
from trackbed.cli.data import JOB_FILE, build, fetch, overrides
from trackbed.cli.stack import check_machine, must_run_jobs, release_name
from trackbed.errors import Problem, TrackbedError, ValidationError

if TYPE_CHECKING:
    from trackbed.job import Job
    from trackbed.submit.plan import Plan
    from trackbed.submit.run import Run

DEMO_JOB = Path("jobs/finetune-smollm2.yaml")


@dataclass(frozen=True)
class How:
    """How a job is submitted; nothing of this changes its result."""

    dry_run: bool = False
    validated: bool = False
    profiled: bool = False


@click.command()
@click.option("--run-name", help="Name of the run's folder; a new one each time when not given.")
@click.option("--once", is_flag=True, help="Do nothing when the named run is finished; go on when it was cut off.")
@overrides
def demo(run_name: str | None, once: bool, sets: tuple[str, ...]) -> None:
    """Fetch a small model, build a data set, check this machine, fine-tune, and show what came of it."""
    must_run_jobs()
    from trackbed import folders, hub
    from trackbed.submit.run import Run

    existing = Run(folders.runs() / run_name) if run_name else None
    if once and existing and existing.summary:
        click.echo(f"run {run_name} is finished: nothing is trained again")
        _report(existing)
        return
    fetch("smollm2-135m")
    click.echo(f"note: {hub.describe(hub.resolve('smollm2-135m'))}")
    if not (folders.data() / "pydocs" / "heldout.jsonl").exists():
        build("pydocs")
    cut_off = once and existing and existing.job.exists()
    if existing and cut_off:
        _submit(existing.job, (), name=None, resume=True, how=How())
    else:
        _submit(_demo_job(), sets, name=run_name, resume=False, how=How())


@click.command()
@click.argument("job_file", type=JOB_FILE, required=False)
@overrides
@click.option("--dry-run", is_flag=True, help="Work out the plan and print exactly what would be run; start nothing.")
@click.option("--run-name", help="Name of the run's folder.")
@click.option("--resume", metavar="RUN", help="Go on with a run from its newest whole checkpoint.")
@click.option("--skip-validation", is_flag=True, help="Start without checking the machine.")
@click.option("--profile", type=click.Choice(["nsys"]), help="Record a timeline of all ranks into RUN/profile/.")
def submit(
    job_file: Path | None,
    sets: tuple[str, ...],
    dry_run: bool,
    run_name: str | None,
    resume: str | None,
    skip_validation: bool,
    profile: str | None,
) -> None:
    """Plan a job, validate this machine, start its ranks and watch them to the end."""
    must_run_jobs()
    from trackbed.submit.run import find

    if (job_file is None) == (resume is None):
        raise click.UsageError("give a job, or --resume RUN")
    if resume and sets:
        raise click.UsageError("a run goes on with the job it began with: start a new run to change it")
    how = How(dry_run=dry_run, validated=skip_validation, profiled=bool(profile))
    if resume:
        run = find(resume)
        _submit(run.job, (), name=None, resume=True, how=how)
    elif job_file:
        _submit(job_file, sets, name=run_name, resume=False, how=how)


@click.command()
@click.argument("job_file", type=JOB_FILE)
def train(job_file: Path) -> None:
    """Be one rank of a run, whose folder is the one the job file is in. `trackbed submit` has torchrun do this."""
    from trackbed.job import load
    from trackbed.submit.local import MARK
    from trackbed.submit.run import record_failure
    from trackbed.train.loop import Trainer

    rank = int(os.environ.get("RANK", "0"))
    folder = job_file.absolute().parent
    try:
        Trainer(load(job_file), folder, lambda text: click.echo(MARK + text)).run()
    except TrackbedError as error:
        record_failure(folder, error.problems[0], rank=rank, exit_code=error.exit_code)
        raise
    except Exception as error:
        what = f"rank {rank} crashed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        problem = Problem(id="train.crashed", what=what, where=str(folder / "train.log"), remedy="read the log")
        record_failure(folder, problem, rank=rank, exit_code=1)
        raise


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=6006, show_default=True, envvar="TENSORBOARD_PORT", help="Port; $TENSORBOARD_PORT.")
@click.option("--check", metavar="URL", help="Start nothing; exit 0 when the server at URL shows a run's loss.")
def monitor(host: str, port: int, check: str | None) -> None:
    """Serve TensorBoard over every run."""
    from trackbed import folders
    from trackbed.monitor import server

    if check:
        runs = server.runs_with_loss(check)
        click.echo(f"runs with a loss: {', '.join(runs) or 'none'}")
        sys.exit(0 if runs else 1)
    click.echo(f"TensorBoard over {folders.runs()}: http://{host}:{port} (stop it with Ctrl-C)")
    server.serve(folders.runs(), host, port)


def _submit(
    job_file: Path,
    sets: tuple[str, ...],
    *,
    name: str | None,
    resume: bool,
    how: How,
) -> None:
    from trackbed.job import load
    from trackbed.submit import nsys, plan, run

    job = load(job_file, sets)
    this = run.Run(job_file.absolute().parent) if resume else run.new(job.name, name)
    if not resume and this.job.exists():
        raise TrackbedError(
            Problem(
                id="run.exists",
                what=f"there is already a run {this.folder}",
                remedy=f"choose another --run-name, or go on with it: trackbed submit --resume {this.folder}",
            )
        )
    planned = plan.work_out(job, this, job_file, sets)
    if how.profiled:
        planned = nsys.wrap(planned, this)
    looks.console().print(looks.plan(planned), highlight=False)
    if planned.profile_note:
        click.echo(f"warning: {planned.profile_note}")
    click.echo(f"command:\n{planned.shell()}")
    if not how.dry_run:
        _start(job, this, planned, how)


def _start(job: Job, run: Run, planned: Plan, how: How) -> None:
    from trackbed import folders
    from trackbed.job import dump
    from trackbed.submit import provenance
    from trackbed.submit import run as runs

    record = provenance.collect(job, release_name())
    again = run.job.exists()
    runs.make(run)
    if again:
        folders.lock(run.folder).close()
        provenance.must_agree(run.folder, record)
    else:
        folders.replace(run.folder / "provenance.json", json.dumps(record, indent=2) + "\n")
    (run.folder / "failure.json").unlink(missing_ok=True)
    folders.replace(run.folder / "plan.json", planned.to_json() + "\n")
    folders.replace(run.job, dump(job))
    if not how.validated:
        _must_be_valid(run)
    click.echo(f"run: {run.folder}")
    _send(run, planned)
    _report(run)


def _send(run: Run, planned: Plan) -> None:
    from trackbed.submit import local, nsys

    if planned.profile:
        # nsys makes no folder: it would leave its report in the temporary one.
        Path(planned.profile).parent.mkdir(exist_ok=True)
    try:
        with looks.training(looks.console()) as show:
            local.send(planned, run, show)
    finally:
        if planned.profile:
            click.echo(nsys.outcome(planned))


def _must_be_valid(run: Run) -> None:
    from trackbed.submit.run import record_failure
    from trackbed.validate import runner
    from trackbed.validate.report import screen

    results = check_machine(run.folder)
    document = screen.to_json(results, release=release_name(), host=runner.host_name())
    (run.folder / "validation.json").write_text(document + "\n", "utf-8")
    bad = [result for result in results if result.status in ("fail", "error")]
    problems = [
        Problem(id=result.id, what=f"{result.id}: {result.observed}", wanted=result.expected, remedy=result.remedy)
        for result in bad
    ]
    if problems:
        record_failure(run.folder, problems[0], rank=None, exit_code=2)
        raise ValidationError(problems)


def _report(run: Run) -> None:

    if summary := run.summary:
        looks.console().print(looks.report(summary, str(run.folder)), highlight=False)


def _demo_job() -> Path:
    beside_source = Path(__file__).parents[3] / DEMO_JOB
    return DEMO_JOB if DEMO_JOB.exists() else beside_source


COMMANDS = (demo, submit, train, monitor)
