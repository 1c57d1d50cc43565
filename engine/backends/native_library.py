"""Loads the compiled kernels where they were built.

What they compute is known by those who call them; `native/build_hook.py` builds them when Tandem is
installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "native"
_OPENMP_NAMES = ("libgomp", "libiomp5", "libomp")


def load_native_library() -> ctypes.CDLL | None:
    """None where there is none of these very sources; torch must be loaded before."""
    sources = sorted([*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h")])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    path = _FOLDER / f"native-{digest}.so"
    openmp = _loaded_openmp()
    if not path.exists() or openmp is None:
        return None
    try:
        # Two OpenMP runtimes in a process would wait for each other's threads: torch's serves both.
        ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
        return _with_types(ctypes.CDLL(str(path)))
    except OSError as error:
        logger.warning("the native kernels cannot be loaded: %s", error)
        return None


def _with_types(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    library.tandem_attend.restype = None
    library.tandem_attend.argtypes = [
        *(pointer, number),
        *(pointer, stride) * 3,
        *(pointer, pointer),
        *(pointer, number) * 2,
        pointer,
    ]
    library.tandem_rms_norm.restype = None
    library.tandem_rms_norm.argtypes = [
        *(number, pointer, pointer, number, number),
        *(ctypes.c_float, pointer),
    ]
    library.tandem_linear_bfloat16.restype = None
    library.tandem_linear_bfloat16.argtypes = [pointer, pointer, number, number, pointer, pointer]
    library.tandem_linear_int8.restype = None
    library.tandem_linear_int8.argtypes = [
        *(pointer, number) * 2,
        *(number, pointer, pointer),
    ]
    return library


def _loaded_openmp() -> str | None:
    """The runtime's file, as this process has it in memory."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[-1] for line in lines if ".so" in line)
    return next((p for p in paths if Path(p).name.startswith(_OPENMP_NAMES)), None)
