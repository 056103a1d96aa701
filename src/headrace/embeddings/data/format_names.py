"""Names of the formats of files of examples, and of data sets in Criteo's format."""

from typing import Literal

FormatName = Literal["criteo", "avazu", "parquet"]
CriteoSet = Literal["kaggle", "terabyte"]
