"""Small changes to functions: of comparisons, of `and`, `or` and `not`, and of numbers that something is compared with.

A change is made in the syntax tree, compiled, and given to the living function as its code: whoever calls it calls the
mutant. Not changed: numbers in tables, texts, and conditions without a comparison.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from judge_functions import Unit, ours, tree, units, value_of

FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
# A row within one hundredth of a threshold that is no whole number holds it.
STEPS: dict[type, Callable[[Any], Any]] = {int: lambda value: 1, float: lambda value: abs(value) / 100}
CACHE = functools._lru_cache_wrapper
SHOWN = 40  # characters of the source around a change


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change: new values for these fields of this node. `checks` are those whose judge comes to it."""

    file: Path
    line: int
    change: str
    node: ast.AST
    fields: Mapping[str, Any]
    statement: ast.stmt
    checks: set[str] = field(default_factory=set)


def mutants(judges: Mapping[str, Callable[..., Any]], package: str) -> list[Mutant]:
    """Every change to every function of `package` that these judges come to, by file and line."""
    found: dict[tuple[int, int, str], Mutant] = {}
    for check, judge in judges.items():
        for unit in units(judge, package):
            for mutant in _changes(unit):
                found.setdefault((id(mutant.node), mutant.line, mutant.change), mutant).checks.add(check)
    return sorted(found.values(), key=lambda mutant: (mutant.file, mutant.line))


def _changes(unit: Unit) -> Iterator[Mutant]:
    for node in ast.walk(unit.node):
        if isinstance(node, ast.Compare):
            yield from _compared(unit, node)
        elif isinstance(node, ast.BoolOp):
            yield from _joined(unit, node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            twice = ast.UnaryOp(ast.Not(), node.operand)
            yield _mutant(unit, node, node.lineno, {"operand": twice})


def _compared(unit: Unit, node: ast.Compare) -> Iterator[Mutant]:
    for index, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
        for flipped in FLIPS[type(op)]:
            ops = [*node.ops[:index], flipped(), *node.ops[index + 1 :]]
            yield _mutant(unit, node, right.lineno, {"ops": ops})
    for index, side in enumerate([node.left, *node.comparators]):
        for line, stepped in _steps(side, unit.function.__globals__):
            sides = [*node.comparators]
            sides[index - 1 : index] = [stepped] if index else []
            changed = {"comparators": sides} if index else {"left": stepped}
            yield _mutant(unit, node, line, changed)


def _steps(side: ast.expr, space: Mapping[str, Any]) -> Iterator[tuple[int, ast.expr]]:
    """One side of a comparison with one of its numbers, written out or named, one step lower and one higher."""
    if isinstance(side, ast.BinOp):
        for name in ("left", "right"):
            for line, stepped in _steps(getattr(side, name), space):
                yield line, _with(side, name, stepped)
    elif isinstance(side, ast.UnaryOp):
        for line, stepped in _steps(side.operand, space):
            yield line, _with(side, "operand", stepped)
    value: Any = side.value if isinstance(side, ast.Constant) else value_of(side, space)
    if type(value) in STEPS and math.isfinite(value):
        for sign in (-1, 1):
            yield side.lineno, ast.Constant(value + sign * STEPS[type(value)](value))


def _with(node: ast.expr, name: str, value: ast.expr) -> ast.expr:
    changed = copy.copy(node)
    setattr(changed, name, value)
    return changed


def _joined(unit: Unit, node: ast.BoolOp) -> Iterator[Mutant]:
    """`a and b and c` has two operators, each changed alone."""
    flipped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    for index in range(1, len(node.values)):
        sides = [_join(node.op, node.values[:index]), _join(node.op, node.values[index:])]
        yield _mutant(unit, node, node.values[index].lineno, {"op": flipped, "values": sides})


def _join(op: ast.boolop, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else ast.BoolOp(op, values)


def _mutant(unit: Unit, node: ast.expr, line: int, fields: Mapping[str, Any]) -> Mutant:
    before = ast.unparse(node)
    with _applied(node, fields):
        after = ast.unparse(node)
    file = Path(unit.function.__code__.co_filename)
    change = _shown(before, after)
    return Mutant(file=file, line=line, change=change, node=node, fields=fields, statement=unit.statement)


def _shown(before: str, after: str) -> str:
    """The two texts, without most of what they share."""
    start = max(0, _shared(before, after) - SHOWN)
    end = max(0, _shared(before[start:][::-1], after[start:][::-1]) - SHOWN)
    texts = (("…" * bool(start)) + text[start : len(text) - end] + ("…" * bool(end)) for text in (before, after))
    return " -> ".join(f"`{text}`" for text in texts)


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# --- putting a change in ---


@dataclass(frozen=True, kw_only=True)
class Living:
    """A package's functions by their code (of which a function that makes functions gives one to several); caches."""

    functions: Mapping[Any, list[FunctionType]]
    caches: list[Any]

    def forget(self) -> None:
        for each in self.caches:
            each.cache_clear()


def living(package: str) -> Living:
    """What there is of a package in this process."""
    # Not isinstance: it asks an object for its class, and a deprecated one of torch's warns when it is asked.
    objects = [each for each in gc.get_objects() if issubclass(type(each), FunctionType | CACHE)]
    there = [each for each in objects if ours(getattr(each, "__module__", "") or "", package)]
    functions: dict[Any, list[FunctionType]] = {}
    for each in there:
        if isinstance(each, FunctionType):
            functions.setdefault(_key(each.__code__), []).append(each)
    return Living(functions=functions, caches=[each for each in there if isinstance(each, CACHE)])


@contextmanager
def put_in(mutant: Mutant, there: Living) -> Iterator[None]:
    """Give the changed code to the functions that have the old one; afterwards they have the old one again."""
    with _applied(mutant.node, mutant.fields):
        new = _compiled(mutant.statement, mutant.file)
    pairs = list(_pairs(_original(mutant.statement, mutant.file), new))
    changed = [(each, each.__code__, code) for key, code in pairs for each in there.functions.get(key, ())]
    if not changed:
        raise RuntimeError(f"{mutant.file}:{mutant.line}: no function has this code; was the file edited meanwhile?")
    try:
        there.forget()
        for function, _, code in changed:
            function.__code__ = code
        yield
    finally:
        for function, code, _ in changed:
            function.__code__ = code
        there.forget()


@contextmanager
def _applied(node: ast.AST, fields: Mapping[str, Any]) -> Iterator[None]:
    before = {name: getattr(node, name) for name in fields}
    vars(node).update(fields)
    try:
        yield
    finally:
        vars(node).update(before)


def _compiled(statement: ast.stmt, file: Path) -> CodeType:
    # With the imports: a call of what the module imports at its top is compiled in another way than other calls.
    imports = [each for each in tree(str(file)).body if isinstance(each, ast.Import | ast.ImportFrom)]
    module = ast.fix_missing_locations(ast.Module([*imports, statement], []))
    code: CodeType = compile(module, str(file), "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    return code


@functools.cache
def _original(statement: ast.stmt, file: Path) -> CodeType:
    return _compiled(statement, file)


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[Any, CodeType]]:
    """The codes in a statement that a change made different, by the key of the old one."""
    codes = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
    for before, after in zip(*codes, strict=True):
        if before != after:
            yield _key(before), after
            yield from _pairs(before, after)


def _key(code: CodeType) -> tuple[Any, ...]:
    return code.co_filename, code.co_qualname, code.co_firstlineno, tuple(code.co_positions())
