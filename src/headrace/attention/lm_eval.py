"""The names of lm-eval that are used; an error with the remedy where it is missing.

Its types are not read: checks do not need it.
"""

from typing import TYPE_CHECKING, Any

from headrace.extras import require

require("lm_eval", "tasks", "evaluating tasks of lm-eval")

if TYPE_CHECKING:

    class TemplateLM:
        """A model, as lm-eval's tasks ask it."""

        tokenizer: Any

        def loglikelihood(
            self, requests: Any, disable_tqdm: bool = False
        ) -> list[tuple[float, bool]]:
            """Tokenize and score."""
            ...

    TaskManager: Any
    dataset_settings: Any
    normalize_gen_kwargs: Any
    simple_evaluate: Any
else:
    import datasets
    from lm_eval import simple_evaluate as simple_evaluate
    from lm_eval.api.model import TemplateLM as TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs as normalize_gen_kwargs
    from lm_eval.tasks import TaskManager as TaskManager

    dataset_settings = datasets.config
