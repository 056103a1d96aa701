"""``headrace compression plan``: its answer, its file, and errors that name what would do."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.artifact import Artifact
from headrace.artifact import load as load_artifact
from headrace.cli.app import app
from headrace.collectives.plan.book import build_book
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.plan import CompressionPlan
from headrace.errors import ArtifactError, VerificationError
from headrace.topology.presets import uniform
from tests.compression.plan.cells import profile

RESNET = ("--bundled", "resnet50", "--ranks", "64")


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert code != 0, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


def planned(*arguments: object, code: int = 0) -> str:
    return run("compression", "plan", *arguments, code=code)


def test_a_bundled_model_is_planned_shown_verified_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    text = planned(*RESNET, "--batch", 64, "--bandwidth", "1Gbit/s", "-o", file)
    assert "64 workers at 1000 Mbit/s, ring" in text
    assert re.search(r"powersgd:4 +(after|during) ", text)
    assert "every 16 steps" in text
    assert "367 images/s" in text
    plan = CompressionPlan.load(file)
    assert plan.advice.winner.codec != "none"
    assert f"fastest {plan.advice.winner.codec}"[8:] in text
    assert run("show", file).count("powersgd:4") == text.count("powersgd:4")
    assert run("verify", file).startswith("ok ")
    run("report", file, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for figure in ("4.8", "4.10", "4.11", "4.12", "4.13", "4.14"):
        assert figure in page
    fast = planned(*RESNET, "--bandwidth", "1000Gbit/s", "-o", file, "--codecs", "powersgd:4,sign")
    assert "none, during the backward pass" in fast
    assert "none: DistributedDataParallel as it is" in fast
    winner = plan.advice.winner
    when = "" if winner.mode == "after" else ', when="during"'
    assert f'hook = headrace.compression.ddp_hook(model, "{winner.codec}"{when})' in text
    assert "topk" not in fast


def test_without_a_file_the_plan_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = planned(*RESNET, "--bandwidth", "10Gbit/s")
    assert "fastest" in text
    assert "Wrote" not in text
    assert not list(tmp_path.iterdir())


def test_json_has_what_leaves_a_rank_and_the_fastest_gentle_codec() -> None:
    text = planned(*RESNET, "--batch", 64, "--bandwidth", "1Gbit/s", "--json")
    result = json.loads(text)["result"]
    steps = {(step["codec"], step["mode"]): step for step in result["codecs"]}
    assert steps["none", "during"]["sent_bytes"] == pytest.approx(201e6, rel=0.01)
    assert steps["none", "during"]["accuracy"] == "exact"
    gentle = min((step for step in steps.values() if step["gentle"]), key=lambda s: s["step_us"])
    assert result["fastest_gentle"] == gentle
    assert result["winner"]["step_us"] < gentle["step_us"]


def test_sent_is_what_leaves_a_rank_and_the_fastest_gentle_codec_is_named() -> None:
    """The table's "sent" was a payload: 102 MB of none, of which 201 MB leave a rank."""
    text = planned(*RESNET, "--batch", 64, "--bandwidth", "1Gbit/s")
    for codec, sent_mb, accuracy in (
        ("none", 201, "exact"),
        ("bf16", 101, "rounded"),
        ("sign", 6.7, "harsh, with feedback"),
        ("powersgd:4", 3.0, "harsh, with feedback"),
        ("qsgd:2", 13.3, "unbiased, noisy"),
        ("topk:1%", 129, "harsh, with feedback"),
    ):
        rows = re.findall(rf"^\W*{codec} +(?:\* +)?(?:during|after) .*$", text, re.MULTILINE)
        assert len(rows) == 1, (codec, text)
        assert accuracy in rows[0]
        mebibytes = re.search(r"([\d.]+) MiB", rows[0])
        assert mebibytes is not None, rows[0]
        assert float(mebibytes[1]) * 1.048576 == pytest.approx(sent_mb, rel=0.03), rows[0]
    assert re.search(r"fastest gentle +(minmax:4|fp8) \*, ", text), text
    assert "other programs' differ" in " ".join(text.split())


