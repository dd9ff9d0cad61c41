"""Command lines of the known servers, and the odd ones beside them."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.records import Command
from tracer.servers import name_model, parse_command

CASES = [
    (
        ["/opt/llama-server", "--models-dir", "/m", "--models-max", "1", "--port", "8080"],
        False,
        Command(program="llama-server", role="front", port=8080, options=("models-max=1",)),
    ),
    (
        ["llama-server", "-m", "/m/beta.gguf", "-c", "4096", "--no-mmap"],
        False,
        Command(
            program="llama-server", role="single", model="beta", model_path="/m/beta.gguf",
            options=("ctx-size=4096", "no-mmap"),
        ),
    ),
    (
        ["llama-server", "--alias", "beta", "--model=/m/x.gguf", "--port=9001"],
        True,
        Command(
            program="llama-server", role="runner", model="beta", model_path="/m/x.gguf", port=9001
        ),
    ),
    (["llama-server", "--port", "1"], True, Command(program="llama-server", role="decoy", port=1)),
    (
        ["llama-server", "--list-devices"],
        True,
        Command(program="llama-server", role="decoy"),
    ),
    (["ollama", "serve"], False, Command(program="ollama", role="front")),
    (["ollama", "list"], False, None),
    (["ollama", "gpu-discover"], True, Command(program="ollama", role="decoy")),
    (
        ["ollama", "runner", "--model", "/b/sha256-12", "--port", "4000"],
        True,
        Command(
            program="ollama", role="runner", model="sha256-12", model_path="/b/sha256-12", port=4000
        ),
    ),
    (
        ["/usr/bin/python3", "/v/bin/vllm", "serve", "org/m", "--port", "8000"],
        False,
        Command(program="vllm", role="single", model="org/m", model_path="org/m", port=8000),
    ),
    (
        ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "x/y"],
        False,
        Command(program="vllm", role="single", model="x/y", model_path="x/y"),
    ),
    (
        ["llama-swap", "--listen", ":8081"],
        False,
        Command(program="llama-swap", role="front", port=8081),
    ),
    (["local-ai", "models", "list"], False, None),
    (
        ["/b/llama-cpp", "--addr", "127.0.0.1:4433"],
        True,
        Command(program="local-ai-backend", role="runner", port=4433),
    ),
    (["/b/llama-cpp", "--addr", "127.0.0.1:4433"], False, None),
    (["bash", "-c", "ollama serve"], False, None),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "child", "expected"), CASES)
def test_known_command_lines(argv: list[str], child: bool, expected: Command | None) -> None:
    assert parse_command(argv[0], argv, child=child) == expected


def test_keys_never_leave() -> None:
    argv = ["llama-server", "-m", "/m/a.gguf", "--api-key", "SECRET", "--hf-token", "SECRET"]
    assert "SECRET" not in repr(parse_command(None, argv))


@pytest.mark.parametrize(
    ("asked", "replied", "role", "expected"),
    [
        ("gpt-4", "/m/beta.gguf", "single", "beta"),
        ("alpha", "beta", "runner", "alpha"),
        (None, "/m/alpha.gguf", "runner", "alpha"),
        (None, "org/alpha", "runner", "org/alpha"),
        (None, None, "runner", "beta"),
    ],
)
def test_a_model_has_one_name(
    asked: str | None, replied: str | None, role: Literal["single", "runner"], expected: str
) -> None:
    command = Command(program="llama-server", role=role, model="beta")
    assert name_model(asked, replied, command) == expected
    assert name_model(asked, None, None) == asked


@given(st.text(), st.lists(st.text()), st.booleans())
def test_any_command_line_is_survived(exe: str, argv: list[str], child: bool) -> None:
    parse_command(exe, argv, child=child)
