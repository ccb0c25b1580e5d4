"""TLS, deflate and snappy: any cut, any garbage, and peers that share no code with ours."""

from __future__ import annotations

import random
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import cramjam
import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.layers import (
    RECEIVE_BYTES_MAX,
    STREAM_IDENTIFIER,
    Deflate,
    Layer,
    LayerError,
    Snappy,
    Stack,
)
from penstock.wire.tls import Tls
from tests.nsq.certificates import certificates

RANDOM = random.Random(7)
NOISE = RANDOM.randbytes(128 * 1024)
TEXT = (b"PUB topic\n" + b"all work and no play " * 40) * 160
COMPRESSORS = pytest.mark.parametrize("make", [Snappy, Deflate], ids=["snappy", "deflate"])


def all_of(layer: Layer, data: bytes) -> bytes:
    """Receive, and go on while the layer holds more."""
    out = [layer.receive(data)]
    while layer.pending:
        out.append(layer.receive(b""))
    return b"".join(out)


def joined_pair(**context: bool) -> tuple[Tls, Tls]:
    """A server's and a client's end after their handshake."""
    made = certificates()
    server = Tls(made.server_context(ask=context.get("ask", False)))
    client = Tls(made.client_context(shown=context.get("shown", False)), server_side=False, name="localhost")
    to_server = client.handshake(b"")
    while not (server.done and client.done):
        to_client = server.handshake(to_server)
        to_server = client.handshake(to_client) if not client.done else client.receive(to_client)
    return server, client


@COMPRESSORS
class TestCompression:
    def test_what_is_sent_is_received(self, make: Callable[[], Layer]) -> None:
        sender, receiver = make(), make()
        for body in (b"x", TEXT, NOISE, bytes(128 * 1024), b"end"):
            assert all_of(receiver, sender.send(body)) == body

    def test_every_send_can_be_read_at_once(self, make: Callable[[], Layer]) -> None:
        sender, receiver = make(), make()
        for n in range(200):
            assert receiver.receive(sender.send(b"message %d" % n)) == b"message %d" % n

    def test_nothing_sent_is_nothing_on_the_wire(self, make: Callable[[], Layer]) -> None:
        assert make().send(b"") == b""
        assert make().receive(b"") == b""

    def test_any_buffer_can_be_sent(self, make: Callable[[], Layer]) -> None:
        for data in (bytearray(TEXT), memoryview(TEXT)):
            assert all_of(make(), make().send(data)) == TEXT

    def test_every_cut_of_the_wire_gives_the_same(self, make: Callable[[], Layer]) -> None:
        sender = make()
        wire = b"".join(map(sender.send, (b"first", TEXT[:700], NOISE[:300], b"z" * 500)))
        whole = make().receive(wire)
        assert whole == b"first" + TEXT[:700] + NOISE[:300] + b"z" * 500
        for cut in range(len(wire) + 1):
            receiver = make()
            assert receiver.receive(wire[:cut]) + receiver.receive(wire[cut:]) == whole
        receiver = make()
        assert b"".join(receiver.receive(bytes([byte])) for byte in wire) == whole

    def test_a_body_of_128_kb_survives_reads_of_any_size(self, make: Callable[[], Layer]) -> None:
        wire = make().send(NOISE + TEXT)
        for size in (1, 3, 1448, 65_535, 65_536, 65_537, 262_144):
            receiver = make()
            parts = [all_of(receiver, wire[at : at + size]) for at in range(0, len(wire), size)]
            assert b"".join(parts) == NOISE + TEXT

    def test_a_bomb_comes_out_in_bounded_pieces_and_is_held_compressed(self, make: Callable[[], Layer]) -> None:
        size = 64 * 1024 * 1024
        wire = make().send(bytes(size))
        receiver = make()
        have = 0
        for at in range(0, len(wire), 262_144):
            part = receiver.receive(wire[at : at + 262_144])
            while True:
                assert len(part) < RECEIVE_BYTES_MAX + 65_536
                have += len(part)
                if not receiver.pending:
                    break
                part = receiver.receive(b"")
        assert have == size

    def test_more_may_be_fed_while_some_is_pending(self, make: Callable[[], Layer]) -> None:
        sender, receiver = make(), make()
        body = TEXT * 20
        first, second = sender.send(body), sender.send(b"last")
        out = receiver.receive(first)
        assert len(out) < len(body)
        assert out + all_of(receiver, second) == body + b"last"

    @given(data=st.data())
    def test_arbitrary_bodies_and_cuts(self, make: Callable[[], Layer], data: st.DataObject) -> None:
        bodies = data.draw(st.lists(st.binary(max_size=300), max_size=6))
        sender, receiver = make(), make()
        wire = b"".join(map(sender.send, bodies))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
        edges = [0, *cuts, len(wire)]
        parts = [receiver.receive(wire[a:b]) for a, b in pairwise(edges)]
        assert b"".join(parts) == b"".join(bodies)

    @given(garbage=st.binary(max_size=200), flip=st.integers(0, 2**31))
    def test_garbage_is_a_layer_error_or_nothing(self, make: Callable[[], Layer], garbage: bytes, flip: int) -> None:
        sent = bytearray(make().send(b"some body" * 20))
        sent[flip % len(sent)] ^= 1 + flip % 255
        for wire in (garbage, STREAM_IDENTIFIER + garbage, bytes(sent), bytes(sent) + garbage):
            receiver = make()
            try:
                all_of(receiver, wire)
                all_of(receiver, garbage)
            except LayerError as error:
                assert str(error)
                assert error.last == b""


