"""Commands of ``headrace collectives``, and of the verbs that take plans."""
