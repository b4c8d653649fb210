"""The slots of a llama.cpp server, as it reports them."""

import json
import re
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import attrs


@attrs.frozen
class LlamaSlots:
    """Asks a server about its slots. Every question blocks for about a millisecond."""

    address: str
    key: str

    def busy(self) -> int:
        """Return how many slots are generating."""
        return sum(slot["is_processing"] for slot in json.loads(self._get("/slots")))

    def tokens_generated(self) -> int:
        """
        Return the number of tokens generated, cancelled ones included.

        It is the number of busy slots, summed over all steps. `tokens_predicted_total` leaves out cancelled requests.
        """
        metrics = dict(re.findall(r"^llamacpp:(\w+) ([\d.e+]+)$", self._get("/metrics"), re.MULTILINE))
        return round(float(metrics["n_decode_total"]) * float(metrics["n_busy_slots_per_decode"]))

    def _get(self, path: str) -> str:
        connection = HTTPConnection(urlsplit(self.address).netloc, timeout=10)
        with closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.key}"})
            return connection.getresponse().read().decode()
