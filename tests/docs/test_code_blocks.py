"""Runs the code blocks of README.md and of the pages in docs/, serving/ and configs/.

Python blocks of a page run one after the other in one namespace, in a folder with the paths that
the page names; ``world`` has these and the values that a page does not define. A block that chooses
Keras' backend, and those after it, run in a process of their own. Of other blocks, the commands are
parsed. ``<!-- not run: reason -->`` before a block leaves it out; its imports are checked.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import yaml
from markdown_it import MarkdownIt

from bertfam_tf import plan, sources
from bertfam_tf.cli.main import _parsed
from bertfam_tf.recipes import schema
from bertfam_tf.recipes.reading import load_recipe

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    "README.md",
    *sorted(
        str(file.relative_to(ROOT))
        for folder in ("docs", "serving", "configs")
        for file in (ROOT / folder).rglob("*.md")
    ),
]
NOT_RUN = re.compile(r"<!-- not run: \S.*-->\s*")
RECIPES = {
    "train": schema.Recipe,
    "sweep": schema.Recipe,
    "pretrain": schema.PretrainRecipe,
    "distill": schema.DistillRecipe,
}


class Block(NamedTuple):
    """A block of code.

    Fields:
        language: what follows the fence.
        source: its lines.
        line: number of its first line in the page, from 1.
        run: whether it is run.
    """

    language: str
    source: str
    line: int
    run: bool


@functools.cache
def blocks(page: str) -> list[Block]:
    """The blocks of a page."""
    found, run = [], True
    for token in MarkdownIt("commonmark").parse((ROOT / page).read_text("utf-8")):
        if token.type == "fence":
            found.append(Block(token.info.strip(), token.content, token.map[0] + 2, run))
        if token.level == 0:
            run = not (token.type == "html_block" and NOT_RUN.fullmatch(token.content))
    return found


def of_language(page: str, *languages: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in languages]


def to_run(page: str) -> list[Block]:
    return [block for block in of_language(page, "python") if block.run]


@contextlib.contextmanager
def located(page: str, line: int) -> Iterator[None]:
    """Errors say where in the page they are."""
    try:
        yield
    except (Exception, SystemExit) as error:
        inner = [x for x in _frames(error) if x[0] == page]
        place = f"{page}:{inner[-1][1] if inner else line}"
        raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error


def _frames(error: BaseException) -> list[tuple[str, int]]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


# Python -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if of_language(page, "python")])
def test_names(page):
    """Of the package, which pages import or read, also in blocks that are not run."""
    for block in of_language(page, "python"):
        with located(page, block.line):
            for node in ast.walk(ast.parse("\n" * (block.line - 1) + block.source, page)):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("bertfam_tf"):
                    for alias in node.names:
                        _import(node.module, alias.name)
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "bf":
                    _import("bertfam_tf", node.attr)


def _import(module: str, name: str) -> None:
    if not hasattr(importlib.import_module(module), name):
        importlib.import_module(f"{module}.{name}")


@pytest.mark.full
@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)])
def test_python(page, tmp_path, monkeypatch):
    from tests.docs import world

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "serving" / "clients"))
    found = to_run(page)
    world.make_paths("\n".join(block.source for block in found), tmp_path)
    embedder = tmp_path / "package"
    if "package:" in "".join(block.source for block in found):
        world.embedder().save_pretrained(embedder)
    monkeypatch.setattr(sources, "_package", lambda name: embedder)
    names: dict = {"__name__": "__main__"}
    apart: list[Block] = []
    with contextlib.ExitStack() as stack:
        for block in found:
            with located(page, block.line):
                code = "\n" * (block.line - 1) + block.source
                tree = ast.parse(code, page)
                if "KERAS_BACKEND" in code or apart:
                    apart.append(block)
                    continue
                if "127.0.0.1:8500" in code:
                    _replace_port(tree, stack.enter_context(world.server()))
                for name in _read_names(tree) - names.keys():
                    if name in world.VALUES:
                        names[name] = world.VALUES[name]()
                special = {}
                for part, values in world.SPECIAL.items():
                    special |= values if part in code else {}
                names |= special
                exec(compile(tree, page, "exec"), names)
                for name in special:
                    del names[name]
    if apart:
        with located(page, apart[0].line):
            _run_apart("".join(block.source for block in apart))


def _read_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _run_apart(source: str) -> None:
    """Runs in a process of its own, with eight devices, and few steps of each training."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "steps_per_epoch":
            node.value = ast.Constant(2)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ast.unparse(tree)]
    done = subprocess.run(command, env={**os.environ, **flags}, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])


