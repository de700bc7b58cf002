"""What a source imports, read from its syntax tree."""

from __future__ import annotations

import ast


def imported(source: str) -> set[str]:
    """The dotted names that a module imports, at any depth of nesting."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module and not node.level}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return names
