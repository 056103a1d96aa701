"""Pages of profiles and plans: every chart has titled axes, and what it is about."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.index.plan.choose import plan
from headrace.index.plan.frontier import pareto_front
from headrace.index.report.pages import index_plan_page, index_profile_page
from headrace.index.report.tables import index_plan_tables, index_profile_tables
from tests.index.plan.models import FakeTrials, profile, random_model

MODEL = random_model()


def titles(figure: dict[str, Any]) -> list[str]:
    axes = [name for name in figure["layout"] if name.startswith(("xaxis", "yaxis"))]
    assert len(axes) >= 2
    return [figure["layout"][name]["title"]["text"] for name in axes]


def traces(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {each["name"]: each for each in figure["data"]}
    assert len(found) == len(figure["data"]), "two traces of one name"
    return found


def test_the_page_of_a_profile(figures: list[dict[str, Any]]) -> None:
    measured = profile(inserts=0.25)
    html = index_profile_page(measured, "a.profile").html()
    image, ranks, gaps = figures
    for figure in figures:
        assert all(titles(figure))
    assert set(traces(image)) == {"reads", "writes"}
    assert set(traces(ranks)) == {"reads", "writes"}
    assert sum(traces(gaps)["gaps"]["y"]) == pytest.approx(100)
    assert "of finds miss" not in html
    assert "% insert" in html
    assert "in 256 of 256 columns" in html


def test_the_page_of_a_plan_has_the_frontier(figures: list[dict[str, Any]]) -> None:
    trials = FakeTrials(lambda each: 1e6 + each.fragment_keys)
    made = plan(profile(), model=MODEL, trial=trials, most_bytes_per_key=1e9)
    html = index_plan_page(made, "a.plan").html()
    frontier, memory, leaves, image = figures
    for figure in figures:
        assert all(titles(figure))
    front = traces(frontier)["Pareto front"]
    known = made.candidates
    places = pareto_front([each.read_ns for each in known], [each.write_ns for each in known])
    assert front["x"] == [known[place].read_ns for place in places]
    assert traces(frontier)["chosen"]["x"] == [made.chosen.read_ns]
    assert traces(memory)["cap"]["x"] == [1e9, 1e9]
    assert traces(leaves)["hashed"]["y"] == [7] * sum(each.trials > 0 for each in known)
    assert set(traces(image)) == {"reads", "writes"}
    assert "the line is the Pareto front" in html
    assert "are predicted" in html


def test_the_page_of_a_plan_without_trials(figures: list[dict[str, Any]]) -> None:
    html = index_plan_page(plan(profile(), model=MODEL), "a.plan").html()
    assert "No trial has reported its leaves" in html
    assert len(figures) == 3
    assert "cap" not in traces(figures[1])


def test_tables_are_short_and_whole() -> None:
    made = plan(profile(), model=MODEL, trial=FakeTrials(lambda _: 1e6))
    assert len(list(index_plan_tables(made, everything=True))) == 2
    single = replace(made, candidates=made.candidates[:1])
    assert len(list(index_plan_tables(single, everything=False))) == 2
    assert len(list(index_profile_tables(profile(), everything=True))) == 2


def test_an_empty_image_is_drawn(figures: list[dict[str, Any]]) -> None:
    measured = profile()
    empty = replace(measured.encoding, image=np.zeros_like(measured.encoding.image))
    html = index_profile_page(replace(measured, encoding=empty), "a.profile").html()
    assert "in 0 of 256 columns" in html
    assert len(figures) == 3
