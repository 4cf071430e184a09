"""`perf_analyzer_flags`: what becomes of each, and that none is ignored."""

from pathlib import Path

import pytest

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.options.perf_flags import DECIDED, LOADS, OBEYED, flag_loads, perf_warnings, perf_words
from tpx.analyzer.search.ranges import ModelParameters
from tpx.analyzer.values import Flags
from tpx.errors import UsageError
from tpx.options import build, fields_of, given
from tpx.perf.options import SessionSpec

MODEL_ANALYZERS = """
service-kind model-signature-name async sync measurement-interval concurrency-range
request-rate-range request-distribution request-intervals binary-search num-of-sequences
latency-threshold max-threads stability-percentage max-trials percentile input-data shared-memory
output-shared-memory-size shape sequence-length sequence-id-range string-length string-data
measurement-mode measurement-request-count streaming grpc-compression-algorithm
triton-server-directory model-repository ssl-grpc-use-ssl ssl-grpc-root-certifications-file
ssl-grpc-private-key-file ssl-grpc-certificate-chain-file ssl-https-verify-peer
ssl-https-verify-host ssl-https-ca-certificates-file ssl-https-client-certificate-type
ssl-https-client-certificate-file ssl-https-private-key-type ssl-https-private-key-file
collect-metrics metrics-url metrics-interval bls-composing-models model-name model-version
batch-size url protocol latency-report-file http-header verbose extra-verbose verbose-csv
"""


@pytest.mark.parametrize("name", MODEL_ANALYZERS.split())
def test_every_key_of_model_analyzer_is_a_word_a_load_or_warned_of(name: str) -> None:
    switches = {"async", "sync", "streaming", "ssl-grpc-use-ssl"}
    flags = {name: ("true" if name in switches else "1",)}
    if name in LOADS and name != "request-intervals":
        assert (perf_words(flags), perf_warnings(flags)) == ((), ())
        assert getattr(flag_loads(flags, ModelParameters()), LOADS[name]) == (1,)
        return
    taken = {field.flag[2:] for field in fields_of(SessionSpec)} | {"async", "http-header"}
    if name in taken and (name not in DECIDED or name in OBEYED):
        assert len(perf_words(flags)) == 1
        return
    assert perf_words(flags) == ()
    [line] = perf_warnings(flags)
    assert line.startswith(f"perf_analyzer_flags: {name} has no effect, tpx analyze sets it: see ")


def test_a_list_repeats_the_flag_and_switches_stand_alone() -> None:
    words = perf_words(
        {
            "shape": ("a:1,64", "b:2"),
            "async": ("true",),
            "streaming": ("false",),
            "http-header": ("x:y",),
            "percentile": ("95",),
        }
    )
    assert words == ("--shape=a:1,64", "--shape=b:2", "--async", "--header=x:y", "--percentile=95")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("percentil", "unknown option 'percentil' .did you mean 'percentile'"),
        ("fixed-schedule", "fixed-schedule: configurations are compared under a concurrency"),
        ("concurency-range", "unknown option 'concurency-range' .did you mean 'concurrency-range'"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        perf_words({name: ("1",)})
    model = ModelToProfile(name="m", perf_analyzer_flags={name: ("1",)})
    with pytest.raises(UsageError, match=f"^perf_analyzer_flags: {message}"):
        build(ProfileSpec, {"profile_models": (model,)})


def test_a_bad_value_is_refused_before_anything_starts() -> None:
    model = ModelToProfile(name="m", perf_analyzer_flags={"percentile": ("300",)})
    with pytest.raises(UsageError, match=r"perf_analyzer_flags: .*percentile"):
        build(ProfileSpec, {"profile_models": (model,)})


def test_flags_of_a_model_replace_those_of_the_run() -> None:
    own = ModelToProfile(name="own", perf_analyzer_flags={"percentile": ("95",)})
    config = build(
        ProfileSpec,
        {
            "profile_models": (own, ModelToProfile(name="other")),
            "perf_analyzer_flags": {"string-length": ("4",), "max-trials": ("3",)},
            "export_path": Path("out"),
        },
    )
    told = {name: given(session) for name, session in config.sessions.items()}
    assert (told["own"]["percentile"], "string_length" in told["own"]) == (95, False)
    assert (told["other"]["string_length"], told["other"]["max_trials"]) == (4, 3)


def test_what_a_model_may_have_otherwise_is_what_the_run_decides() -> None:
    assert set(DECIDED) >= OBEYED


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"concurrency-range": ("4",), "request-rate-range": ("9",)},
            "concurrency-range and request-rate-range",
        ),
        ({"concurrency-range": ("many",)}, "concurrency-range: expected an integer, got 'many'"),
        ({"concurrency-range": ("4:",)}, "concurrency-range: start, stop and step are integers"),
    ],
)
def test_loads_that_flags_do_not_give_are_refused(flags: Flags, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(ProfileSpec, {"profile_models": (ModelToProfile(name="m", perf_analyzer_flags=flags),)})
