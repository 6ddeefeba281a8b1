"""Damaged segments: what was not hurt is read, once and in order, and what was hurt is told."""

from __future__ import annotations

import json
import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.journal import (
    Damage,
    Journal,
    JournalReader,
    Record,
    damages,
    head_bytes,
    quarantine_bytes,
    quarantined_damages,
    read_after,
    read_records,
    read_segment,
)
from tests.effort import settings

from .harm import harms

fuzz = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
payloads = st.lists(st.one_of(st.binary(max_size=40), st.binary(min_size=41, max_size=400)), min_size=1, max_size=12)


def write(directory, batch, writer="w0", **options):
    """Append all; the places, by what ``append`` answered."""
    journal = Journal(directory, writer=writer, **options)
    positions = [journal.append(payload).result(60) for payload in batch]
    journal.close()
    return positions


def contents(directory, after=None):
    return [record.payload for record in read_records(directory, after or {})]


def is_part_in_order(numbers, batch):
    """Whether ``found`` are places of ``batch``, rising, none twice."""
    return all(a < b for a, b in pairwise(numbers)) and set(numbers) <= set(range(len(batch)))


def spread(batch):
    """Payloads that are told apart."""
    return [b"%d:" % number + payload for number, payload in enumerate(batch)]


def number_of(payload):
    return int(payload.split(b":", 1)[0])


@fuzz
@given(batch=payloads, data=st.data(), sealed=st.booleans())
def test_all_records_but_the_hurt_ones_are_read(tmp_path_factory, batch, data, sealed):
    directory = tmp_path_factory.mktemp("journal")
    batch = spread(batch)
    offsets = [offset for _, offset in write(directory, batch)]
    (segment,) = directory.glob("*.seg")
    whole = segment.read_bytes()
    ends = [*offsets[1:], len(whole)]
    n_read = data.draw(st.integers(0, len(batch)), label="read before")
    after = {segment.name: ends[n_read - 1]} if n_read else {}
    if sealed:
        write(directory, [b"9999:the next segment"])
    harm = data.draw(harms(whole), label="harm")
    hurt = harm.done_to(whole)
    segment.write_bytes(hurt)

    # One reader, as ingest is: it looks again and again, and takes each thing once.
    reader, numbers, reported = JournalReader(directory), [], []
    for _ in range(4):
        for item in (item for writer in reader.read(after) for item in writer):
            after[item.segment] = item.next_offset
            if isinstance(item, Damage):
                reported.append(item)
            else:
                assert item.payload in [*batch, b"9999:the next segment"], "a payload that nobody wrote"
                numbers.append(number_of(item.payload))
    if sealed:
        assert numbers.pop() == 9999
    assert is_part_in_order(numbers, batch)
    spared = {i for i, (begin, end) in enumerate(zip(offsets, ends, strict=True)) if harm.spares(begin, end)}
    assert {i for i in spared if i >= n_read} <= set(numbers)
    assert all(number >= n_read for number in numbers)
    assert len(reported) == len(set(reported))
    if hurt != whole and n_read == 0 and (sealed or harm.how != "removed" or harm.at + harm.n_gone < len(whole)):
        assert reported
        assert all(one.segment == segment.name for one in reported)


@fuzz
@given(batch=payloads, data=st.data())
def test_every_other_reader_goes_on_behind_damage_too(tmp_path_factory, batch, data):
    directory = tmp_path_factory.mktemp("journal")
    batch = spread(batch)
    places = write(directory, batch)
    (segment,) = directory.glob("*.seg")
    whole = segment.read_bytes()
    harm = data.draw(harms(whole))
    segment.write_bytes(harm.done_to(whole))
    ends = [*(offset for _, offset in places[1:]), len(whole)]
    for i, (name, offset) in enumerate(places):
        if harm.spares(offset, ends[i]):
            for rest in (read_segment(directory, name, offset), read_after(directory, f"w0.1.{offset}")):
                first = next(rest)
                assert (first.offset, first.payload) == (offset, batch[i])


