import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import headrace
from headrace.doctor import (
    CheckFinding,
    Diagnosis,
    Status,
    command,
    diagnose,
    diagnosis,
    installation,
    storage,
)
from headrace.doctor.needs import StageNeeds, asked_stages, registered_stages
from headrace.doctor.probing import probe
from headrace.errors import InputError
from headrace.extras import Dependency, dependencies
from headrace.kinds import capabilities


def _diagnosis(statuses: dict[str, Status], *stages: StageNeeds) -> Diagnosis:
    names = {*diagnosis._ALWAYS, *statuses}
    return Diagnosis(
        findings={
            name: CheckFinding(
                name=name, status=statuses.get(name, Status.OK), text="t", remedy="r"
            )
            for name in sorted(names)
        },
        stages=stages,
    )


def _stage(stage: str, needs: Iterable[str] = (), helps: Iterable[str] = ()) -> StageNeeds:
    return StageNeeds(capability="echoes", stage=stage, needs=tuple(needs), helps=tuple(helps))


def test_every_stage_of_the_grid_is_registered_with_checks_that_exist() -> None:
    stages = {(needs.capability, needs.stage): needs for needs in registered_stages()}
    for capability in capabilities():
        assert {stage for name, stage in stages if name == capability} >= {
            "measure",
            "plan",
            "run",
            "adapt",
        }
    quick = {check.__name__.removeprefix("check_").replace("_", "-") for check in diagnosis._CHECKS}
    checks = {*quick, *diagnosis._TORCH, *diagnosis._NATIVE}
    for needs in stages.values():
        for name in (*needs.needs, *needs.helps):
            assert name in checks or name in dependencies(), name


def test_a_stage_runs_unless_a_check_that_it_needs_is_missing() -> None:
    plan, run = _stage("plan", ["numpy"], ["tls"]), _stage("run", ["torch", "numpy"])
    examined = _diagnosis(
        {"torch": Status.MISSING, "tls": Status.MISSING, "numpy": Status.LIMITED}, plan, run
    )
    assert examined.missing(plan) == []
    assert examined.limits(plan) == ["numpy", "tls"]
    assert examined.missing(run) == ["torch"]
    assert not examined.ready
    stages = examined.to_json()["capabilities"]["echoes"]
    assert stages["plan"] == {"ready": True, "missing": [], "limits": ["numpy", "tls"]}
    assert stages["run"] == {"ready": False, "missing": ["torch"], "limits": ["numpy"]}