class TestDeflate:
    @pytest.mark.parametrize("level", range(1, 10))
    def test_zlib_reads_what_we_send_and_we_read_what_zlib_sends(self, level: int) -> None:
        ours = Deflate(level)
        theirs = zlib.decompressobj(-15)
        for body in (b"a", TEXT, NOISE):
            assert theirs.decompress(ours.send(body)) == body
        other = zlib.compressobj(level, zlib.DEFLATED, -15)
        for body in (b"a", TEXT, NOISE):
            assert all_of(ours, other.compress(body) + other.flush(zlib.Z_SYNC_FLUSH)) == body

    @pytest.mark.parametrize("level", [-1, 0, 10])
    def test_a_level_out_of_range_is_refused(self, level: int) -> None:
        with pytest.raises(ValueError, match="from 1 to 9"):
            Deflate(level)

    def test_a_peer_may_end_its_stream_but_not_go_on_after_it(self) -> None:
        wire = zlib.compress(b"bye", wbits=-15)
        receiver = Deflate()
        assert receiver.receive(wire) == b"bye"
        assert receiver.receive(b"") == b""
        with pytest.raises(LayerError, match="after the end"):
            receiver.receive(b"x")
        with pytest.raises(LayerError, match="after the end"):
            Deflate().receive(wire + b"x")

    def test_a_zlib_header_is_refused(self) -> None:
        with pytest.raises(LayerError, match="deflate"):
            Deflate().receive(zlib.compress(TEXT))

    def test_output_that_ends_exactly_at_the_bound_loses_nothing(self) -> None:
        for extra in (-1, 0, 1, 257, 258, 259):
            body = bytes(RECEIVE_BYTES_MAX + extra)
            receiver = Deflate()
            assert all_of(receiver, Deflate().send(body)) == body
            assert not receiver.pending


def masked(crc: int) -> int:
    """The format's text, word by word: rotate right by 15 bits, then add a constant."""
    rotated = crc >> 15 | (crc & 0x7FFF) << 17
    return (rotated + 0xA282EAD8) % 2**32


def chunk(kind: int, body: bytes, size: int | None = None) -> bytes:
    return bytes([kind]) + (len(body) if size is None else size).to_bytes(3, "little") + body


def data_chunk(body: bytes, kind: int = 1, packed: bytes | None = None) -> bytes:
    return chunk(kind, masked(crc32c(body)).to_bytes(4, "little") + (body if packed is None else packed))