def write_1(directory, batch, name="w0-00000001.seg"):
    """A segment as version 1 wrote it; the offset of each record."""
    body, offsets = b"CLAWJNL1", []
    for payload in batch:
        offsets.append(len(body))
        length = struct.pack("<I", len(payload))
        body += length + struct.pack("<I", zlib.crc32(payload, zlib.crc32(length))) + payload
    (directory / name).write_bytes(body)
    return offsets


@fuzz
@given(texts=st.lists(st.text(max_size=200), min_size=1, max_size=8), data=st.data())
def test_the_first_version_is_read_as_well(tmp_path_factory, texts, data):
    directory = tmp_path_factory.mktemp("journal")
    batch = [
        json.dumps({"kind": "call", "n": n, "s": text}, separators=(",", ":")).encode() for n, text in enumerate(texts)
    ]
    offsets = write_1(directory, batch)
    assert contents(directory) == batch
    segment = directory / "w0-00000001.seg"
    whole = segment.read_bytes()
    ends = [*offsets[1:], len(whole)]
    harm = data.draw(harms(whole))
    segment.write_bytes(harm.done_to(whole))
    payloads = contents(directory)
    numbers = [json.loads(payload)["n"] for payload in payloads if payload in batch]
    assert len(numbers) == len(payloads)
    spared = {i for i, (begin, end) in enumerate(zip(offsets, ends, strict=True)) if harm.spares(begin, end)}
    assert spared <= set(numbers)
    write(directory, [b'{"kind":"call"}'])
    assert contents(directory)[-1] == b'{"kind":"call"}', "a new segment follows the old one"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_captured_bytes_of_records_are_never_records(tmp_path_factory, data):
    """An agent that reads a journal sends its bytes: around them things break, and they stay text."""
    source = tmp_path_factory.mktemp("source")
    write(source, [b"9:forged", b"8:forged"])
    stolen = (source / "w0-00000001.seg").read_bytes()
    directory = tmp_path_factory.mktemp("journal")
    batch = [b"0:one", b"1:" + stolen[data.draw(st.integers(0, head_bytes("w0-00000001.seg"))) :] + b"-", b"2:three"]
    write(directory, batch)
    segment = directory / "w0-00000001.seg"
    own = segment.read_bytes()
    # Its own records as well, by one that knows this segment's salt.
    write(directory, [b"3:" + own, b"4:five"])
    for path in sorted(directory.glob("*.seg")):
        whole = path.read_bytes()
        path.write_bytes(data.draw(harms(whole, copies=False)).done_to(whole))
    assert set(contents(directory)) <= {*batch, b"3:" + own, b"4:five"}


def test_a_flipped_bit_in_the_first_of_five_costs_only_that_one(tmp_path):
    places = write(tmp_path, [b"one", b"two", b"three", b"four", b"five"])
    segment = tmp_path / "w0-00000001.seg"
    whole = bytearray(segment.read_bytes())
    whole[places[1][1] - 6] ^= 4
    segment.write_bytes(whole)
    again = Journal(tmp_path)
    assert segment.read_bytes() == whole, "the segment is evidence"
    again.append(b"six").result(60)
    again.close()
    assert contents(tmp_path) == [b"two", b"three", b"four", b"five", b"six"]
    (damage,) = damages(tmp_path)
    assert (damage.segment, damage.offset, damage.next_offset) == (segment.name, places[0][1], places[1][1])
    kept = quarantine_bytes(tmp_path, damage)
    assert kept.parent == tmp_path
    assert kept.read_bytes() == bytes(whole[places[0][1] : places[1][1]])
    assert quarantine_bytes(tmp_path, damage) == kept
    assert [(one.segment, one.offset) for one in quarantined_damages(tmp_path)] == [(segment.name, places[0][1])]


