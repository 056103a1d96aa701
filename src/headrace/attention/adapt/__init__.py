"""Following the text: more clusters where heads look at other tokens than on the plan's."""
