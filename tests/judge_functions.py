"""Which functions of a package a judge comes to, and where their source is.

They are found alive: from a judge, by the names in its source, in its closure and in what it is bound to. What a
function was given cannot be followed by name; tests/test_mutation.py holds that no call is missed by that.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A living function, and the node and the statement of its module that made it."""

    function: FunctionType
    statement: ast.stmt
    node: ast.AST


def units(judge: Callable[..., Any], package: str) -> list[Unit]:
    """The functions of `package` that a judge may call, itself among them."""
    found: dict[FunctionType, Unit] = {}
    classes: set[type] = set()
    done: set[tuple[type, str]] = set()
    queue: list[Any] = [judge]
    while queue:
        for value in _parts(queue.pop(), package):
            if isinstance(value, type) and value not in classes:
                classes.add(value)
                queue += _annotated(value)
            elif isinstance(value, FunctionType) and value not in found and (unit := _unit(value, package)):
                found[value] = unit
                queue += _named(unit, package)
        if not queue:
            methods = _methods(classes, found.values()) - done
            done |= methods
            queue += [vars(each)[name] for each, name in methods]
    return list(found.values())


def _methods(classes: Collection[type], users: Collection[Unit]) -> set[tuple[type, str]]:
    """The methods of these classes that these functions name, and those that nobody has to name, as __str__."""
    named = {node.attr for unit in users for node in ast.walk(unit.node) if isinstance(node, ast.Attribute)}
    return {(each, name) for each in classes for name in vars(each) if name in named or name.startswith("__")}


def _annotated(made: type) -> Iterator[Any]:
    """What a class says its fields are: classes whose methods are called on what is in them."""
    space = vars(sys.modules[made.__module__])
    for text in vars(made).get("__annotations__", {}).values():
        for node in ast.walk(ast.parse(str(text), mode="eval")):
            yield value_of(node, space)


def _parts(value: Any, package: str, depth: int = 4) -> Iterator[Any]:
    """Functions and classes of the package that a value is, holds, wraps or is bound to."""
    if isinstance(value, FunctionType | type) and ours(value.__module__, package):
        yield value
    if depth and not isinstance(value, str | bytes | type | ModuleType):
        for each in _inside(value, package):
            yield from _parts(each, package, depth - 1)


def _inside(value: Any, package: str) -> Iterator[Any]:
    yield getattr(value, "__wrapped__", None)
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType | classmethod | staticmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, FunctionType):
        yield from inspect.getclosurevars(value).nonlocals.values()
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif ours(type(value).__module__, package):
        yield from getattr(value, "__dict__", {}).values()


def _named(unit: Unit, package: str) -> Iterator[Any]:
    """What the names in a function's source stand for: globals of its module, and attributes of modules."""
    space = {**unit.function.__globals__, **dict(_imported(unit.node, package))}
    for node in ast.walk(unit.node):
        # A variable of its own may have a global's name.
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            space.pop(node.id, None)
        elif isinstance(node, ast.arg):
            space.pop(node.arg, None)
    for node in ast.walk(unit.node):
        if isinstance(node, ast.Name | ast.Attribute):
            yield value_of(node, space)


def value_of(node: ast.AST, space: Mapping[str, Any]) -> Any:
    """The value of `name` or `module.name`; None for what is no global."""
    if isinstance(node, ast.Name):
        return space.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(module := value_of(node.value, space), ModuleType):
        return getattr(module, node.attr, None)
    return None


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, Any]]:
    for each in ast.walk(node):
        if isinstance(each, ast.ImportFrom) and each.module and ours(each.module, package):
            module = importlib.import_module(each.module)
            yield from ((name.asname or name.name, getattr(module, name.name, None)) for name in each.names)


def ours(module: str, package: str) -> bool:
    """Whether a module is the package or in it."""
    return f"{module}.".startswith(f"{package}.")


@functools.cache
def tree(file: str) -> ast.Module:
    """A file's syntax, always the same one."""
    return ast.parse(Path(file).read_text("utf-8"))


def _unit(function: FunctionType, package: str) -> Unit | None:
    """The source of a function; None for what a library made, such as a dataclass's own methods."""
    code = function.__code__
    if not ours(function.__globals__["__name__"], package) or not Path(code.co_filename).is_file():
        return None
    for statement in tree(code.co_filename).body:
        if statement.lineno <= code.co_firstlineno <= (statement.end_lineno or 0) or _decorated(statement, code):
            for node in ast.walk(statement):
                if _made(node, code):
                    return Unit(function=function, statement=statement, node=node)
    return None


def _decorated(statement: ast.stmt, code: CodeType) -> bool:
    first = min((each.lineno for each in getattr(statement, "decorator_list", ())), default=statement.lineno)
    return first <= code.co_firstlineno < statement.lineno


def _made(node: ast.AST, code: CodeType) -> bool:
    """Whether this node is where this code comes from; two lambdas of a line differ by their columns."""
    if isinstance(node, ast.FunctionDef):
        first = min((each.lineno for each in node.decorator_list), default=node.lineno)
        return (node.name, first) == (code.co_name, code.co_firstlineno)
    if not isinstance(node, ast.Lambda) or code.co_name != "<lambda>" or node.lineno != code.co_firstlineno:
        return False
    places = {(line, column) for line, _, column, _ in code.co_positions()}
    return any((each.lineno, each.col_offset) in places for each in ast.walk(node.body) if isinstance(each, ast.expr))
