"""Which program is this, and what does its command line say about models?

Pure: an executable and its arguments in, a `Command` out. Only the facts named in
`Command` leave; the rest of a command line may hold keys and is dropped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from tracer.records import Command

Args = Sequence[str]

#: Names (task comm, at most 15 bytes) whose exec is watched from its first instruction.
SERVER_COMMS: tuple[str, ...] = ("llama-server", "ollama", "llama-swap", "local-ai", "vllm")

#: Options whose value changes how a model is loaded or kept; llama-server's spellings first.
_VALUED = {
    "-c": "ctx-size", "--ctx-size": "ctx-size", "-np": "parallel", "--parallel": "parallel",
    "-ngl": "gpu-layers", "--gpu-layers": "gpu-layers", "--n-gpu-layers": "gpu-layers",
    "-b": "batch-size", "--batch-size": "batch-size", "-ub": "ubatch-size",
    "--ubatch-size": "ubatch-size", "--numa": "numa", "--load-mode": "load-mode",
    "--models-max": "models-max", "--sleep-idle-seconds": "sleep-idle-seconds",
    "-ctk": "cache-type-k", "-ctv": "cache-type-v", "-fa": "flash-attn",
    "--max-model-len": "max-model-len", "--tensor-parallel-size": "tensor-parallel-size",
    "--gpu-memory-utilization": "gpu-memory-utilization", "--dtype": "dtype",
}  # fmt: skip
_SWITCHES = {
    "--no-mmap": "no-mmap", "--mlock": "mlock", "--no-warmup": "no-warmup", "-dio": "direct-io",
    "--direct-io": "direct-io", "--embedding": "embedding", "--embeddings": "embedding",
    "--enforce-eager": "enforce-eager", "--enable-sleep-mode": "enable-sleep-mode",
}  # fmt: skip
_VALUE_LIMIT = 64
_NAME_LIMIT = 256


def _value(args: Args, *names: str) -> str | None:
    """The value of the first of `names` present, as `--name value` or `--name=value`."""
    for i, arg in enumerate(args):
        key, sep, inline = arg.partition("=")
        if arg in names and i + 1 < len(args):
            return args[i + 1][:4096]
        if sep and key in names:
            return inline[:4096]
    return None


def _port(text: str | None) -> int | None:
    """A port from `8080` or `host:8080`; None for anything else."""
    digits = (text or "").rpartition(":")[2]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5):
        return None
    port = int(digits)
    return port if 0 < port < 65536 else None


def _options(args: Args) -> Iterator[str]:
    for i, arg in enumerate(args):
        key, sep, inline = arg.partition("=")
        if key in _SWITCHES:
            yield _SWITCHES[key]
        elif key in _VALUED and sep:
            yield f"{_VALUED[key]}={inline[:_VALUE_LIMIT]}"
        elif key in _VALUED and i + 1 < len(args):
            yield f"{_VALUED[key]}={args[i + 1][:_VALUE_LIMIT]}"


def _model_name(alias: str | None, path: str | None) -> str | None:
    """What clients call it: the alias, else the file's name without its ending."""
    if alias:
        return alias[:_NAME_LIMIT]
    if not path:
        return None
    name = PurePosixPath(path).name
    for ending in (".gguf", ".safetensors", ".bin", ".pt"):
        name = name.removesuffix(ending)
    return name[:_NAME_LIMIT]


def same_model(a: str | None, b: str | None) -> bool:
    """Whether two names are of one model: a path, an ending or a default tag may differ."""
    return a is not None and b is not None and _bare(a) == _bare(b)


def _bare(name: str) -> str:
    base = PurePosixPath(name).name.lower()
    return base.removesuffix(".gguf").removesuffix(":latest")


def name_model(asked: str | None, replied: str | None, command: Command | None) -> str | None:
    """What to call the model of a request, by what client, reply and its runner's command say.

    A server of one model answers whatever name the client gives, so its own name counts; a reply
    may name a whole path.
    """
    own = command.model if command else None
    if command is not None and command.role == "single" and own:
        return own
    if asked:
        return asked
    if replied:
        return _model_name(None, replied) if replied.startswith("/") else replied
    return own


def _command(program: str, role: str, args: Args, path: str | None, alias: str | None) -> Command:
    return Command(
        program=program,
        role=role,  # type: ignore[arg-type]
        model=_model_name(alias, path),
        model_path=path,
        port=_port(_value(args, "--port", "--listen", "-listen", "--addr", "--address")),
        options=tuple(dict.fromkeys(_options(args))),
    )


def _llama_server(args: Args, child: bool) -> Command:
    path = _value(args, "-m", "--model")
    alias = _value(args, "-a", "--alias")
    remote = _value(args, "-hf", "-hfr", "--hf-repo", "-mu", "--model-url")
    if "--list-devices" in args:
        return _command("llama-server", "decoy", args, None, None)
    if path or remote:
        role = "runner" if child else "single"
        return _command("llama-server", role, args, path, alias or remote)
    # A router's child always names its model; another parent's child without one looks at devices.
    return _command("llama-server", "decoy" if child else "front", args, None, alias)


def _ollama(args: Args, child: bool) -> Command | None:
    verb = args[1] if len(args) > 1 else ""
    if verb in ("serve", "start"):
        return _command("ollama", "front", args, None, None)
    if verb == "runner":
        path = _value(args, "--model", "-model")
        return _command("ollama", "runner" if path else "decoy", args, path, None)
    return _command("ollama", "decoy", args, None, None) if child else None


def _llama_swap(args: Args, child: bool) -> Command:
    return _command("llama-swap", "front", args, None, None)


def _local_ai(args: Args, child: bool) -> Command | None:
    verb = next((a for a in args[1:] if not a.startswith("-")), "run")
    if verb in ("models", "backends", "util", "tts", "transcript", "help", "version"):
        return None
    return _command("local-ai", "front", args, None, None)


def _vllm(args: Args, child: bool) -> Command | None:
    path = _value(args, "--model")
    if "serve" in args:
        after = args[args.index("serve") + 1 :]
        if after and not after[0].startswith("-"):
            path = path or after[0]
    elif not any("vllm.entrypoints" in a for a in args):
        return None
    name = _value(args, "--served-model-name")
    if name is None and path and not path.startswith("/"):
        name = path  # clients have to say it whole, as on the hub
    return _command("vllm", "single", args, path, name)


_PROGRAMS = {
    "llama-server": _llama_server, "llama-server.exe": _llama_server, "ollama": _ollama,
    "llama-swap": _llama_swap, "local-ai": _local_ai, "localai": _local_ai, "vllm": _vllm,
}  # fmt: skip


def _vllm_script(args: Args) -> bool:
    """`python .../vllm serve`, or `python -m vllm.entrypoints...`."""
    return any(
        PurePosixPath(a).name == "vllm" or a.startswith("vllm.entrypoints") for a in args[1:4]
    )


def parse_command(exe: str | None, argv: Args, *, child: bool = False) -> Command | None:
    """What a process is; None if it is no server and no runner known here.

    `child`: its parent belongs to a watched server, so anything listening may hold a model.
    """
    args = [a for a in argv[:512] if len(a) <= 65536]
    names = [PurePosixPath(p).name for p in ((exe or "").removesuffix(" (deleted)"), *args[:1])]
    for name in names:
        if name in _PROGRAMS:
            return _PROGRAMS[name](args, child)
    if any(n.startswith("python") for n in names) and _vllm_script(args):
        return _vllm(args, child)
    if child and _value(args, "--addr"):
        return _command("local-ai-backend", "runner", args, None, None)
    return None
