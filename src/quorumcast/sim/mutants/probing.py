"""Probes in the unchanged code that report which mistakes a scenario reaches.

A run with a mistake equals a run without it until the mistake makes a difference. So a scenario in
which it makes none need not be run with it. If a mistake changes the condition or value of one
statement, a probe before the statement evaluates both versions and reports a difference. It does so
only if evaluation has no side effects (`HARMLESS`). Otherwise the probe reports that the statement
was reached.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import dedent

from quorumcast.core.errors import ensure
from quorumcast.sim.mutants.mistakes import Mistake, line_of

_PROBE = "__mistake_met__"

#: Functions without side effects, which a probe may call.
HARMLESS = frozenset(
    """
    _directed _encode _hash _holds _is_chain _is_common _lacks _listed _signature_holds
    _signed_bytes _supporters _trusted _would_vouch all any behind bool borders broker bytes
    can_exchange channel contradicted_by count dict digest encode end_of enumerate frozenset get
    hash holder is_ours isinstance items lacking_at leader len list max may_lead may_propose
    may_publish may_subscribe min needed offer_holds over range reached_by sha256 signature_holds
    sorted split_digests str sum to_bytes tuple value_of values within zip
    """.split()  # noqa: SIM905  (a list of seventy lines is harder to read)
)


def probed(text: str, mistakes: Sequence[Mistake]) -> ast.Module:
    """The source with a probe before each statement that a mistake changes."""
    tree = ast.parse(text)
    blocks, lines = list(_blocks(tree)), text.splitlines(keepends=True)
    places: list[tuple[int, list[ast.stmt], ast.stmt]] = []
    for mistake in mistakes:
        place, block = _statement(blocks, line_of(mistake, text), mistake.id)
        statement = block[place]
        source = "".join(lines[statement.lineno - 1 : statement.end_lineno])
        places.append((place, block, ast.copy_location(_probe(mistake, source), statement)))
    # Insert from the end of each block, so that the remaining positions stay valid.
    for place, block, probe in sorted(places, key=lambda one: -one[0]):
        block.insert(place, probe)
    return ast.fix_missing_locations(tree)


def collect_probes() -> dict[str, None]:
    """The mistakes reached from now on, as a live dict that the caller clears."""
    met: dict[str, None] = {}
    setattr(builtins, _PROBE, lambda name: met.setdefault(name))
    return met


def _statement(
    blocks: Sequence[list[ast.stmt]], line: int, name: str
) -> tuple[int, list[ast.stmt]]:
    """The innermost statement on a line, as its index and its block."""
    found: list[tuple[int, int, list[ast.stmt]]] = [
        ((statement.end_lineno or 0) - statement.lineno, place, block)
        for block in blocks
        for place, statement in enumerate(block)
        if statement.lineno <= line <= (statement.end_lineno or 0)
        and not isinstance(statement, ast.FunctionDef | ast.ClassDef)
    ]
    ensure(bool(found), f"{name} is in no statement of a function")
    _, place, block = min(found, key=lambda one: one[0])
    return place, block


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _probe(mistake: Mistake, source: str) -> ast.stmt:
    """The statement that reports a mistake in a statement with this source."""
    met = f"{_PROBE}({mistake.id!r})"
    pair = None
    if source.count(mistake.find) == 1:
        right, wrong = source, source.replace(mistake.find, mistake.replace)
        pair = difference(_parsed(right), _parsed(wrong))
    if pair is None:
        return ast.parse(met).body[0]
    right, wrong = map(ast.unparse, pair)
    # The wrong version may raise, which is a difference as well.
    lines = ("try:", f" if ({right}) != ({wrong}): {met}", "except Exception:", f" {met}")
    return ast.parse("\n".join(lines)).body[0]


def _parsed(source: str) -> ast.stmt:
    """The parsed statement; an `elif` is parsed as an `if`."""
    alone = dedent(source)
    return ast.parse(alone.removeprefix("el") if alone.startswith("elif ") else alone).body[0]


def difference(right: object, wrong: object) -> tuple[ast.expr, ast.expr] | None:
    """The two expressions that differ, if both can be evaluated without side effects."""
    statement: object = None
    while type(right) is type(wrong) and not isinstance(right, ast.expr):
        statement = right
        pairs = [
            pair
            for pair in zip_longest(_parts(right), _parts(wrong))
            if _shape(pair[0]) != _shape(pair[1])
        ]
        if len(pairs) != 1:
            return None
        right, wrong = pairs[0]
    match statement, right, wrong:
        case (ast.If(test=changed), ast.expr(), ast.expr()) if changed is right:
            right, wrong = _as_bool(right), _as_bool(wrong)
        case (ast.Return(value=changed) | ast.Assign(value=changed), ast.expr(), ast.expr()) if (
            changed is right
        ):
            pass
        case _:
            return None
    return (right, wrong) if _is_harmless(right) and _is_harmless(wrong) else None


def _as_bool(condition: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("bool", ast.Load()), [condition], [])


def _parts(node: object) -> list[object]:
    parts: list[object] = []
    for _, value in ast.iter_fields(node) if isinstance(node, ast.AST) else ():
        parts += value if isinstance(value, list) else [value]
    return parts


def _shape(part: object) -> object:
    return ast.dump(part) if isinstance(part, ast.AST) else part


def _is_harmless(expression: ast.expr) -> bool:
    for node in ast.walk(expression):
        match node:
            case ast.NamedExpr() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return False
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                # A constructor has no side effects.
                if name not in HARMLESS and not name.lstrip("_")[:1].isupper():
                    return False
            case ast.Call():
                return False
            case _:
                pass
    return True
