"""The repository that the site is of."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
