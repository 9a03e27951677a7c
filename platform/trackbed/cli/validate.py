"""`trackbed validate`: whether this machine and stack are good; one run, told in as many formats as are asked for."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trackbed.cli import console as looks
from trackbed.cli import validated
from trackbed.errors import Problem, ValidationError

if TYPE_CHECKING:
    from trackbed.validate import Check, Context, Level
    from trackbed.validate.report.record import Report

FILE = click.Path(path_type=Path, dir_okay=False)
# Not click's own: that looks at the path, and on a mount that hangs it would hang here, before any deadline.
FOLDER = Path
FORMATS = ("json", "junit", "prometheus", "html")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options, as the command line gives them."""

    level: Level | None = None
    only: tuple[str, ...] = ()
    listed: bool = False
    docs: bool = False
    schema: bool = False
    verbose: bool = False
    strict: bool = False
    output: Path | None = None
    expect: Path | None = None
    learn: Path | None = None
    baseline: Path | None = None
    save_baseline: Path | None = None
    data: tuple[Path, ...] = ()
    clean: bool = False
    slurm_drain: bool = False
    slurm_resume: bool = False
    files: Mapping[str, Path] = field(default_factory=dict)
    """Format -> file, of those asked for; `-` is standard output."""

    @property
    def quiet(self) -> bool:
        """Whether standard output is a program's."""
        return validated.STDOUT in self.files.values()


@click.command()
@click.option("--level", type=click.Choice(["image", "node", "job", "deep"]), help="Which checks.  [default: node]")
@click.option("--only", metavar="ID", multiple=True, help="Only these; globs such as 'host.*'. May be repeated.")
@click.option("--list", "listed", is_flag=True, help="Name every check, or those of --level, and count them.")
@click.option("--verbose", "-v", is_flag=True, help="A line for every check, also for what is good or skipped.")
@click.option("--json", type=FILE, is_flag=False, flag_value="-", help="JSON to this file; without a name, print it.")
@click.option("--junit", type=FILE, help="JUnit XML to this file.")
@click.option("--prometheus", type=FILE, help="Metrics to this file, for node_exporter's textfile collector.")
@click.option("--html", type=FILE, help="A page to this file.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings.")
@click.option("--output", type=FOLDER, metavar="PATH", help="Folder that runs are written to; $TRACKBED_RUNS.")
@click.option("--expect", type=FILE, help="Hold this node against what the site should have.")
@click.option("--learn", type=FILE, help="Write that file from this node, when it is good.")
@click.option("--baseline", type=FILE, help="Hold the figures of --level deep against this site's own.")
@click.option("--save-baseline", type=FILE, help="Write that file from this node, good and idle; with --level deep.")
@click.option("--data", type=FOLDER, metavar="PATH", multiple=True, help="Scan this data set too. May be repeated.")
@click.option("--clean", is_flag=True, help="Remove what killed runs left behind, and name it; nothing else is done.")
@click.option("--slurm-drain", is_flag=True, help="When a check fails, drain this node and say why.")
@click.option("--slurm-resume", is_flag=True, help="When all is good, resume this node if we drained it.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of --json.")
@click.option("--docs", is_flag=True, help="Print docs/checks.md.")
def validate(**options: Any) -> None:
    """Check this machine and the stack by using them. Exit 0 good, 1 strict, 2 failed, 3 the validator broke."""
    # Killed by its default, Python would leave the checks' processes to run on.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    files = {name: path for name in FORMATS if (path := options.pop(name))}
    asked = Asked(files=files, **options)
    if page := _page(asked):
        click.echo(page.rstrip("\n"))
        return
    sys.exit(_validate(asked))


def _page(asked: Asked) -> str:
    """What needs no check to run; empty when checks are asked for."""
    from trackbed.validate import runner
    from trackbed.validate.report import docs as render_docs
    from trackbed.validate.report import schema, screen

    if asked.schema:
        return screen.as_json(schema.schema())
    if asked.clean:
        return _clean(asked)
    if asked.docs:
        return render_docs.to_docs(runner.checks())
    return render_docs.to_list(_chosen(asked)) if asked.listed else ""


def _clean(asked: Asked) -> str:
    """Remove what storage.leftovers names; what was removed."""
    from trackbed import folders
    from trackbed.validate import amount
    from trackbed.validate.data import leftovers

    removed = leftovers.clean(leftovers.find(asked.output or folders.runs()))
    lines = [f"removed {each.path} ({each.kind}, {amount(each.size)})" for each in removed]
    return "\n".join(lines) or "killed runs have left nothing behind"


def _validate(asked: Asked) -> int:
    """Run the checks and tell everybody who asked; the exit code."""
    from trackbed.cli.stack import release_name
    from trackbed.validate import runner
    from trackbed.validate.report import record

    only = {check.id for check in _chosen(asked)} if asked.only else set()
    _refuse_early(asked)
    context = _context(asked)
    with looks.waiting("checking", quiet=asked.quiet):
        results = list(runner.stream(context, only=only))
    code = runner.exit_code(results, strict=asked.strict)
    validation = record.report(results, release=release_name(), host=runner.host_name(), level=context.level)
    # First: a log on a full disk must not keep a bad node in service.
    _slurm(asked, validation)
    validated.tell(asked.files, validation, code, verbose=asked.verbose, strict=asked.strict)
    _learn(asked, validation, context.output)
    _save_baseline(asked, validation)
    return code


