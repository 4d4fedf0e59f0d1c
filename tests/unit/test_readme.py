"""Whatever Python stands in the READMEs, in docs/ and in examples/, runs."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
import yaml

import paddle_resume

ROOT = Path(__file__).resolve().parents[2]
FIRST = "try:\n    import scipy.linalg\nexcept ImportError:\n    pass\n"  # Paddle 2.6 needs it so


def blocks(name: str) -> List[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
TEXTS = ["README.md", "README_cn.md", "configs/README.md", *(f"docs/{name}" for name in PAGES)]
CALLBACKS = ["AutoResume", "PeriodicSaver", "BestSaver", "EmergencySaver"]


@pytest.mark.parametrize("name", ["docs/arguments.md", "docs/arguments_cn.md"])
@pytest.mark.parametrize("kind", CALLBACKS)
def test_the_tables_list_what_there_is(name: str, kind: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    section = re.split(r"^#", text.split(f"## `pr.{kind}(save_dir)`")[1], flags=re.MULTILINE)[0]
    listed = re.findall(r"^\| `(\w+)=(.*?)` \|", section, re.MULTILINE)
    parameters = inspect.signature(getattr(paddle_resume, kind)).parameters
    built = [(key, value.default) for key, value in parameters.items() if key != "save_dir"]
    assert [(key, ast.literal_eval(default)) for key, default in listed] == built


@pytest.mark.parametrize("name", ["README.md", "README_cn.md"])
def test_the_short_table_names_true_defaults(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    rows = re.findall(r"^\| `pr\.(\w+)` \|.*\|(.*)\|$", text, re.MULTILINE)
    assert [kind for kind, _ in rows] == CALLBACKS
    for kind, arguments in rows:
        parameters = inspect.signature(getattr(paddle_resume, kind)).parameters
        for key, default in re.findall(r"`(\w+)=(.*?)`", arguments):
            assert parameters[key].default == ast.literal_eval(default), key


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
        assert "://" in target or (path.parent / target).exists(), target


def test_each_page_has_both_languages() -> None:
    pages = [name for name in PAGES if name != "architecture.md"]
    english = {name for name in pages if not name.endswith("_cn.md")}
    assert {name.replace("_cn.md", ".md") for name in pages if name not in english} == english


@pytest.mark.parametrize("name", ["README.md", "README_cn.md"])
def test_a_fresh_machine_needs_two_commands(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    block = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0]
    assert re.findall(r"^\S.*?(?=  )", block, re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.parametrize("name", TEXTS)
def test_yaml_blocks_are_yaml(name: str) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL):
        assert yaml.safe_load(block)


def run(program: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = folder / "program.py"
    path.write_text(program, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["README.md", "README_cn.md"])
def test_the_blocks_run_one_after_the_other(name: str, tmp_path: Path) -> None:
    program = "\n".join([FIRST, *blocks(name)])
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "output").glob("*/step_*")), "no checkpoint was written"
    (shown,) = re.findall(r"^\{'loss': \[(.*)\]\}$", done.stdout, re.MULTILINE)
    best = json.loads((tmp_path / "output" / "run3" / "best.json").read_text("utf-8"))
    assert float(shown) == best["best"][0]["value"] and len(best["best"]) == 2


@pytest.mark.parametrize("name", [f"docs/{name}" for name in PAGES if blocks(f"docs/{name}")])
def test_the_blocks_of_a_page_run_after_the_readme_s_first(name: str, tmp_path: Path) -> None:
    program = "\n".join([FIRST, blocks("README.md")[0], *blocks(name)])
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_both_languages_show_the_same_programs() -> None:
    def code(name: str) -> List[str]:
        return [re.sub(r" *#.*", "", block) for block in blocks(name)]

    for name in TEXTS:
        other = name.replace(".md", "_cn.md")
        if (ROOT / other).exists():
            assert code(name) == code(other), name


def test_the_example_trains_and_goes_on(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "fit_mnist_like.py").read_text("utf-8")
    first = run(program, tmp_path, "--epochs", "1")
    assert first.returncode == 0, first.stderr[-3000:]
    second = run(program, tmp_path, "--epochs", "2")
    assert second.returncode == 0, second.stderr[-3000:]
    assert "[paddle_resume] resumed after epoch 1 (step 45)" in second.stderr
    assert "Epoch 2/2" in second.stdout