def test_what_is_being_written_is_not_damage_until_its_writer_has_gone_on_or_ended(tmp_path):
    journal = Journal(tmp_path)
    journal.append(b"whole").result(60)
    segment = tmp_path / "w0-00000001.seg"
    reader = JournalReader(tmp_path)

    def look(after):
        return [item for writer in reader.read(after) for item in writer]

    (record,) = look({})
    after = {segment.name: record.next_offset}
    whole = segment.read_bytes()
    body = whole[record.offset :]
    for n in range(1, len(body)):
        segment.write_bytes(whole + body[:n])
        assert look(after) == look(after) == [], "the writer lives"
    journal.close()
    (damage,) = look(after)
    assert (damage.offset, damage.begin, damage.end) == (len(whole), len(whole), len(whole) + len(body) - 1)
    after[segment.name] = damage.next_offset
    assert look(after) == look(after) == []
    assert [item for writer in JournalReader(tmp_path).read(after) for item in writer] == []


def test_a_segment_that_is_gone_is_told_once_by_the_one_after_it(tmp_path):
    places = write(tmp_path, [b"%d" % n for n in range(6)], segment_bytes=1)
    (tmp_path / places[2][0]).unlink()
    items = [one for writer in JournalReader(tmp_path).read({}) for one in writer]
    assert [one.payload for one in items if isinstance(one, Record)] == [b"0", b"1", b"3", b"4", b"5"]
    (damage,) = [one for one in items if isinstance(one, Damage)]
    assert damage.segment == places[2][0]
    assert "gone" in damage.reason
    after = {one.segment: one.next_offset for one in items}
    assert [one for writer in JournalReader(tmp_path).read(after) for one in writer] == []
    # One that was read and then taken away by retention is missed by nobody.
    (tmp_path / places[0][0]).unlink()
    assert [one for writer in JournalReader(tmp_path).read(after) for one in writer] == []


def test_the_same_segment_under_another_name_is_not_read_again(tmp_path):
    write(tmp_path, [b"one", b"two"])
    whole = (tmp_path / "w0-00000001.seg").read_bytes()
    for name in ("w0-00000002.seg", "w7-00000001.seg"):
        (tmp_path / name).write_bytes(whole)
    assert contents(tmp_path) == [b"one", b"two"]
    assert {(one.segment, one.reason) for one in damages(tmp_path)} == {
        ("w0-00000002.seg", "it is a copy of w0-00000001.seg"),
        ("w7-00000001.seg", "it is a copy of w0-00000001.seg"),
    }
    # Nor where its head is broken too.
    (tmp_path / "w0-00000002.seg").write_bytes(b"\0" * 40 + whole[40:])
    assert contents(tmp_path) == [b"one", b"two"]


def test_a_segment_of_another_journal_is_not_read(tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    write(mine, [b"mine"])
    write(theirs, [b"theirs", b"of theirs"], segment_bytes=1)
    (mine / "w0-00000002.seg").write_bytes((theirs / "w0-00000002.seg").read_bytes())
    assert contents(mine) == [b"mine"]
    (damage,) = damages(mine)
    assert (damage.segment, damage.reason) == ("w0-00000002.seg", "it belongs to another journal")
    # A restored folder has segments only: they tell whose it is, and so does a broken id.
    (theirs / "folder.id").unlink()
    assert contents(theirs) == [b"theirs", b"of theirs"]
    (theirs / "folder.id").write_bytes(b"something else entirely")
    assert contents(theirs) == [b"theirs", b"of theirs"]
    write(theirs, [b"more"])
    assert contents(theirs) == [b"theirs", b"of theirs", b"more"]
    assert not list(damages(theirs))


def test_numbers_go_on_behind_segments_that_were_read_and_are_gone(tmp_path):
    write(tmp_path, [b"one"])
    after = {record.segment: record.next_offset for record in read_records(tmp_path, {})}
    (tmp_path / "w0-00000001.seg").unlink()
    write(tmp_path, [b"two"], used=after)
    assert contents(tmp_path, after) == [b"two"]


@pytest.mark.parametrize("size", [0, 5, 40])
def test_a_head_that_was_cut_off_by_a_power_cut_loses_nothing(tmp_path, size):
    write(tmp_path, [b"one"])
    write(tmp_path, [])
    (tmp_path / "w0-00000002.seg").write_bytes((tmp_path / "w0-00000001.seg").read_bytes()[:size])
    write(tmp_path, [b"two"])
    assert contents(tmp_path) == [b"one", b"two"]
