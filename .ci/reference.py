"""
Generate the reference from the source: one page for each public module, one entry for each name in its `__all__`.

This file is a hook of mkdocs. The list of modules and names is read from the syntax trees,
so that tests can use it without mkdocs and without importing anything.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "reference/api"
POINT = re.compile(r"^- \*\*([SFOCRI]\d+)\*\* ", re.MULTILINE)
MODULE_LINK = re.compile(r"\(api/([\w.]+)\.md\)")
NUMBERS = re.compile(r"(?:[Rr]ows? [\d, and to]*,? ?)?((?:[SFOCRI]\d+)(?:(?:, | and | to )[SFOCRI]\d+)*)\b")


def public_modules() -> dict[str, dict[str, str]]:
    """Return every public module with the names in its `__all__`, and for each name the module that has its entry."""
    exported = {_module_name(path): _exports(path) for path in sorted((ROOT / "sampling").rglob("*.py"))}
    public = {module: names for module, names in exported.items() if names and "._" not in module}
    return {module: {name: _home(public, module, name) for name in names} for module, names in public.items()}


def _home(public: dict[str, dict[str, str]], module: str, name: str) -> str:
    """Follow the imports of a name through the modules that export it, to the last public one."""
    source = public[module][name]
    return module if source == module or name not in public.get(source, {}) else _home(public, source, name)


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _exports(path: Path) -> dict[str, str]:
    """Return the names in the `__all__` of a file, each with the module that it is imported from."""
    tree = ast.parse(path.read_text("utf-8"))
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    sources = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name: sources.get(name, _module_name(path)) for name in names}


def page_path(module: str) -> str:
    """Return the path of a module's page below `docs`."""
    return f"{FOLDER}/{module}.md"


def entries() -> set[str]:
    """Return the full name of everything that has an entry on some page."""
    return {f"{home}.{name}" for names in public_modules().values() for name, home in names.items()}


def page_of(module: str, names: dict[str, str]) -> str:
    """Return the page of one module, in Markdown."""
    title = f"# `{module}`\n\n::: {module}\n    options:\n      members: false\n      show_root_heading: false\n"
    own = [name for name, home in names.items() if home == module]
    elsewhere = {name: home for name, home in names.items() if home != module}
    text = title + "".join(f"\n::: {module}.{name}\n" for name in own)
    if elsewhere:
        rows = "".join(f"| [`{name}`]({home}.md#{home}.{name}) | `{home}` |\n" for name, home in elsewhere.items())
        text += f"\n## Names from other modules\n\n| name | documented in |\n|---|---|\n{rows}"
    return text


def tests_by_point() -> dict[str, list[str]]:
    """Return the tests of each numbered guarantee, as pytest takes them."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for place, docstring in _docstrings(ast.parse(path.read_text("utf-8")), file):
            for number in _numbers(docstring):
                found.setdefault(number, []).append(place)
    return found


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, place: str
) -> list[tuple[str, str]]:
    below = [
        pair
        for child in node.body
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and child.name.startswith(("test_", "Test"))
        for pair in _docstrings(child, f"{place}::{child.name}")
    ]
    return [(place, ast.get_docstring(node) or ""), *below]


def _numbers(docstring: str) -> list[str]:
    """Return the numbers that a docstring begins with: `S7: …`, `C8, O7: …`, `Row 35, I6: …` or `I1 to I12 hold`."""
    match = NUMBERS.match(docstring)
    if match is None:
        return []
    numbers: list[str] = []
    for part in re.split(r", | and ", match[1]):
        first, _, last = part.partition(" to ")
        numbers += [f"{first[0]}{n}" for n in range(int(first[1:]), int((last or first)[1:]) + 1)]
    return numbers


def points() -> list[str]:
    """Return the numbers on the page of guarantees, in its order."""
    return POINT.findall((ROOT / "docs/reference/guarantees.md").read_text("utf-8"))


def _with_tests(markdown: str) -> str:
    """Put the tests of each guarantee below its sentence."""
    tests = tests_by_point()
    lines: list[str] = []
    for line in markdown.splitlines():
        lines.append(line)
        if match := POINT.match(line):
            places = tests.get(match[1], [])
            items = "".join(f"<li><code>{place}</code></li>" for place in places)
            word = "test" if len(places) == 1 else "tests"
            lines.append(f"  <details><summary>{len(places)} {word}</summary><ul>{items}</ul></details>")
    return "\n".join(lines)


def groups() -> dict[str, list[str]]:
    """Return the modules that the index of the reference lists, by the heading above them."""
    _, *sections = re.split(r"^## ", (ROOT / "docs/reference/index.md").read_text("utf-8"), flags=re.MULTILINE)
    found = {section.splitlines()[0]: MODULE_LINK.findall(section) for section in sections}
    return {title: modules for title, modules in found.items() if modules}


def on_config(config):  # noqa: ANN001, ANN201 - mkdocs calls it, and need not be installed
    """Put the generated pages into the navigation, in the groups of the index."""
    reference = next(group["Reference"] for group in config.nav if "Reference" in group)
    reference += [{title: [{module: page_path(module)} for module in modules]} for title, modules in groups().items()]
    return config


def on_files(files, config):  # noqa: ANN001, ANN201
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for module, names in public_modules().items():
        files.append(File.generated(config, page_path(module), content=page_of(module, names)))
    return files


def on_page_markdown(markdown, page, **_):  # noqa: ANN001, ANN201, ANN003
    """Add the tests to the page of guarantees."""
    return _with_tests(markdown) if page.file.src_uri == "reference/guarantees.md" else markdown
