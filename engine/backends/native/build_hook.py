"""Compiles the sources beside it when Tandem is installed, where there is a C++ compiler; else
PyTorch's operations are used. The library's name tells which sources it was made from."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("engine") / "backends" / "native"
# Fused multiply-adds only where the source asks for them: the bits must not depend on the compiler.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-ffp-contract=off")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """hatchling calls it before it builds a wheel, an editable one too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        if self.target_name != "wheel" or compiler is None:
            return
        try:
            library = build(folder, compiler)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the native kernels were not built: {error}")
            return
        if version == "editable":
            return
        build_data["force_include"][str(library)] = str(FOLDER / library.name)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def build(folder: Path, compiler: str) -> Path:
    """The shared library. It takes the OpenMP runtime that torch has loaded, hence two steps."""
    sources = sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    for old in folder.glob("native-*.so"):
        old.unlink()
    units = [source for source in sources if source.suffix == ".cpp"]
    objects = [unit.with_suffix(".o") for unit in units]
    library = folder / f"native-{digest}.so"
    try:
        for unit, compiled in zip(units, objects, strict=True):
            subprocess.run([compiler, *FLAGS, "-c", unit, "-o", compiled], check=True)
        subprocess.run([compiler, "-shared", *objects, "-o", library], check=True)
    finally:
        for compiled in objects:
            compiled.unlink(missing_ok=True)
    return library
