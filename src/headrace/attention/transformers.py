"""The names of Transformers that are used; an error with the remedy where it is missing."""

from headrace.extras import require

require("transformers", "attention", "compressing attention")

from transformers import AttentionInterface as AttentionInterface  # noqa: E402
from transformers import AttentionMaskInterface as AttentionMaskInterface  # noqa: E402
from transformers import Cache as Cache  # noqa: E402
from transformers import DynamicCache as DynamicCache  # noqa: E402
from transformers.cache_utils import CacheLayerMixin as CacheLayerMixin  # noqa: E402
from transformers.modeling_utils import (  # noqa: E402
    ALL_ATTENTION_FUNCTIONS as ALL_ATTENTION_FUNCTIONS,
)