class TestSnappy:
    def test_the_framed_codec_of_another_library_reads_what_we_send(self) -> None:
        ours = Snappy()
        bodies = [b"a", TEXT, NOISE, bytes(200_000), b"b" * 65_536, b"c" * 65_537]
        wire = b"".join(map(ours.send, bodies))
        assert bytes(cramjam.snappy.decompress(wire)) == b"".join(bodies)

    def test_we_read_what_the_framed_codec_of_another_library_sends(self) -> None:
        for body in (b"a", TEXT, NOISE, bytes(200_000)):
            assert all_of(Snappy(), bytes(cramjam.snappy.compress(body))) == body
        theirs, ours = cramjam.snappy.Compressor(), Snappy()
        for body in (b"one", TEXT, NOISE):
            theirs.compress(body)
            assert all_of(ours, bytes(theirs.flush())) == body

    def test_the_identifier_is_sent_once_and_may_be_received_again(self) -> None:
        ours = Snappy()
        assert ours.send(b"a").startswith(STREAM_IDENTIFIER)
        assert STREAM_IDENTIFIER not in ours.send(b"b")
        wire = STREAM_IDENTIFIER + data_chunk(b"a") + STREAM_IDENTIFIER + data_chunk(b"b")
        assert Snappy().receive(wire) == b"ab"

    def test_noise_is_sent_as_it_is(self) -> None:
        wire = Snappy().send(NOISE[:1000])
        assert wire[len(STREAM_IDENTIFIER)] == 1
        assert len(wire) == len(STREAM_IDENTIFIER) + 8 + 1000

    def test_chunks_hold_at_most_64_kib(self) -> None:
        wire = Snappy().send(NOISE)
        assert wire.count(b"\x01\x04\x00\x01", 0) >= 2
        assert len(wire) == len(STREAM_IDENTIFIER) + 2 * 8 + len(NOISE)

    def test_padding_and_skippable_chunks_are_skipped_at_every_cut(self) -> None:
        skipped = chunk(0xFE, bytes(50)) + chunk(0x80, b"abc") + chunk(0xFD, b"") + chunk(0xFE, b"")
        wire = STREAM_IDENTIFIER + data_chunk(b"a") + skipped + data_chunk(b"b") + skipped
        for cut in range(len(wire) + 1):
            receiver = Snappy()
            assert receiver.receive(wire[:cut]) + receiver.receive(wire[cut:]) == b"ab"

    def test_a_skipped_chunk_of_16_mib_is_not_held(self) -> None:
        receiver = Snappy()
        receiver.receive(STREAM_IDENTIFIER + chunk(0xFE, b"", 2**24 - 1))
        for _ in range(255):
            assert receiver.receive(bytes(65_536)) == b""
            assert len(receiver._held) == 0
        assert receiver.receive(bytes(65_535) + data_chunk(b"next")) == b"next"

    @pytest.mark.parametrize(
        ("wire", "why"),
        [
            (data_chunk(b"a"), "start with its identifier"),
            (chunk(0xFE, b""), "start with its identifier"),
            (chunk(0xFF, b"sNaPpX"), "bad stream identifier"),
            (chunk(0xFF, b"sNaPp"), "bad stream identifier"),
            (STREAM_IDENTIFIER + chunk(0xFF, b"sNaPpYY"), "bad stream identifier"),
            (STREAM_IDENTIFIER + chunk(0x02, b""), "reserved chunk type 0x02"),
            (STREAM_IDENTIFIER + chunk(0x7F, b"x"), "reserved chunk type 0x7f"),
            (STREAM_IDENTIFIER + chunk(0x00, b"abc"), "a data chunk of 3"),
            (STREAM_IDENTIFIER + chunk(0x00, b"", 2**24 - 1), "a data chunk of 16777215"),
            (STREAM_IDENTIFIER + chunk(0x01, b"", 65_541), "a data chunk of 65541"),
            (STREAM_IDENTIFIER + chunk(0x01, b"\0\0\0\0x"), "checksum"),
            (STREAM_IDENTIFIER + data_chunk(b"abc", 0, b"\x03\x08abx"), "checksum"),
            (STREAM_IDENTIFIER + data_chunk(b"abc", 0, b"\x03\x08a"), "corrupt"),
            (STREAM_IDENTIFIER + data_chunk(b"", 0, b""), "corrupt"),
            (STREAM_IDENTIFIER + data_chunk(b"abc", 0, b"\xff\xff\xff\xff\x0f\x00"), "4294967295 plain bytes"),
        ],
    )
    def test_what_the_format_forbids_is_refused(self, wire: bytes, why: str) -> None:
        with pytest.raises(LayerError, match=why):
            Snappy().receive(wire)

    def test_an_empty_data_chunk_is_nothing(self) -> None:
        assert Snappy().receive(STREAM_IDENTIFIER + data_chunk(b"") + data_chunk(b"", 0, b"\x00")) == b""


