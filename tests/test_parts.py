"""Parts of messages: what they accept, what they refuse, and what they show."""

import os
from copy import deepcopy

import pytest

from sampling import Audio, File, Image, Message, Reasoning, Text, ToolCall, ToolResult
from sampling._serialization.messages import dump_content, load_content, plain_content
from sampling.messages import Action, Attempt, Context, Generation
from sampling.parts import MAX_MEDIA_BYTES, media_of

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
WAV = b"RIFF....WAVEfmt "


class TestMedia:
    @pytest.mark.parametrize(
        ("part", "media_type"),
        [
            (Image(PNG), "image/png"),
            (Image(b"\xff\xd8\xff\xe0", "image/jpg"), "image/jpeg"),
            (Image(b"<svg/>", "image/svg+xml"), "image/svg+xml"),
            (Image("data:image/png;base64,iVBORw0KGgo="), "image/png"),
            (Image("https://example.com/cat.png?size=3"), "image/png"),
            (Image("https://example.com/cat"), None),
            (Audio(WAV), "audio/wav"),
            (File(b"%PDF-1.7"), "application/pdf"),
            (File(b"hello"), "text/plain"),
            (File(b"\xff\xfe\x00"), "application/octet-stream"),
        ],
    )
    def test_the_media_type_is_guessed(self, part, media_type):
        """The first bytes tell it, else the name."""
        assert media_type == part.media_type

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: Image(b"garbage"), "can't be read as an image"),
            (lambda: Image(b"garbage", "image/png"), "can't be read as image/png"),
            (lambda: Image(b"\xff\xd8\xff\xe0", "image/png"), "the bytes are image/jpeg"),
            (lambda: Image(b"%PDF-1.7"), "must be an image, got application/pdf"),
            (lambda: Image(PNG, "audio/wav"), "must begin with 'image/'"),
            (lambda: Image(PNG, "png"), "such as 'image/png'"),
            (lambda: Image("no/such/cat.png"), "No such file"),
            (lambda: Image(b""), "must not be empty"),
            (lambda: Image(b"\x89PNG\r\n\x1a\n" + bytes(MAX_MEDIA_BYTES)), "at most 52,428,800 bytes"),
            (lambda: Image("https://"), "with a host"),
            (lambda: Image("data:image/png;base64,%%"), "can't be read"),
            (lambda: Audio(PNG), "must be audio, got image/png"),
        ],
    )
    def test_what_is_not_readable_is_refused_at_once(self, make, says):
        """One clear error, before anything is sent."""
        with pytest.raises(ValueError, match=says.replace("(", r"\(")):
            make()

    def test_a_path_is_read_when_the_part_is_made(self, tmp_path):
        """Later changes of the file have no effect."""
        path = tmp_path / "cat.png"
        path.write_bytes(PNG)
        part = Image(path)
        path.unlink()
        assert Image(PNG) == part
        assert "cat.png" in repr(part)

    def test_a_repr_shows_neither_bytes_nor_the_query_of_a_url(self):
        """A query may hold a signature."""
        assert "Image(image/png, 14 bytes)" == repr(Image(PNG))
        assert "Image('https://example.com/cat.png')" == repr(Image("https://u:p@example.com/cat.png?key=secret"))

    def test_a_file_has_the_name_of_its_path(self, tmp_path):
        """Unless another one is given."""
        (tmp_path / "a.txt").write_text("hello")
        assert "a.txt" == File(tmp_path / "a.txt").name
        assert "b.txt" == File(tmp_path / "a.txt", name="b.txt").name
        assert "c.pdf" == File("https://example.com/c.pdf").name


