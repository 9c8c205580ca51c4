"""How the commands read their options and report errors."""

from pathlib import Path

import pytest

from qidpfl_client.cli import options
from qidpfl_client.errors import ClientError, Misconfigured
from qidpfl_client.noise import SystemNoise, UnsafeSeededNoise
from qidpfl_client.owner import HISTOGRAM_RHO, RHO_CAP, Owner
from qidpfl_client.sdk.tls import TlsFiles
from qidpfl_shared.protocol.messages import Declaration
from qidpfl_shared.protocol.presets import PRESETS, preset


def test_a_code_comes_from_exactly_one_option(tmp_path: Path) -> None:
    file = tmp_path / "code"
    file.write_text("task.secret\n")
    assert options.enrolment_codes(None, file) == options.enrolment_codes(" task.secret", None) == ("task.secret",)
    file.write_text("task.first\ntask.second\n")
    assert options.enrolment_codes(None, file) == ("task.first", "task.second")
    for code, code_file in ((None, None), ("task.secret", file)):
        with pytest.raises(Misconfigured):
            options.enrolment_codes(code, code_file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Misconfigured, match="does not contain an enrolment code"):
        options.enrolment_codes(None, file)


def test_a_certificate_replaces_the_code_and_needs_the_task() -> None:
    certificate = Path("client.pem")
    assert options.task_and_codes("task.secret", None, None, certificate) == ("task", ("task.secret",))
    assert options.task_and_codes(None, None, "task", certificate) == ("task", ())
    for given in (
        ("task.secret", None, "task", certificate),
        (None, None, "task", None),
        (None, None, "a/b", certificate),
    ):
        with pytest.raises(Misconfigured):
            options.task_and_codes(*given)


def test_files_for_tls_are_optional() -> None:
    assert options.tls_files(None, None, None) is None
    assert options.tls_files(None, None, Path("ca.pem")) == TlsFiles(server_ca=Path("ca.pem"))
    with pytest.raises(Misconfigured, match="needs its certificate"):
        options.tls_files(None, Path("client.key"), None)


def ceilings(*, public_data: bool = False, no_histogram: bool = False, **given: float) -> options.Ceilings:
    unset = {"rho_cap": None, "lifetime_rho": None, "histogram_rho": None}
    return options.ceilings(**(unset | given), no_histogram=no_histogram, public_data=public_data)


def test_a_budget_for_no_histogram_is_a_contradiction() -> None:
    assert ceilings(no_histogram=True)["histogram_rho"] == HISTOGRAM_RHO
    assert ceilings(histogram_rho=0.5)["histogram_rho"] == 0.5
    with pytest.raises(Misconfigured, match="contradict"):
        ceilings(histogram_rho=0.5, no_histogram=True)


def test_public_data_has_room_for_every_preset_and_options_still_win() -> None:
    assert ceilings() == {"rho_cap": RHO_CAP, "lifetime_rho": None, "histogram_rho": HISTOGRAM_RHO}
    public = ceilings(public_data=True)
    assert ceilings(public_data=True, rho_cap=0.01) == public | {"rho_cap": 0.01}
    for spec in map(preset, PRESETS):
        assert spec.bounds.rho_max <= public["rho_cap"]
        assert (spec.privacy.lifetime_rho or 0) <= (public["lifetime_rho"] or 0)
        assert (spec.privacy.histogram_rho or 0) <= public["histogram_rho"]


def test_noise_is_unsafe_only_with_a_seed_and_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(options.noise_source(None), SystemNoise)
    assert isinstance(options.noise_source(0), UnsafeSeededNoise)
    options.warn_if_unsafe(None)
    assert capsys.readouterr().err == ""
    options.warn_if_unsafe(0)
    assert "UNSAFE" in capsys.readouterr().err


def test_common_noise_needs_a_seed() -> None:
    options.warn_if_unsafe(None, None)
    options.warn_if_unsafe(1, 0)
    with pytest.raises(Misconfigured, match="--common-noise needs --unsafe-seed"):
        options.warn_if_unsafe(None, 0)


def test_every_error_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    @options.guarded
    def client_error() -> None:
        raise ClientError("two\n  lines")

    @options.guarded
    def impossible() -> None:
        Owner(privacy_value=-1.0)

    @options.guarded
    def invalid() -> None:
        Declaration(rho=-1.0)

    @options.guarded
    def missing() -> None:
        (tmp_path / "nowhere").read_text()

    for fails, said in (
        (client_error, "two lines"),
        (impossible, "privacy_value = -1.0"),
        (invalid, "rho: Input should be greater"),
        (missing, f"{tmp_path / 'nowhere'}: No such file"),
    ):
        with pytest.raises(SystemExit) as caught:
            fails()
        assert caught.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("qidpfl-client: ") and said in line


def test_a_programming_error_is_not_hidden() -> None:
    @options.guarded
    def broken() -> None:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError):
        broken()
