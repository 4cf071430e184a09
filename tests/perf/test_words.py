"""perf_analyzer's words: abbreviations, clusters, deprecated options, and those that are refused by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from tpx.cli.perf import main
from tpx.errors import UsageError
from tpx.options import fields_of
from tpx.perf.levels import LevelRange
from tpx.perf.options import SessionSpec
from tpx.perf.options.words import PERF_ANALYZER, REFUSED, PerfWords, read_words, spelled_out


def config(*words: str) -> SessionSpec:
    return read_words(["-m", "net", *words]).config


def message(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        config(*words)
    return caught.value.message


def test_every_option_of_perf_analyzer_is_an_option_here_or_is_refused() -> None:
    known = {spelling for field in fields_of(PerfWords) for spelling in field.spellings}
    assert {f"--{name}" for name in PERF_ANALYZER} - known - set(REFUSED) == {"--help"}


def test_no_option_is_known_and_refused_at_once() -> None:
    known = {spelling for field in fields_of(PerfWords) for spelling in field.spellings}
    assert not known & set(REFUSED)


def test_the_beginning_of_one_option_of_perf_analyzer_means_that_one() -> None:
    own = {"--stability", "--verbose"}
    for name in sorted(PERF_ANALYZER):
        for end in range(1, len(name)):
            word = f"--{name[:end]}"
            meant = [other for other in PERF_ANALYZER if other.startswith(name[:end])]
            if len(meant) == 1 and word not in own and f"--{name}" not in REFUSED:
                assert spelled_out([word, f"{word}=v"]) == [f"--{name}", f"--{name}=v"]


def test_a_beginning_of_several_options_names_them() -> None:
    text = message("--sequence-l", "4")
    assert text == "Option '--sequence-l' is ambiguous: --sequence-length, --sequence-length-variation"


def test_short_options_gather_in_a_cluster_and_take_their_value_attached() -> None:
    assert config("-vab4", "-p200").windows.measurement_interval == 200
    assert (
        config("-vab4").output.verbose,
        config("-vab4").wire.asynchronous,
        config("-vab4").inputs.batch_size,
    ) == (
        True,
        True,
        4,
    )
    assert config("-v", "-v").output.verbose


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize("form", ["{}", "{}=4"])
def test_what_is_not_here_is_refused_by_name_with_what_there_is(name: str, form: str) -> None:
    assert message(form.format(name)) == f"tpx perf has no {name}: {REFUSED[name]}"


def test_an_abbreviation_of_what_is_not_here_is_refused_too() -> None:
    assert message("--enable-m").startswith("tpx perf has no --enable-mpi: ")


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        ("-t 4", LevelRange(start=4)),
        ("-t4", LevelRange(start=4)),
        ("-d -l 10", LevelRange(start=1, end=0)),
        ("-d -t 2 -c 8", LevelRange(start=2, end=8)),
    ],
)
def test_deprecated_concurrency_is_a_range_of_today(words: str, levels: LevelRange) -> None:
    assert config(*words.split()).load.concurrency_range == levels


def test_deprecated_data_is_input_data_of_today(tmp_path: Path) -> None:
    assert config("-z").inputs.input_data == ("zero",)
    assert config("--data-directory", str(tmp_path)).inputs.files == (tmp_path,)
    assert message("-z", "--data-directory", str(tmp_path)).startswith("The -z flag cannot be set when")
    assert message("--data-directory", "/nowhere") == "--data-directory /nowhere: there is no such directory"


@pytest.mark.parametrize(
    ("words", "successor"),
    [
        ("-t 2", "Use --concurrency-range instead."),
        ("-d -l 4", "Use --concurrency-range instead."),
        ("-d -c 4", "Use --concurrency-range instead."),
        ("-z", "Use --input-data=zero instead."),
        ("--data-directory .", "Use --input-data instead."),
    ],
)
def test_a_deprecated_option_says_what_replaces_it(words: str, successor: str) -> None:
    warnings = read_words(["-m", "net", *words.split()]).warnings
    assert any(text.endswith(successor) for text in warnings)
    first = words.split()[0]
    assert any(text.startswith(f"{first} is deprecated and will be removed") for text in warnings)
    assert read_words(["-m", "net"]).warnings == ()


@pytest.mark.parametrize(
    ("other", "mode"),
    [
        ("--concurrency-range 4", "Concurrency"),
        ("--request-rate-range 4", "RequestRate"),
        ("--fixed-schedule --input-data zero", "FixedSchedule"),
        ("--session-concurrency 4", "SessionConcurrency"),
    ],
)
def test_deprecated_concurrency_is_a_mode_of_its_own(other: str, mode: str) -> None:
    text = message("-t", "4", *other.split())
    assert text == f"Cannot use both {mode} and DeprecatedConcurrency inference load modes."


def test_the_deprecated_end_needs_what_it_is_the_end_of() -> None:
    assert message("-c", "8").startswith("-c ends the range that -d starts, and -d is missing")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("measurement-request-count 30", "Unknown command-line argument 'measurement-request-count'"),
        (
            "localhost:8000",
            "Unknown command-line argument 'localhost:8000': the server's address is given with -u localhost",
        ),
        ("-b 4 junk", "Unknown command-line argument 'junk'"),
        ("-b 29.5", "Failed to parse -b. Invalid value provided: 29.5 (expected an integer)"),
        ("-b 5abc", "Failed to parse -b. Invalid value provided: 5abc (expected an integer)"),
        ("-b 1_000", "Failed to parse -b. Invalid value provided: 1_000 (expected an integer)"),
        ("-p", "Missing value for option '-p'"),
        ("-Q", "Invalid short option '-Q'"),
        ("--percentil-e 3", "Invalid long option '--percentil-e' (did you mean '--percentile'?)"),
        ("--stability 10", "Failed to parse --stability. Unsupported type provided: '10'."),
    ],
)
def test_what_nobody_can_mean_is_an_error(words: str, text: str) -> None:
    assert message(*words.split()).startswith(text)


def test_a_directory_that_is_not_needed_is_a_warning() -> None:
    words = ["-m", "net", "--service-kind", "triton_c_api", "--model-repository", "."]
    wanted = read_words([*words, "--triton-server-directory=/opt/tritonserver"])
    assert wanted.config == read_words(words).config
    (warning,) = wanted.warnings
    assert warning.startswith("--triton-server-directory has no effect: ")


@pytest.mark.parametrize("length", [0, -3])
def test_a_sequence_length_below_1_is_a_warning_and_the_default(length: int) -> None:
    wanted = read_words(["-m", "net", "--sequence-length", str(length)])
    assert wanted.warnings == (f"--sequence-length {length}: the sequence length must be > 0; 20 is used",)
    assert (wanted.config.sequences.length, wanted.config.sequences.fixed) == (20, True)


@pytest.mark.parametrize("word", ["--version", "--vers"])
def test_the_version_is_told_on_stderr(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Perf Analyzer Version ")


def test_warnings_come_before_what_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "net", "-t", "2", "-u", "127.0.0.1:1"]) == 99
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("Warning: -t is deprecated")
    assert error.startswith("Error: cannot connect to 127.0.0.1:1")


def test_the_status_of_a_wrong_command_line_is_99() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tpx", "perf", "-m", "net", "-b", "x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (99, "")
    assert done.stderr == "Error: Failed to parse -b. Invalid value provided: x (expected an integer)\n"