class TestMessages:
    def test_the_text_is_that_of_the_text_parts(self):
        """Media add nothing to the text."""
        message = Message("user", [Text("What is "), Image(PNG), Text("this?")])
        assert "What is this?" == message.text
        assert (Image(PNG),) == tuple(media_of(message.content))
        assert message == deepcopy(message)

    @pytest.mark.parametrize(
        ("role", "content", "says"),
        [
            ("user", [ToolCall("1", "look", "{}")], "role 'assistant'"),
            ("assistant", [ToolResult("1", "x")], "role 'tool'"),
            ("tool", [Text("x")], "ToolResults only"),
            ("user", [], "at least one part"),
        ],
    )
    def test_a_part_has_its_role(self, role, content, says):
        """Providers refuse it anywhere else."""
        with pytest.raises(ValueError, match=says):
            Message(role, content)

    def test_an_action_keeps_its_media_when_its_text_changes(self):
        """A repair asks about the same picture."""
        action = Action([Text("What?"), Image(PNG)]).with_text("Again: what?")
        assert (Text("Again: what?"), Image(PNG)) == action.content
        assert "Again: what?" == action.text

    def test_tool_results_are_sent_as_the_tool(self):
        """An action of results answers the calls before it."""
        asked = Context([Message("assistant", [ToolCall("1", "look", "{}")])])
        attempt = Attempt(Action([ToolResult("1", "42")]), asked)
        assert ["assistant", "tool"] == [message.role for message in attempt.messages]

    def test_calls_without_results_get_some_before_a_user_speaks(self):
        """Providers refuse a conversation that leaves calls open."""
        asked = Context([Message("assistant", [ToolCall("1", "look", "{}"), ToolCall("2", "look", "{}")])])
        messages = Attempt(Action("No."), asked).messages
        assert ["assistant", "tool", "user"] == [message.role for message in messages]
        assert ["1", "2"] == [part.id for part in messages[1].content]

    def test_all_parts_survive_json(self):
        """Bytes as base64, and those that the reader has by their digest."""
        content = (
            Reasoning("hm", "signed"),
            Text("a"),
            Image(PNG),
            Audio(WAV),
            File(b"hello", name="a.txt"),
            Image("https://example.com/cat.png"),
            ToolCall("1", "look", "{}"),
            ToolResult("1", [Text("b"), Image(PNG)], is_error=True),
        )
        assert content == load_content(dump_content(content))
        known = {Image(PNG).digest: Image(PNG)}
        short = dump_content(content, known.keys())
        assert "data" not in short[2]
        assert content == load_content(short, known)

    def test_large_media_are_compared_by_digest(self):
        """Large media are described by their digest."""
        large = Image(PNG + bytes(100_000))
        [plain] = plain_content([large])
        assert {"type": "image", "media_type": "image/png", "sha256": large.digest} == plain

    def test_what_a_file_of_ours_names_is_never_read(self, tmp_path):
        """A crafted record must not read files."""
        (tmp_path / "cat.png").write_bytes(PNG)
        with pytest.raises(ValueError, match="invalid URL"):
            load_content([{"type": "image", "url": str(tmp_path / "cat.png")}])


class TestGenerations:
    def test_signed_thoughts_and_calls_are_part_of_the_conversation(self):
        """Unsigned thoughts are not: no provider wants them back."""
        generation = Generation(
            "a", thoughts=[Reasoning("x"), Reasoning("y", "signed")], tool_calls=[ToolCall("1", "look", "{}")]
        )
        assert "xy" == generation.reasoning
        assert (Reasoning("y", "signed"), Text("a"), ToolCall("1", "look", "{}")) == generation.message.content
        assert "a" == Generation("a", thoughts=[Reasoning("x")]).message.content


class TestToolCalls:
    def test_arguments_are_parsed_as_an_object(self):
        """No text at all is an object without members."""
        assert {"a": 1} == ToolCall("1", "look", '{"a": 1}').parse()
        assert {} == ToolCall("1", "look", "").parse()

    @pytest.mark.parametrize("arguments", ["{", "[1]", "3"])
    def test_other_arguments_are_refused(self, arguments):
        """The error names the tool."""
        with pytest.raises(ValueError, match="'look'"):
            ToolCall("1", "look", arguments).parse()


def test_only_regular_files_are_read(tmp_path):
    """Opening a pipe would wait for ever, and a device may never end."""
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match="can't be read: it is not a regular file"):
            Image(path)