def _context(asked: Asked) -> Context:
    from trackbed import folders
    from trackbed.validate import Context, baseline
    from trackbed.validate.site import expectations

    expect = expectations.read(asked.expect) if asked.expect else {}
    if asked.data:
        expect["data"] = [str(path) for path in asked.data]
    kept = baseline.load(asked.baseline) if asked.baseline else {}
    output = asked.output or folders.runs()
    return Context(output=output, level=asked.level or "node", expect=expect, baseline=kept)


def _chosen(asked: Asked) -> list[Check]:
    """The checks of the level (of all levels, for a list without one) that `--only` names."""
    from fnmatch import fnmatchcase

    from trackbed.validate import runner

    table = runner.checks()
    level = asked.level or (None if asked.listed else "node")
    there = [check for check in table if level is None or level in check.levels]
    for pattern in asked.only:
        if not any(fnmatchcase(check.id, pattern) for check in there):
            raise ValidationError(_no_check(pattern, level, table))
    if not asked.only:
        return there
    return [check for check in there if any(fnmatchcase(check.id, pattern) for pattern in asked.only)]


def _no_check(pattern: str, level: str | None, table: tuple[Check, ...]) -> Problem:
    """Why a pattern names nothing: another level's check, or a slip of the pen."""
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    elsewhere = next((check for check in table if fnmatchcase(check.id, pattern)), None)
    if elsewhere:
        what = f"no check of level {level} is called `{pattern}`"
        return Problem(id="validate.level", what=what, remedy=f"add --level {elsewhere.levels[0]}")
    close = get_close_matches(pattern, [check.id for check in table], 1)
    wanted = f"did you mean `{close[0]}`?" if close else "an id, or a glob such as 'host.*'"
    what = f"no check is called `{pattern}`"
    return Problem(id="validate.no-check", what=what, wanted=wanted, remedy="trackbed validate --list names them")


def _refuse_early(asked: Asked) -> None:
    """Say before the checks run what could not be written after them."""
    if asked.learn:
        from trackbed.validate.site import learn

        learn.must_be_new(asked.learn)
    named = filter(None, (*asked.files.values(), asked.learn, asked.save_baseline))
    files = [path for path in named if path != validated.STDOUT]
    if problems := [_no_folder(path) for path in files if not path.absolute().parent.is_dir()]:
        raise ValidationError(problems)


def _no_folder(path: Path) -> Problem:
    return Problem(
        id="validate.output", where=str(path), what="its folder does not exist", remedy=f"mkdir -p {path.parent}"
    )


def _slurm(asked: Asked, validation: Report) -> None:
    """What was done to the node goes to standard error, where slurmd's log has it; it never changes the verdict."""
    from trackbed.validate.site import slurm

    for wanted, act in ((asked.slurm_drain, slurm.drain), (asked.slurm_resume, slurm.resume)):
        try:
            said = act(validation.results) if wanted else ""
        except slurm.SlurmError as error:
            said = f"slurm: {error}; the node is left as it is"
        if said:
            click.echo(said, err=True)


def _learn(asked: Asked, validation: Report, output: Path) -> None:
    """A node that failed is no example for the others."""
    from trackbed.validate.site import learn

    if not asked.learn:
        return
    bad = [result.id for result in validation.results if result.status in ("fail", "error")]
    if bad or not validation.results:
        what = f"nothing learned: this node is not good ({', '.join(bad) or 'nothing was checked'})"
        raise ValidationError(Problem(id="validate.learn", where=str(asked.learn), what=what, remedy="mend it first"))
    learn.write(asked.learn, learn.to_toml(learn.learn(output), validation.host, validation.when))
    click.echo(f"wrote {asked.learn}", err=asked.quiet)


def _save_baseline(asked: Asked, validation: Report) -> None:
    from trackbed.validate import baseline

    if asked.save_baseline:
        path, results = asked.save_baseline, validation.results
        count = baseline.save(path, results, host=validation.host, release=validation.release)
        click.echo(f"wrote {path}: {count} figures", err=asked.quiet)


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--html", type=FILE, help="A page to this file.")
def fleet(files: tuple[Path, ...], html: Path | None) -> None:
    """Hold many nodes' validations (FILES of `validate --json FILE`) side by side and name the odd ones out.

    Exit 0 all alike, 1 something is odd, 2 a check failed somewhere, 3 a file is no validation.
    """
    from trackbed.validate.report import fleet as fleet_render
    from trackbed.validate.site import fleet as nodes

    view = nodes.view(*nodes.read(files))
    if html:
        validated.write(html, fleet_render.to_html(view))
    click.echo(fleet_render.to_text(view).rstrip("\n"))
    sys.exit(view.exit_code)
