"""`sampling doctor`: check a backend, and say what to fix."""

import json
from functools import partial
from typing import Annotated

import anyio
import typer

from sampling.cli import _flags as flags
from sampling.cli._checkup import Checkup, Finding, check_packages
from sampling.cli._exit_codes import FAILED, SUCCEEDED
from sampling.cli._headers import Headers
from sampling.cli._signals import run_interruptible
from sampling.cli._specs import parse_backend
from sampling.cli._stdout import only_results, terminal_safe, write_result

__all__ = ["EXAMPLES", "HELP", "doctor"]

HELP = """
Check a backend, and say what to fix.

It asks a few short questions: does the server answer, stream, stop when a request is cancelled, report tokens,
constrain answers to a schema, and answer several requests at once? It also lists the versions of Python and of the
packages. Each line is ok, warn or fail. A warning is worth a look, and a failure must be fixed.

Exit code: 0 if nothing failed, 1 otherwise.
"""

EXAMPLES = """
\b
Examples:
  sampling doctor
  sampling doctor --backend openai:gpt-5-mini
  sampling doctor --backend openai:qwen3@http://127.0.0.1:8000/v1
  sampling doctor --backend openai:qwen3@http://127.0.0.1:8000/v1 --json | jq '.checks[] | select(.status != "ok")'
"""


def doctor(
    *,
    backend: flags.BackendFlag = "llama",
    send_env_key: flags.SendEnvKey = False,
    allow_http: flags.AllowHttp = False,
    header: flags.Header = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each check may take.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Check a backend, and say what to fix."""
    with flags.usage_errors():
        parsed = parse_backend(backend, send_env_key=send_env_key, allow_http=allow_http, headers=Headers.parse(header))
    with only_results():
        checkup = Checkup(parsed, timeout_s=timeout)
        findings = [*check_packages(), *anyio.run(run_interruptible, partial(checkup.run))]
    healthy = not any(finding.status == "fail" for finding in findings)
    write_result(_as_json(backend, findings, healthy=healthy) if as_json else _as_text(findings))
    return SUCCEEDED if healthy else FAILED


def _as_json(backend: str, findings: list[Finding], *, healthy: bool) -> str:
    checks = [
        {"status": one.status, "check": one.check, "found": one.found, "fix": one.fix or None} for one in findings
    ]
    return f"{json.dumps({'backend': backend, 'healthy': healthy, 'checks': checks}, indent=2)}\n"


def _as_text(findings: list[Finding]) -> str:
    width = max(len(finding.check) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.status:<4}  {finding.check:<{width}}  {finding.found}".rstrip())
        if finding.fix:
            lines.append(f"{'':<4}  {'':<{width}}  → {finding.fix}")
    return terminal_safe("\n".join(lines)) + "\n"
