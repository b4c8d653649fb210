"""Errors as servers describe them."""

import pytest

from sampling._redaction import Redactor
from sampling.backends.http._errors import ErrorResponse


def message(body, status=429):
    return str(ErrorResponse.from_response(status, {}, body, Redactor()).as_error()).partition("\n")[0]


class TestMessages:
    @pytest.mark.parametrize(
        "body", [b"", b"null", b"{}", b"[]", b'""', b'{"error": null}', b'[{"error": {}}]', b" {}\n"]
    )
    def test_a_body_that_says_nothing_is_not_quoted(self, body):
        assert "the server answered 429" == message(body)

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b'{"error": {"message": "slow down"}}', "slow down"),
            (b'{"error": "slow down"}', "slow down"),
            (b'[{"error": {"message": "slow down"}}]', "slow down"),
            (b'{"detail": "slow down"}', "slow down"),
            (b"slow down", "slow down"),
            (b'{"reason": "slow"}', '{"reason": "slow"}'),
        ],
    )
    def test_what_it_says_is_quoted(self, body, said):
        assert f"the server answered 429: {said}" == message(body)
