"""The front-end process: HTTP, text and metrics. Knows no tensors and no model weights."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tandem")
except PackageNotFoundError:
    __version__ = "0.0.0"
