"""The demo's optional packages: a module name goes in, the module or a one-line error with the fix comes out."""

from __future__ import annotations

import importlib
from types import ModuleType

from packloom.errors import CapabilityError


def require(name: str) -> ModuleType:
    """Import a package of the extra ``demo``; CapabilityError says how to install it when it is absent."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CapabilityError(
            f"packloom demo needs the package {error.name!r}: pip install 'packloom[demo]'"
        ) from error