def _replace_port(tree: ast.AST, target: str) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == "127.0.0.1:8500":
            node.value = target


# Commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_commands(page):
    for block in of_language(page, "", "sh", "console", "bash"):
        if not block.run:
            continue
        source = re.sub(r"\\\n *", lambda match: " " * len(match[0]), block.source)
        line = block.line
        for text in source.splitlines():
            with located(page, line):
                _check(text)
            line += 1
    for block in of_language(page, "yaml", "json"):
        with located(page, block.line):
            (yaml.safe_load if block.language == "yaml" else json.loads)(block.source)


def _check(line: str) -> None:
    if "─" in line:  # a drawing
        return
    words = shlex.split(line.removeprefix("$ "), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    for end in ("|", ">", "&", "&&"):
        words = words[: words.index(end)] if end in words else words
    match words:
        case ["bertfam", *arguments]:
            _check_bertfam(arguments)
        case ["python" | ".venv/bin/python" | "build/batch/bin/python", "-m", module, *arguments]:
            if module.startswith(("tools.", "bertfam_tf")):
                _check_module(module, arguments)
        case ["python" | "build/batch/bin/python", file, *arguments]:
            _check_options((ROOT / file).read_text("utf-8"), arguments)
        case ["make", *arguments]:
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
            for target in arguments:
                assert "=" in target or target in targets, f"make has no target {target}"
        case ["pip", "install", *arguments]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            extras = project["optional-dependencies"]
            for extra in re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", line))):
                assert extra in extras, f"pyproject.toml has no extra {extra}"


def _check_bertfam(arguments: list[str]) -> None:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            options = _parsed(arguments)
    except SystemExit as error:
        if error.code:
            raise ValueError(errors.getvalue().strip().splitlines()[-1]) from None
        return  # --help
    recipe = getattr(options, "recipe", None)
    if recipe and recipe.startswith("configs/"):
        with mock.patch.dict(os.environ, BERTFAM_DATA="data"):
            if options.command == "plan":
                plan.read(ROOT / recipe, options.override)
            else:
                load_recipe(ROOT / recipe, options.override, RECIPES[options.command])
    if options.command == "families":
        with contextlib.redirect_stdout(io.StringIO()):
            options.run(options)


def _check_module(module: str, arguments: list[str]) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None, f"there is no {module}"
    file = Path(found.origin)
    file = file.with_name("__main__.py") if file.name == "__init__.py" else file
    _check_options(file.read_text("utf-8"), arguments)


def _check_options(source: str, arguments: list[str]) -> None:
    """Options stand in the source of the program, if it is not one that passes them on."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if re.fullmatch(r"--[a-z][\w-]*", option) and "parse_known_args" not in source:
            assert f'"{option}"' in source, f"unknown option {option}"


def test_what_is_wrong_is_found():
    for line in (
        "bertfam trian configs/bert/sst2.yaml",
        "bertfam train configs/bert/sst3.yaml",
        "bertfam train configs/bert/sst2.yaml train.epoch=2",
        "bertfam predict runs/try --best 3",
        "make tset",
        "python -m tools.quick_start",
        "python -m tools.make_elmo_goldens --fast",
        'pip install -e ".[server]"',
    ):
        with pytest.raises((AssertionError, ValueError)):
            _check(line)
    with pytest.raises(ModuleNotFoundError):
        _import("bertfam_tf", "TextClasifier")
    with pytest.raises(AssertionError, match=r"^page\.md:7: NameError"), located("page.md", 6):
        exec(compile("\n" * 5 + "a = 1\nb", "page.md", "exec"), {})


def test_blocks_are_left_out_for_a_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a server -->\n\n```python\na\n```\n\n```python\nb\n```\n"
        "<!-- not run: -->\n\n```python\nc\n```\n"
    )
    found = [(block.line, block.run) for block in blocks(str(page))]
    assert found == [(4, False), (8, True), (13, True)]
