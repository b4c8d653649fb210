"""
Convert results to plain JSON and back.

`docs/reference/result-json.md` describes the format. Reading imports nothing that the data names, and runs only the
parser of the action.
"""

from sampling._serialization.results._dump import dump_options, dump_result, result_to_json
from sampling._serialization.results._load import load_options, load_result, result_from_json
from sampling._serialization.results._shared import MessageTable, index_of, parse_again, place_of, restore_attempt

__all__ = [
    "MessageTable",
    "dump_options",
    "dump_result",
    "index_of",
    "load_options",
    "load_result",
    "parse_again",
    "place_of",
    "restore_attempt",
    "result_from_json",
    "result_to_json",
]
