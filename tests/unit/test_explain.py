"""Each code has its words, its page and its place in the terminal."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.cli_runs import Runner
from tracer import codes
from tracer.api_metrics import METRICS
from tracer.explain import KINDS, NOT_YET, _texts, codes_explained, explain
from tracer.render_units import width

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODES = [code.code for code in codes_explained()]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Runner:
    return Runner(capfdbinary)


@pytest.mark.parametrize("code", CODES)
def test_each_code_is_explained(code: str) -> None:
    found = explain(code)
    assert found is not None, f"tracer/explanations.toml has no entry {code}"
    assert found.how.endswith(".")
    assert all(step[-1] in ".:)`?" for step in found.do)
    ends = codes.get(code, "stage", "cause", "why", "unreadable")
    assert found.do or ends is None or ends.code == "other.rest"


def test_nothing_else_is_explained() -> None:
    assert set(_texts()) == set(CODES)
    assert explain("load") is None
    assert explain("nothing") is None


def test_codes_without_a_rule_are_said_to_be_so() -> None:
    elsewhere = "".join(
        path.read_text()
        for path in (ROOT / "tracer").rglob("*.py")
        if path.name not in ("codes.py", "explain.py")
    )
    assert [code for code in NOT_YET if f'"{code}"' in elsewhere] == []


def test_the_pages_are_what_the_tables_say() -> None:
    made = script().pages()
    there = {path.name: path.read_text() for path in (DOCS / "causes").iterdir()}
    assert there == made, "run: python scripts/docs.py"
    assert set(made) == {f"{code}.md" for code in CODES} | {"README.md"}


def test_no_link_in_the_docs_leads_nowhere() -> None:
    for path in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
            if not link.startswith("https://"):
                assert (path.parent / link).exists(), f"{path}: {link}"


def test_every_metric_is_documented() -> None:
    text = (DOCS / "monitoring.md").read_text()
    assert [name for name in METRICS if f"| `{name}` |" not in text] == []
    assert set(re.findall(r"^\| `(ttft_\w+)`", text, re.MULTILINE)) == set(METRICS)


@pytest.mark.parametrize("code", CODES)
def test_the_terminal_shows_each(run: Runner, code: str) -> None:
    ran = run("explain", code)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{code}\n")
    assert "How ttft knows" in ran.out
    assert max(map(width, ran.out.splitlines())) <= 80
    assert run("explain", code, "--json").json["code"] == code


def test_all_of_them(run: Runner) -> None:
    listed = run("explain").out
    assert [code for code in CODES if f"  {code} " not in listed] == []
    assert max(map(width, listed.splitlines())) <= 80
    assert [one["code"] for one in run("explain", "--json").json] == CODES
    assert {one["kind"] for one in run("explain", "--json").json} == set(KINDS.values())


@pytest.mark.parametrize("phase", codes.PHASE_CODES, ids=lambda phase: phase.code)
def test_a_phase_is_what_it_is_and_its_codes(run: Runner, phase: codes.Code) -> None:
    ran = run("explain", phase.code)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{phase.code}\n{phase.meaning} (phase)\n")
    assert max(map(width, ran.out.splitlines())) <= 80
    mine = [code.code for code in codes_explained() if code.phase == phase.code]
    assert mine
    assert {line.split()[0] for line in ran.out.splitlines() if line.startswith("  ")} == set(mine)
    told = run("explain", phase.code, "--json").json
    assert (told["kind"], [one["code"] for one in told["codes"]]) == ("phase", mine)


def test_codes_in_other_letters(run: Runner) -> None:
    assert run("explain", "LOAD.DISK").out == run("explain", "load.disk").out
    assert run("explain", " Load ").out == run("explain", "load").out
    assert "did you mean load.disk" in run("explain", "LOAD.DSK").err


def test_a_code_that_is_not_there(run: Runner) -> None:
    ran = run("explain", "load.dsk")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("ttft: there is no code load.dsk\nhint: did you mean load.disk")
    assert "ttft explain lists them" in run("explain", "\x1b[31mzzz").err