def test_the_text_names_the_remedy_of_what_is_not_ok(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examined = _diagnosis({"torch": Status.MISSING}, _stage("run", ["torch"]))
    monkeypatch.setattr(command, "diagnose", lambda *_: examined)
    assert command.run("echoes", None, as_json=False) == 1
    printed = capsys.readouterr().out
    assert printed.count("mend: r") == 1
    assert "echoes run  cannot run: torch\nNot ready" in printed
    assert command.run_plainly(["echoes", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["result"]["ready"] is False


def test_ranks_that_openssl_keeps_from_connecting_are_named_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, connected = installation.check_native(connects=True)
    assert connected.status is Status.OK
    assert "two ranks connect" in connected.text
    configuration = tmp_path / "openssl.cnf"
    # a level of security that the cipher's 128 bits do not reach
    configuration.write_text(
        "openssl_conf = init\n[init]\nssl_conf = ssl\n[ssl]\nsystem_default = default\n"
        "[default]\nCipherString = DEFAULT@SECLEVEL=5\n"
    )
    monkeypatch.setenv("OPENSSL_CONF", str(configuration))
    _, refused = installation.check_native(connects=True)
    assert refused.status is Status.MISSING
    assert "two ranks cannot connect" in refused.text
    assert "OPENSSL_CONF" in refused.remedy


def test_a_job_that_is_to_be_encrypted_needs_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _stage("run", ["torch"], ["tls", "cache"])
    assert run.with_needed("tls").needs == ("torch", "tls")
    assert run.with_needed("devices") is run
    for text, expected in (("on", True), ("off", False), ("", False), ("perhaps", False)):
        monkeypatch.setenv("HEADRACE_TLS", text)
        assert storage.encrypts() is expected


def test_a_folder_without_metadata_is_no_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor ended in a TypeError: such a folder has no version."""
    (tmp_path / "half_gone-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    finding = installation.check_version(Dependency(name="half_gone", versions=">=1"))
    assert finding is not None
    assert finding.text == "not installed"


def test_an_unknown_word_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"CAPABILITY is 'memry'.*did you mean memory\?"):
        asked_stages("memry", None)
    with pytest.raises(InputError, match=r"STAGE of memory is 'plann'.*did you mean plan\?"):
        asked_stages("memory", "plann")
    assert command.run_plainly(["memry"]) == 2


def test_the_models_that_estimates_know_are_asked_about() -> None:
    (estimate,) = asked_stages("memory", "estimate")
    assert {"timm", "transformers"} <= set(estimate.helps)


def test_a_probe_reports_what_it_printed_before_it_ended() -> None:
    crash = "import os; print('noise'); print('{\"a\": 1}', flush=True); os.kill(os.getpid(), 6)"
    result = probe(crash)
    assert result.answers == ({"a": 1},)
    assert result.problem == "was ended by SIGABRT"
    assert probe("import os; os.kill(os.getpid(), 40)").problem == "was ended by signal 40"
    assert probe("raise ValueError('no')").problem == "ValueError: no"
    hang = "import time; print('{}', flush=True); time.sleep(600)"
    ended = probe(hang, deadline_s=2.0)
    assert ended.problem == "did not end within 2 s"


def test_versions_are_compared_by_their_release() -> None:
    torch = Dependency(name="torch", versions="<3,>=2.14")
    assert torch.allows("2.14")
    assert torch.allows("2.15.0+cu132")
    assert not torch.allows("2.9.1")
    assert not torch.allows("3.0.0")
    assert Dependency(name="any").allows("0.1")


def test_every_package_that_can_be_asked_about_has_its_command() -> None:
    commands = {name: needed.command for name, needed in dependencies().items()}
    assert commands["plotly"] == "pip install 'headrace[report]'"
    assert commands["numpy"].startswith("pip install 'numpy")
    assert "headrace" not in commands


def test_nothing_is_written(tmp_path: Path) -> None:
    """The doctor of an empty home leaves it empty."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "doctor", "index", "measure"],
        env={"HOME": str(tmp_path), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_everything_that_tests_install_can_run() -> None:
    examined = diagnose("compression")
    assert examined.ready
    assert examined.findings["torch"].status is Status.OK


def test_an_interrupt_ends_the_imports(tmp_path: Path) -> None:
    """Ctrl-C ended the import of one package, and the doctor waited for those of all others."""
    (tmp_path / "struck.py").write_text("raise KeyboardInterrupt\n")
    (tmp_path / "later.py").write_text("raise SystemExit\n")
    done = subprocess.run(
        [sys.executable, "-c", installation._IMPORT, "later", "struck", "later"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGINT
    assert done.stdout.count("later") == 1


def test_a_folder_for_temporary_files_that_does_not_exist_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python passes it over, too; the doctor ended with a traceback."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("TEMP", str(tmp_path))
    assert storage.check_temporary().text.startswith(f"{tmp_path} has ")


def test_a_folder_that_cannot_be_looked_into_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another user's home, say: the doctor ended with a traceback."""
    folder = tmp_path / ("long" * 99)  # an error that root gets, too
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    assert f"{folder}: File name too long: later jobs" in storage.check_cache().text
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TEMP", str(tmp_path))
    assert storage.check_temporary().text.startswith(f"{tmp_path} has ")


def test_an_installation_that_two_folders_lead_to_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fedora's environments search lib64, a link to lib: it was to be uninstalled until gone."""
    for version in (headrace.__version__, "0.0.1"):
        metadata = tmp_path / "lib" / f"headrace-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: headrace\nVersion: {version}\n")
        (tmp_path / "lib64").unlink(missing_ok=True)
        (tmp_path / "lib64").symlink_to("lib")
        monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), str(tmp_path / "lib64")])
        finding = installation.check_installation()
        assert (finding.status is Status.OK) == (version == headrace.__version__), finding.text
    assert finding.text.count(" and ") == 1
