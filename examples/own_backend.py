"""Write a backend that reports its usage and raises typed errors."""

import anyio

from sampling import FatalError, Generation, RateLimited, RejectionSamplingStrategy, Request, Usage, report_usage


class WordByWord:
    """A stand-in for a streaming server. It refuses the first request and long prompts."""

    def __init__(self) -> None:
        self._refused = False

    async def generate(self, request: Request) -> Generation:
        """Answer word by word, or raise."""
        prompt = request.messages[-1].text
        if len(prompt) > 1_000:
            raise FatalError("the question is too long for this server")
        if not self._refused:
            self._refused = True
            raise RateLimited(retry_after_s=0.1)
        return await self._stream(prompt, pause_s=0.01 * (1 + request.subsample))

    async def _stream(self, prompt: str, pause_s: float) -> Generation:
        usage = Usage(input_tokens=len(prompt.split()))
        words: list[str] = []
        for word in ("Rhine,", "Danube,", "Elbe"):
            await anyio.sleep(pause_s)
            words.append(word)
            usage += Usage(output_tokens=1)
            # Report after every word: a cancelled request never returns its usage.
            report_usage(usage)
        return Generation(" ".join(words), usage)


async def main() -> None:
    """Show a rate limit, the usage of losers, and a fatal error."""
    strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3)
    result = await strategy.sample("Name three rivers.", None, WordByWord())
    print(result.explain())
    try:
        await strategy.sample("Name three rivers. " * 100, None, WordByWord())
    except FatalError as error:
        print(f"\n{type(error).__name__}: {error}")


if __name__ == "__main__":
    anyio.run(main)
