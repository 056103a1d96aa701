"""The command line: ``headrace CAPABILITY STAGE``, and verbs that take any artifact."""