def test_derived_times_are_marked_wherever_they_are_printed(tmp_path: Path) -> None:
    """Casts, whose times follow from a bandwidth, stood among measured codecs without a mark."""
    file = tmp_path / "plan"
    text = planned(*RESNET, "--bandwidth", "1Gbit/s", "-o", file)
    codecs = CompressionPlan.load(file).profile
    run("report", file, "-o", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    for name in codecs.codecs:
        marked = re.search(rf"^\W*{name} \* +(?:during|after) ", text, re.MULTILINE) is not None
        assert marked == (name in codecs.derived), name
        assert (f"{name} *" in page) == marked, name
    assert "* derived" in text
    assert "minmax:4: 0.56 of qsgd:2's time" in " ".join(text.split())
    codecs.save(tmp_path / "profile")
    shown = run("show", tmp_path / "profile", "--all")
    assert re.search(r"^\W*minmax:4 \* +[\d,]+ ", shown, re.MULTILINE), shown
    assert re.search(r"^\W*sign +[\d,]+ ", shown, re.MULTILINE), shown


def test_a_profile_is_planned_for_a_plan_book_and_its_predictions_are_kept(tmp_path: Path) -> None:
    profile().save(tmp_path / "profile")
    topology = uniform(3, alpha_us=20.0, bytes_per_s=1e8)
    build_book(topology, sizes=[1 << 20]).save(tmp_path / "book")
    file = tmp_path / "plan"
    text = planned(tmp_path / "profile", "--topology", tmp_path / "book", "-o", file)
    assert f"3 workers at 800 Mbit/s, plans for {topology.name}" in text
    plan = CompressionPlan.load(file)
    assert plan.advice.winner.codec == "sign"
    assert plan.advice.winner.break_even_bytes_per_s is not None
    assert "steps computed again" in run("verify", file)
    run("report", file, "-o", tmp_path / "page.html")
    text = planned(
        tmp_path / "profile", "--topology", tmp_path / "book", "--ranks", 4, "-o", file, code=2
    )
    assert "--ranks is 4, needs 3 as in " in text


def test_a_changed_figure_is_found(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    planned(*RESNET, "--bandwidth", "10Gbit/s", "-o", file)
    kept = load_artifact(file)
    for place, value in (("step_us", 1.0), ("codec", "sign"), ("fits", False)):
        head = json.loads(json.dumps(kept.head))
        head["advice"]["rows"][3][place] = value
        changed = Artifact(kind=kept.kind, schema=kept.schema, head=head)
        with pytest.raises(VerificationError, match=rf"advice.rows\[3\].{place} is .* computed"):
            CompressionPlan.from_artifact(changed).verify()
    head = json.loads(json.dumps(kept.head))
    del head["advice"]["rows"][3]
    shorter = CompressionPlan.from_artifact(Artifact(kind=kept.kind, schema=1, head=head))
    with pytest.raises(VerificationError, match=r"advice.rows has \d+ rows, computed again"):
        shorter.verify()
    for path, message in (
        (("network", "workers"), "'network.workers' is 1.5|1.5 is not an integer"),
        (("network", "scheme"), "1.5 is not a text"),
        (("profile", "batch"), "1.5 is not an integer"),
        (("advice", "winner"), "1.5 is not an object"),
        (("codecs",), "1.5 is not a list"),
    ):
        head = json.loads(json.dumps(kept.head))
        inner = head
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = 1.5
        with pytest.raises(ArtifactError, match=message):
            CompressionPlan.from_artifact(Artifact(kind=kept.kind, schema=1, head=head), "a.file")


def test_memory_and_latency_change_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    whole = replace(profile(), used_bytes=1 << 30)
    whole.save(tmp_path / "profile")
    usual = (tmp_path / "profile", "--ranks", 4, "--bandwidth", "800Mbit/s", "-o", file)
    assert "sign, " in planned(*usual)
    fast = CompressionPlan.load(file).advice.winner.step_us
    text = planned(*usual, "--memory", "1025MiB")
    assert "during (no memory)" in text or "after (no memory)" in text
    assert "out of memory: " in " ".join(text.split())
    planned(*usual, "--latency", "1000us", "--scheme", "tree", "--memory", "0")
    assert CompressionPlan.load(file).advice.winner.step_us > fast


def test_a_latency_that_is_not_given_is_assumed_and_the_output_says_so(tmp_path: Path) -> None:
    file, usual = tmp_path / "plan", (*RESNET, "--bandwidth", "10Gbit/s")
    for arguments, expected in (
        ((), 50.0),
        (("--ranks-per-host", 4), 12.5),
        (("--scheme", "tree", "--ranks-per-host", 4), 50.0),
        (("--latency", "0us"), 0.0),
        (("--latency", "7us", "--ranks-per-host", 4), 7.0),
    ):
        text = planned(*usual, *arguments, "-o", file)
        network = CompressionPlan.load(file).network
        assert isinstance(network, FormulaNetwork)
        assert network.alpha_us == expected, arguments
        assert f"latency {expected:g} us" in text
        stated = "assumed: 50 us between hosts, typical of TCP; --latency sets it"
        assert (stated in text) == ("--latency" not in arguments)
        assert (stated in run("show", file)) == ("--latency" not in arguments)
        assert run("verify", file).startswith("ok ")


def test_wrong_arguments_name_what_would_do(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    profile().save(tmp_path / "profile")
    uniform(4).save(tmp_path / "network", {})
    usual = ("--ranks", 4, "--bandwidth", "1Gbit/s")
    for arguments, message in (
        (usual, "profile: neither of PROFILE and --bundled given"),
        ((tmp_path / "profile", "--bundled", "resnet50", *usual), "both of PROFILE and --bundled"),
        ((tmp_path / "none", *usual), "none: cannot be read: No such file"),
        ((tmp_path / "profile", "--batch", 3, *usual), "--batch is for --bundled alone"),
        (
            ("--bundled", "vgg16", *usual),
            "model is 'vgg16', needs one of resnet50, resnet101, bert",
        ),
        (("--bundled", "resnet50", "--bandwidth", "1Gbit/s"), "--ranks is missing, needs a value"),
        (("--bundled", "resnet50", "--ranks", 4), "--bandwidth is missing, needs a value such as"),
        ((*RESNET, "--bandwidth", "10Gb/s"), "--bandwidth is '10Gb/s', needs a number with"),
        ((*RESNET, "--bandwidth", "1Gbit/s", "--scheme", "star"), "scheme is 'star', needs one"),
        ((*RESNET, "--bandwidth", "1Gbit/s", "--codecs", "zip"), "codec is 'zip', needs one of"),
        ((*RESNET, "--bandwidth", "1Gbit/s", "--codecs", "topk:3%"), "not in the profile"),
        ((*RESNET, "--bandwidth", "1Gbit/s", "--memory", "much"), "--memory is 'much', needs"),
        ((*RESNET, "--bandwidth", "1Gbit/s", "--local-steps", 0), "value for '--local-steps'"),
        (
            ("--bundled", "resnet50", "--topology", tmp_path / "profile"),
            "needs plan-book, topology",
        ),
        (
            (tmp_path / "profile", "--topology", tmp_path / "profile", "--bandwidth", "1Gbit/s"),
            "needs plan-book, topology",
        ),
        *(
            (
                ("--bundled", "resnet50", "--topology", tmp_path / "network", *ignored),
                f"{ignored[0]} has no effect with --topology",
            )
            for ignored in (("--latency", "9us"), ("--scheme", "tree"), ("--ranks-per-host", 2))
        ),
    ):
        assert message in planned(*arguments, "-o", file, code=2), arguments
        assert not file.exists()
