"""Stands in for the native module where that is not built: importing it raises the remedy.

Python prefers the built module, ``_native.*.so`` beside this file, if there is one for its version.
"""

import sys

raise ImportError(
    f"headrace's native module is not built for Python {sys.version_info[0]}.{sys.version_info[1]} "
    "in this folder: run make native in a checkout, or pip install . to install headrace",
    name="headrace._native",
)