class TestTls:
    def test_every_cut_of_the_handshake_and_what_follows_works(self) -> None:
        made = certificates()
        server, client = Tls(made.server_context()), Tls(made.client_context(), server_side=False, name="localhost")
        to_server = client.handshake(b"")
        while not (server.done and client.done):
            to_client = b"".join(server.handshake(bytes([byte])) for byte in to_server if not server.done)
            to_server = b"".join(client.handshake(bytes([byte])) for byte in to_client if not client.done)
            if client.done and not server.done:
                # What a client sends right behind its handshake may come in the same read.
                server.handshake(to_server + client.send(b"early"))
        assert server.receive(b"") == b"early"
        wire = client.send(b"hello")
        for cut in range(1, len(wire)):
            assert server.receive(wire[:cut]) == b""
            assert server.receive(wire[cut:]) == b"hello"
            wire = client.send(b"hello")

    def test_a_body_of_128_kb_passes_both_ways(self) -> None:
        server, client = joined_pair()
        for body in (NOISE, memoryview(TEXT), bytearray(b"x")):
            assert server.receive(client.send(body)) == body
            assert client.receive(server.send(body)) == body
        assert server.send(b"") == b""

    def test_facts_name_what_was_agreed_on(self) -> None:
        server, _ = joined_pair()
        assert server.facts.version == "TLSv1.3"
        assert server.facts.cipher.startswith("TLS_")
        assert server.facts.protocol == ""
        assert not server.pending

    def test_the_common_name_is_that_of_the_certificate_shown(self) -> None:
        server, client = joined_pair(ask=True, shown=True)
        assert server.common_name == "someone"
        assert client.common_name == "localhost"
        server, _ = joined_pair()
        assert server.common_name == ""

    def test_a_client_without_the_certificate_asked_for_gets_an_alert(self) -> None:
        with pytest.raises(LayerError, match="peer did not return a certificate") as caught:
            joined_pair(ask=True)
        assert caught.value.last

    def test_a_client_that_does_not_trust_the_server_is_told_apart(self) -> None:
        server = Tls(certificates().server_context())
        client = Tls(ssl.create_default_context(), server_side=False, name="localhost")
        answer = server.handshake(client.handshake(b""))
        with pytest.raises(LayerError, match="certificate verify failed") as caught:
            client.handshake(answer)
        with pytest.raises(LayerError, match="unknown ca"):
            server.handshake(caught.value.last)

    @given(st.binary(min_size=1, max_size=400))
    def test_garbage_in_the_handshake_is_an_error_or_waits_for_more(self, garbage: bytes) -> None:
        server = Tls(certificates().server_context())
        try:
            server.handshake(garbage)
        except LayerError as error:
            assert str(error)
        assert not server.done

    def test_a_plain_client_is_refused(self) -> None:
        with pytest.raises(LayerError, match="handshake failed"):
            Tls(certificates().server_context()).handshake(b"SUB topic channel\nRDY 1\n" * 20)

    @given(st.integers(0, 2**31))
    def test_one_wrong_byte_in_a_record_is_an_error_with_an_alert(self, flip: int) -> None:
        server, client = joined_pair()
        wire = bytearray(client.send(b"hello"))
        wire[5 + flip % (len(wire) - 5)] ^= 1 + flip % 255
        with pytest.raises(LayerError, match="TLS: ") as caught:
            server.receive(bytes(wire))
        assert caught.value.last

    def test_close_notify_is_seen_after_the_last_byte(self) -> None:
        server, client = joined_pair()
        assert client.receive(server.send(b"bye") + server.close()) == b"bye"
        assert client.ended
        assert client.receive(b"whatever") == b""
        assert not server.ended

    def test_closing_before_the_handshake_says_nothing(self) -> None:
        assert Tls(certificates().server_context()).close() == b""


