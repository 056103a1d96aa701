"""Names of the formats of files of examples."""

from typing import Literal

FormatName = Literal["criteo", "avazu", "parquet"]
