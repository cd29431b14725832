"""Every small fault that can be put into a source file: one operator, number, condition, argument or name at a time.

Only the bodies of functions are changed. Left alone: messages of errors, docstrings, types, and what does not run
without a GPU.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPPED = {"min": "max", "amin": "amax", "minimum": "maximum", "argmin": "argmax", "any": "all"}
SWAPPED |= {new: old for old, new in SWAPPED.items()}
GPU_ONLY = {"_record", "_may_look", "_worth_retiring"}
TYPES = {"int", "float", "str", "None", "bytes", "bool"}


@dataclass(frozen=True)
class Change:
    """One fault.

    Attributes:
        id: What it is, whatever line it stands in: file, function, the change, and the how-manieth such change.
        file: The file, from src/ilme on.
        line: The line, counted from 1.
        before, after: The code that is replaced, and by what.
        source: The whole file with the fault.
    """

    id: str
    file: str
    line: int
    before: str
    after: str
    source: str


def changes(file: str, source: str, defaults: dict[str, set[str]]) -> list[Change]:
    """All faults of one file; `defaults` names the arguments that each function of the package can do without."""
    tree = ast.parse(source)
    found: list[Change] = []
    seen: dict[str, int] = {}
    for function in _functions(tree):
        for node, after in _in_function(function, defaults):
            before = ast.get_source_segment(source, node) or ""
            short = " ".join(before.split())
            if short == after:
                continue
            name = f"{file} {function.name}: {short} → {after}"
            seen[name] = seen.get(name, 0) + 1
            mutated = _replaced(source, node, after)
            found.append(Change(f"{name} #{seen[name]}", file, node.lineno, short, after, mutated))
    return found


def names_with_defaults(trees: list[ast.Module]) -> dict[str, set[str]]:
    """Which arguments of each function and dataclass have a default."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args.args
                optional = {a.arg for a in arguments[len(arguments) - len(node.args.defaults) :]}
                pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                optional |= {a.arg for a, default in pairs if default is not None}
                found.setdefault(node.name, set()).update(optional)
            elif isinstance(node, ast.ClassDef):
                fields = (n for n in node.body if isinstance(n, ast.AnnAssign) and n.value is not None)
                found.setdefault(node.name, set()).update(n.target.id for n in fields if isinstance(n.target, ast.Name))
                inits = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
                for init in inits:
                    arguments = init.args.args
                    optional = {a.arg for a in arguments[len(arguments) - len(init.args.defaults) :]}
                    found[node.name].update(optional)
    return found


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Outermost functions and methods."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                if child.name not in GPU_ONLY:
                    yield child
            elif isinstance(child, ast.ClassDef):
                todo.append(child)


def _in_function(function: ast.FunctionDef, defaults: dict[str, set[str]]) -> Iterator[tuple[ast.expr, str]]:
    names = [a.arg for a in function.args.args if a.arg != "self"]
    names += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for statement in function.body:
        for node in _expressions(statement):
            for after in _mutated(node, defaults):
                yield node, after
            if isinstance(node, ast.Name) and node in _returned(function):
                others = [n for n in dict.fromkeys(names) if n != node.id]
                if others:
                    yield node, others[0]


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    return [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and isinstance(n.value, ast.Name)]


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Every expression that is run, but for what only goes into a message."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.arguments):
        return
    if isinstance(node, ast.FunctionDef) and node.name in GPU_ONLY:
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":  # zip of what is of one length by construction
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expressions(child)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _Condition(node.test)


class _Condition(ast.expr):
    """The test of an if, standing for itself: it is negated as a whole."""

    def __init__(self, test: ast.expr) -> None:
        super().__init__()
        self.test = test
        ast.copy_location(self, test)


def _mutated(node: ast.expr, defaults: dict[str, set[str]]) -> Iterator[str]:
    if isinstance(node, _Condition):
        yield f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield _bare(ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _text_or_type(node):
        yield _bare(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield repr(node.value + 1)
        if node.value:
            yield f"({node.value - 1!r})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node, ast.BoolOp):
        yield _bare(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield _bare(node.operand)
    elif isinstance(node, ast.Call):
        yield from _calls(node, defaults)


def _calls(node: ast.Call, defaults: dict[str, set[str]]) -> Iterator[str]:
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if name in SWAPPED:
        other: ast.expr = ast.Name(SWAPPED[name], ast.Load())
        if isinstance(function, ast.Attribute):
            other = ast.Attribute(function.value, SWAPPED[name], ast.Load())
        yield ast.unparse(ast.Call(other, node.args, node.keywords))
    for keyword in node.keywords:
        if keyword.arg in defaults.get(name, ()):
            yield ast.unparse(ast.Call(function, node.args, [k for k in node.keywords if k is not keyword]))


def _bare(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _text_or_type(node: ast.BinOp) -> bool:
    """Whether + joins texts or | joins types."""
    ends = (node.left, node.right)
    texts = (ast.JoinedStr, ast.List, ast.Tuple)
    if any(isinstance(e, texts) or (isinstance(e, ast.Constant) and isinstance(e.value, str | None)) for e in ends):
        return True
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(e, ast.Name) and (e.id in TYPES or e.id[0].isupper())) or isinstance(e, ast.Dict) for e in ends
    )


def _replaced(source: str, node: ast.expr, after: str) -> str:
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    whole = b"".join(lines)
    return (whole[:begin] + after.encode() + whole[end:]).decode()
