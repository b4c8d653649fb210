"""Log lines of the library on the command line."""

import pytest
import structlog

from sampling.cli._flag_names import with_flags
from sampling.cli._log import RepeatedLines, logging_to_stderr
from sampling.cli._stdout import terminal_safe


@pytest.fixture(autouse=True)
def unconfigured():
    """Begin without a configuration. `capture_logs` in an earlier test leaves one."""
    structlog.reset_defaults()


def test_lines_go_to_stderr_and_the_configuration_is_restored(capsys):
    """One line each, without ids, and safe for a terminal."""
    with logging_to_stderr():
        structlog.get_logger("sampling").warning("hook_failed", error="a\x1b[31m\nb", sampling_id="1", wait_s=0.123456)
        structlog.get_logger("sampling").debug("hidden")
    assert ("", "warning: hook_failed error=a\\x1b[31m\\nb wait_s=0.123\n") == capsys.readouterr()
    assert not structlog.is_configured()


def test_an_application_keeps_its_own_configuration(capsys):
    """It runs a command and has logging of its own."""
    seen: list[dict] = []

    def keep(_logger, _method, fields):
        seen.append(dict(fields))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    try:
        with logging_to_stderr():
            structlog.get_logger("sampling").warning("hook_failed")
        assert structlog.is_configured()
    finally:
        structlog.reset_defaults()
    assert ([{"event": "hook_failed"}], ("", "")) == (seen, tuple(capsys.readouterr()))


def test_a_line_that_repeats_is_counted():
    """A server that is overloaded must not fill the screen."""
    now = 0.0
    repeated = RepeatedLines(every_s=5.0, clock=lambda: now)

    def printed(**fields):
        try:
            return repeated(None, "info", {"event": "request_retried", **fields})
        except structlog.DropEvent:
            return None

    assert {"event": "request_retried"} == printed()
    assert [None, None] == [printed(), printed()]
    assert {"event": "request_retried", "error_type": "Timeout"} == printed(error_type="Timeout")
    now = 6.0
    assert {"event": "request_retried", "more_like_this": 2} == printed()


def test_text_for_a_terminal_keeps_what_is_harmless():
    """Lines, tabs and all scripts, but no control of the terminal or of the direction of text."""
    assert "naïve 日本\n\t👩\u200d💻" == terminal_safe("naïve 日本\n\t👩\u200d💻")
    assert "\\x1b[2J\\r\\x9b\\u202eabc" == terminal_safe("\x1b[2J\r\x9b\u202eabc")


def test_names_of_arguments_become_flags():
    """Words that are no names stay as they are."""
    assert "--hold must be > 0, got 0" == with_flags("hold_s must be > 0, got 0")
    assert "--rate must be > 0" == with_flags("rate must be > 0")
    assert "a rate and users" == with_flags("a rate and users")
    assert "use --workers 1, or --to-rate or trace" == with_flags("use workers=1, or to_rate or trace")
    assert "--rate needs an end" == with_flags("--rate needs an end")


def test_an_outage_is_told_in_a_sentence_that_says_how_to_end_it(capsys):
    """The line has the cause, the waiting time, and the way to stop."""
    fields = {"grace_s": 600.0, "held": 1, "error_type": "ServerError", "error": '"the server said 503"'}
    with logging_to_stderr():
        structlog.get_logger("sampling").warning("outage_began", **fields)
        structlog.get_logger("sampling").warning("outage_over", lasted_s=12.5, held=1)
        structlog.get_logger("sampling").warning("outage_grace_spent", grace_s=600.0, held=1)
    began, over, spent = capsys.readouterr().err.splitlines()
    assert "Waiting up to 600 s" in began
    assert "Ctrl-C" in began
    assert "--outage-grace" in began
    assert '"the server said 503"' in began
    assert "answers again after 12.5 s" in over
    assert "no answer in 600 s" in spent
