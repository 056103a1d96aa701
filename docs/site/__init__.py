"""The documentation as a site: ``make docs`` builds it into ``build/docs/html``, without a network.

In the order of the work: `pages` stages the Markdown pages of the repository, `sources` what they
link to, `registries`, `schemas` and `results` write pages from code and from kept results,
`reference` lists the public names for Sphinx's autodoc, whose questions `hooks` answers, and
`build` runs Sphinx and checks every link of what it wrote.
"""