def serve(end: socket.socket, layers_above: list[Layer]) -> None:
    """Echo through TLS and what lies above it, as a server with real sockets would."""
    tls = Tls(certificates().server_context(ask=True))
    while not tls.done:
        end.sendall(tls.handshake(end.recv(1000)))
    stack = Stack([tls, *layers_above])
    data = b""
    while True:
        end.sendall(stack.send(all_of(stack, data)))
        if tls.ended:
            break
        data = end.recv(5000)
    end.sendall(tls.close())
    end.close()


@pytest.fixture
def dial() -> Iterator[Callable[[list[Layer]], ssl.SSLSocket]]:
    """Connect a real TLS client socket to a server that has these layers above TLS."""
    threads: list[threading.Thread] = []
    sockets: list[ssl.SSLSocket] = []

    def connect(layers_above: list[Layer]) -> ssl.SSLSocket:
        near, far = socket.socketpair()
        near.settimeout(20)
        for end in (near, far):
            # Room for all of an echo, so that one thread can write everything and then read everything.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
        threads.append(threading.Thread(target=serve, args=(far, layers_above), daemon=True))
        threads[-1].start()
        client = certificates().client_context(shown=True).wrap_socket(near, server_hostname="localhost")
        sockets.append(client)
        return client

    yield connect
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for client in sockets:
        client.close()


def echoed(client: ssl.SSLSocket, wire: bytes, read: Callable[[bytes], bytes], size: int) -> bytes:
    client.sendall(wire)
    out = bytearray()
    while len(out) < size:
        part = client.recv(65_536)
        assert part, "the server closed early"
        out += read(part)
    return bytes(out)


class TestRealSockets:
    def test_nsq_case_20_a_real_tls_client_gets_its_128_kb_back(
        self, dial: Callable[[list[Layer]], ssl.SSLSocket]
    ) -> None:
        client = dial([])
        assert echoed(client, NOISE, bytes, len(NOISE)) == NOISE
        client.unwrap()

    def test_nsq_case_20_deflate_above_tls(self, dial: Callable[[list[Layer]], ssl.SSLSocket]) -> None:
        client = dial([Deflate(9)])
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        wire = packer.compress(NOISE + TEXT) + packer.flush(zlib.Z_SYNC_FLUSH)
        reader = zlib.decompressobj(-15)
        assert echoed(client, wire, reader.decompress, len(NOISE + TEXT)) == NOISE + TEXT
        client.unwrap()

    def test_nsq_case_20_snappy_above_tls(self, dial: Callable[[list[Layer]], ssl.SSLSocket]) -> None:
        client = dial([Snappy()])
        wire = bytes(cramjam.snappy.compress(NOISE + TEXT))
        assert echoed(client, wire, Snappy().receive, len(NOISE + TEXT)) == NOISE + TEXT
        client.unwrap()


@given(st.data())
def test_stacked_layers_give_the_same_at_any_cut(data: st.DataObject) -> None:
    above = data.draw(st.sampled_from([Snappy, Deflate]))
    server_tls, client_tls = joined_pair()
    server, client = Stack([server_tls, above()]), Stack([client_tls, above()])
    bodies = data.draw(st.lists(st.binary(max_size=100), max_size=4))
    wire = b"".join(map(client.send, bodies))
    cut = data.draw(st.integers(0, len(wire)))
    assert server.receive(wire[:cut]) + server.receive(wire[cut:]) == b"".join(bodies)
    assert client.receive(server.send(b"back")) == b"back"


def test_a_stack_is_pending_while_any_layer_is() -> None:
    server_tls, client_tls = joined_pair()
    server, client = Stack([server_tls, Deflate()]), Stack([client_tls, Deflate()])
    wire = client.send(bytes(3 * RECEIVE_BYTES_MAX))
    assert len(server.receive(wire)) == RECEIVE_BYTES_MAX
    assert server.pending
    assert len(all_of(server, b"")) == 2 * RECEIVE_BYTES_MAX
    assert not server.pending
